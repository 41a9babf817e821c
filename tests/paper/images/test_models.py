"""Checkpoints in every known form give the same network; all others are refused in words."""

import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from trustsets.errors import InputError
from trustsets_paper import networks
from trustsets_paper.networks import ARCHITECTURES, Network, load_weights, read_weights

K = 4


@pytest.fixture(scope="module")
def body():
    """The smallest of the networks; the forms of a checkpoint do not depend on which."""
    torch.manual_seed(3)
    return networks.models.resnet18(weights=None, num_classes=K)


@pytest.fixture
def network():
    torch.manual_seed(4)
    return Network(networks.models.resnet18(weights=None, num_classes=K))


def parallel(state):
    return {f"module.{name}": value for name, value in state.items()}


def halves(state):
    head = {name: value for name, value in state.items() if name.startswith("fc.")}
    return {name: value for name, value in state.items() if name not in head}, head


def forms(state):
    features, head = halves(state)
    bare = {name.removeprefix("fc."): value for name, value in head.items()}
    return {
        "plain": state,
        "parallel": parallel(state),
        "wrapped": {"epoch": 3, "state_dict": parallel(state), "best": torch.tensor(0.5)},
        "two parts": {"state_dict_best": {"feat_model": features, "classifier": head}},
        "two parallel parts": {
            "state_dict_best": {"feat_model": parallel(features), "classifier": parallel(head)},
            "best_acc": np.float64(0.4),
            "best_epoch": np.int64(3),
            "centroids": None,
        },
        "bare head": {"feat_model": features, "classifier": bare},
        "old": {n: v for n, v in state.items() if not n.endswith("num_batches_tracked")},
    }


FORMS = list(forms({}))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_network(form, body, network, tmp_path):
    path = tmp_path / "weights.pth"
    torch.save(forms(body.state_dict())[form], path)
    weights = read_weights(path, "")
    load_weights(network, weights)
    for name, value in body.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            assert torch.equal(network.body.state_dict()[name], value), name


def test_safetensors_and_the_old_pickle_form(body, network, tmp_path):
    save_file(body.state_dict(), tmp_path / "w.safetensors", {"trustsets": '{"seed": 3}'})
    torch.save(body.state_dict(), tmp_path / "w.pth", _use_new_zipfile_serialization=False)
    for name, facts in [("w.safetensors", {"seed": 3}), ("w.pth", {})]:
        weights = read_weights(tmp_path / name, "")
        assert weights.facts == facts
        load_weights(network, weights)
        assert torch.equal(network.body.fc.weight, body.fc.weight)


def test_a_checkpoint_runs_no_code(tmp_path):
    class Harm:
        def __reduce__(self):
            return (open, (str(tmp_path / "harm"), "w"))

    torch.save({"state_dict": Harm()}, tmp_path / "w.pth")
    with pytest.raises(InputError, match="without running code"):
        read_weights(tmp_path / "w.pth", "")
    assert not (tmp_path / "harm").exists()


def test_checkpoints_that_do_not_fit_say_which_keys(body, network, tmp_path):
    state = body.state_dict()
    features, _ = halves(state)
    lacking = {name: value for name, value in state.items() if name != "layer1.0.conv1.weight"}
    wide = dict(state) | {"fc.weight": torch.zeros(7, 512)}
    for content, message in [
        (lacking, r"Missing key.*layer1\.0\.conv1\.weight"),
        (dict(state) | {"block.weight": torch.zeros(1)}, r"Unexpected key.*block\.weight"),
        (wide, r"size mismatch for fc\.weight.*\[7, 512\].*\[4, 512\]"),
        (features, r"Missing key.*fc\.weight.*fc\.bias"),
    ]:
        torch.save(content, tmp_path / "w.pth")
        with pytest.raises(InputError, match=f"do not fit ResNet: .*{message}"):
            load_weights(network, read_weights(tmp_path / "w.pth", ""))
    for content, message in [
        ([1, 2], "holds a list, not named tensors"),
        ({"epoch": 3}, r"besides tensors it has \['epoch'\]"),
        ({}, "not a state dictionary in a known form"),
    ]:
        torch.save(content, tmp_path / "w.pth")
        with pytest.raises(InputError, match=message):
            read_weights(tmp_path / "w.pth", "")
    for name in ("w.pth", "w.safetensors"):
        (tmp_path / name).write_bytes(b"junk")
        with pytest.raises(InputError, match=r"not a (checkpoint|readable)"):
            read_weights(tmp_path / name, "")


@pytest.mark.parametrize("dataset", ARCHITECTURES)
def test_a_missing_file_says_where_the_public_one_is(dataset, tmp_path):
    source = ARCHITECTURES[dataset].weights
    with pytest.raises(InputError, match="there is no such file") as error:
        read_weights(tmp_path / "none.pth", source)
    assert ("https://" in str(error.value)) != (f"paper train {dataset}" in str(error.value))


def test_logits_keep_single_precision_when_the_rest_does_not():
    network = ARCHITECTURES["fitzpatrick17k"].build(7).eval()
    images = torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8)
    seen = []
    network.body.avgpool.register_forward_hook(lambda *caught: seen.append(caught[2].dtype))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        logits = network(images)
    assert seen == [torch.bfloat16]
    assert logits.dtype == torch.float32
    # In half precision they would be multiples of a power of two.
    assert not torch.equal(logits, logits.bfloat16().float())


# --- torchvision next to a torch that it was not built for


def test_other_import_errors_are_not_hidden(monkeypatch):
    class Broken:
        def find_spec(self, name, *_):
            if name == "torchvision":
                raise RuntimeError("compiled with different CUDA major versions")

    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "torchvision")
    with pytest.raises(RuntimeError, match="CUDA major"):
        networks.load_torchvision()
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(InputError, match=r"pip install 'trustsets\[paper\]'"):
        networks.load_torchvision()
