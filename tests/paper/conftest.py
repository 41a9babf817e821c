import pytest
import torch
from trees import make_body, save_checkpoint, write_tree

from trustsets.cli import main


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Tiny images gain nothing from threads, and lose much to waiting ones on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """Tree, network and checkpoint of a dataset, made once; copy before changing anything."""
    made = {}

    def prepare(dataset):
        if dataset not in made:
            root = tmp_path_factory.mktemp(dataset)
            tree = write_tree(dataset, root / "images")
            body = make_body(dataset, len(tree.classes))
            made[dataset] = tree, body, save_checkpoint(dataset, body, root / "weights")
        return made[dataset]

    return prepare


@pytest.fixture
def cli(capsys):
    """Run the command line here; gives the exit code, stdout and stderr."""

    def run(*arguments):
        with pytest.raises(SystemExit) as done:
            main([str(argument) for argument in arguments])
        return done.value.code or 0, *capsys.readouterr()

    return run
