import pytest
import torch
from command_line import run as cli  # noqa: F401
from trees import make_body, save_checkpoint, write_tree


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
