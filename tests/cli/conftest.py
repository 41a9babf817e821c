import shutil

import pytest
from command_line import run, write_splits  # noqa: F401

from trustsets.cli import main


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """A folder with data and models, made on the command line."""
    folder = tmp_path_factory.mktemp("prepared")
    write_splits(folder)
    for method, more in {"standard": [], "conditional": ["--train", folder / "train.npz"]}.items():
        model = folder / f"{method}.trustsets"
        words = ["calibrate", folder / "calibration.npz", "--method", method, "-q", "-o", model]
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in [*words, *more]])
        assert not ended.value.code
    return folder


@pytest.fixture
def folder(prepared, tmp_path, monkeypatch):
    """A copy of it, as the current folder."""
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path
