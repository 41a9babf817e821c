"""Extraction against direct forward passes, and its resumption after every kind of end."""

import json
import signal
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from trustsets import APS, InputError
from trustsets._common import storage
from trustsets.extras import shards as shards_module
from trustsets.extras.batches import Batch
from trustsets.extras.forward import Runner, Tap, run_ahead, use_half
from trustsets.extras.torch import extract_outputs


class Perceptron(nn.Module):
    """Definition order differs from execution order: `head` is defined first, used last."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 3)
        self.drop = nn.Dropout(0.5)
        self.body = nn.Linear(4, 6)

    def forward(self, x):
        return self.head(self.drop(torch.relu(self.body(x))))


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(2, 5, 3), nn.BatchNorm2d(5), nn.ReLU(inplace=True))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(5, 4)

    def forward(self, x):
        return self.fc(torch.flatten(self.avgpool(self.stem(x)), 1))


class Wrapper(nn.Module):
    """What DataParallel and its kin look like from outside."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)


class Returns(nn.Module):
    """A linear layer, and anything made of its output."""

    def __init__(self, change):
        super().__init__()
        self.fc = nn.Linear(4, 3)
        self.unused = nn.Linear(4, 3)
        self.change = change

    def forward(self, x):
        return self.change(self.fc(x))


def seeded(make):
    torch.manual_seed(0)
    return make()


def vectors(sizes=(7, 7, 7, 2), shape=(4,), n_classes=3):
    """Batches of the given sizes, the same every time."""
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(size, *shape, generator=generator),
            torch.randint(n_classes, (size,), generator=generator),
        )
        for size in sizes
    ]


def images(sizes=(3, 3, 1)):
    return vectors(sizes, (2, 6, 6), 4)


def assert_same(outputs, other):
    np.testing.assert_array_equal(outputs.logits, other.logits)
    np.testing.assert_array_equal(outputs.features, other.features)
    np.testing.assert_array_equal(outputs.labels, other.labels)


def direct(model, features_of, batches):
    """Logits and features by plain calls."""
    model.eval()
    with torch.no_grad():
        logits = torch.cat([model(x) for x, _ in batches])
        features = torch.cat([features_of(x).flatten(1) for x, _ in batches])
    return logits.numpy(), features.numpy()


# --- what is extracted


def cases():
    """A model, batches for it, and the input of its last linear layer."""
    perceptron, net = seeded(Perceptron), seeded(ConvNet)
    return {
        "perceptron": (perceptron, vectors(), lambda x: torch.relu(perceptron.body(x))),
        "convnet": (net, images(), lambda x: net.avgpool(net.stem(x))),
    }


@pytest.mark.parametrize("wrap", [lambda m: m, Wrapper, nn.DataParallel], ids=["", "wrap", "dp"])
@pytest.mark.parametrize("kind", ["perceptron", "convnet"])
def test_outputs_are_those_of_a_forward_pass(kind, wrap):
    model, batches, penultimate = cases()[kind]
    outputs = extract_outputs(wrap(model), batches)
    logits, features = direct(model, penultimate, batches)
    np.testing.assert_array_equal(outputs.logits, logits)
    np.testing.assert_array_equal(outputs.features, features)
    np.testing.assert_array_equal(outputs.labels, torch.cat([y for _, y in batches]))
    assert outputs.logits.dtype == outputs.features.dtype == np.float32
    assert np.isfinite(APS().of_labels(outputs)).all()


def test_a_layer_gives_its_output_before_later_layers_change_it():
    """Batch normalisation is followed by a ReLU that works in place."""
    model, batches = seeded(ConvNet), images()
    _, pooled = direct(model, lambda x: model.avgpool(model.stem(x)), batches)
    _, normed = direct(model, lambda x: model.stem[1](model.stem[0](x)), batches)
    for layer, expected in [
        ("avgpool", pooled),
        (model.avgpool, pooled),
        ("stem.1", normed),
        (model.stem[1], normed),
    ]:
        np.testing.assert_array_equal(extract_outputs(model, batches, layer).features, expected)
    for name in ("module.stem.1", "stem.1"):
        found = extract_outputs(nn.DataParallel(model), batches, name).features
        np.testing.assert_array_equal(found, normed)


def test_a_layer_used_twice_counts_where_it_was_used_last():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.same = nn.Linear(4, 4)

        def forward(self, x):
            return self.same(input=torch.tanh(self.same(x)))

    model, batches = seeded(Twice), vectors(n_classes=4)
    _, features = direct(model, lambda x: torch.tanh(model.same(x)), batches)
    np.testing.assert_array_equal(extract_outputs(model, batches).features, features)


class Tokens(nn.Module):
    """Returns features of tokens, as Hugging Face models do."""

    def forward(self, x):
        return {"last_hidden_state": torch.sin(x[:, :, None] + torch.arange(6)), "other": None}


class Wrapped(nn.Module):
    """Modules with tokens inside of one another; the last to end are those of the model."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = Tokens(), nn.Linear(6, 3)

    def forward(self, x):
        tokens = 2 * self.inner(x)["last_hidden_state"]
        return {"logits": self.head(tokens[:, 0]), "last_hidden_state": tokens}


def test_tokens_are_those_of_the_outermost_module():
    model, batches = seeded(Wrapped), vectors()
    x = torch.cat([own for own, _ in batches])
    tokens = model(x)["last_hidden_state"].detach()
    for layer, features, expected in [
        (None, "cls", tokens[:, 0]),
        (None, "mean", tokens.mean(1)),
        (None, "last token", tokens[:, -1]),
        (None, None, tokens[:, 0]),
        (None, "pre_logits", tokens[:, 0]),
        ("inner", "mean", tokens.mean(1) / 2),
        ("inner", "flatten", tokens.flatten(1) / 2),
        ("inner", lambda output: output["last_hidden_state"][:, 1], tokens[:, 1] / 2),
        (None, lambda output: output["last_hidden_state"][:, 1], tokens[:, 1]),
    ]:
        for wrap in (lambda own: own, nn.DataParallel):
            found = extract_outputs(wrap(model), batches, layer, features=features).features
            np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert hooks_of(model) == [0] * 3
    for arguments, words in [
        ({"layer": "inner"}, "several vectors a sample"),
        ({"layer": "inner", "features": "pre_logits"}, "leave layer= out"),
        ({"layer": "inner", "features": "pool"}, 'features="mean"'),
        ({"layer": "inner", "features": len}, "must be one array with 7 rows"),
        ({"layer": "other"}, "is no module of the model, and no name of an output"),
        ({"features": "avg"}, "features must be one of"),
    ]:
        with pytest.raises(InputError, match=words):
            extract_outputs(model, batches, **arguments)
    assert hooks_of(model) == [0] * 3


def test_logits_are_found_in_tuples_and_objects():
    batches = vectors()
    plain = extract_outputs(seeded(lambda: Returns(lambda z: z)), batches)
    outputs = namedtuple("Outputs", "loss logits")
    for change in (lambda z: (z, z * 2), lambda z: outputs(None, z), lambda z: {"logits": z}):
        found = extract_outputs(seeded(lambda change=change: Returns(change)), batches)
        np.testing.assert_array_equal(found.logits, plain.logits)


def test_batches_come_in_every_documented_form():
    model, batches = seeded(Perceptron), vectors()
    plain = extract_outputs(model, batches)
    for form in (
        [list(batch) for batch in batches],
        [{"inputs": x, "labels": y} for x, y in batches],
        [{"pixel_values": x, "labels": y.tolist()} for x, y in batches],
        iter(batches),
        torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(
                *(torch.cat(part) for part in zip(*batches, strict=True))
            ),
            batch_size=7,
        ),
    ):
        assert_same(extract_outputs(model, form), plain)
    for form in (
        [x for x, _ in batches],
        [(x,) for x, _ in batches],
        [{"inputs": x} for x, _ in batches],
    ):
        blind = extract_outputs(model, form)
        np.testing.assert_array_equal(blind.logits, plain.logits)
        assert blind.labels is None


def test_class_names_and_mappings_with_logits():
    names = np.array(["ant", "bee", "cat"])
    batches = [(x, names[y].tolist()) for x, y in vectors()]
    model = Returns(lambda logits: {"loss": None, "logits": logits})
    outputs = extract_outputs(model, batches, classes=names)
    assert outputs.labels[:7].tolist() == batches[0][1]
    assert outputs.classes.tolist() == names.tolist()


@pytest.mark.parametrize(
    ("precision", "expected"),
    [(torch.float64, np.float32), (torch.bfloat16, np.float32), (torch.float16, np.float16)],
)
def test_features_keep_half_precision_and_everything_else_is_single(precision, expected):
    model = seeded(Perceptron).to(precision)
    batches = [(x.to(precision), y) for x, y in vectors()]
    outputs = extract_outputs(model, batches)
    assert outputs.features.dtype == expected
    assert outputs.logits.dtype == np.float32
    with torch.no_grad():
        logits = torch.cat([model.eval()(x) for x, _ in batches]).float()
    np.testing.assert_array_equal(outputs.logits, logits)


@pytest.mark.parametrize("asked", ["auto", True, False])
def test_mixed_precision_is_for_gpus(asked):
    assert use_half(asked, torch.device("cuda")) is (asked is not False)
    assert not use_half(False, torch.device("cpu"))
    assert not use_half("auto", torch.device("cpu"))


class Refusing:
    """A store whose disk is full after a few batches."""

    def __init__(self, at):
        self.taken, self.at = [], at

    def add(self, batch):
        if len(self.taken) == self.at:
            raise OSError("disk full")
        self.taken.append(batch)


@pytest.mark.parametrize("at", [0, 3, 9])
def test_running_ahead_keeps_the_order_and_tells_of_a_failed_write(at):
    model, batches = seeded(Perceptron).eval(), vectors(SIZES)
    given = [Batch(x, y.numpy(), np.array([number])) for number, (x, y) in enumerate(batches)]
    with Tap(model, model.body) as tap:
        runner = Runner(model, tap, torch.device("cpu"), half=False, keep_predicted=True)
        store = Refusing(at)
        with pytest.raises(OSError, match="disk full"):
            run_ahead(runner, given, store)
        whole = Refusing(99)
        run_ahead(runner, given, whole)
        plain = [runner.run(batch) for batch in given]
    assert [int(outputs.rows[0]) for outputs in store.taken] == list(range(at))
    assert len(whole.taken) == len(plain) == len(given)
    for one, other in zip(whole.taken, plain, strict=True):
        np.testing.assert_array_equal(one.logits, other.logits)
        np.testing.assert_array_equal(one.predicted, other.logits.argmax(axis=1))
        np.testing.assert_array_equal(one.rows, other.rows)


def test_stores_that_keep_nothing_need_a_directory():
    with pytest.raises(InputError, match="need a directory"):
        shards_module.BatchStore(None, {}, keep=False)


# --- the model is left as it was


def hooks_of(model):
    return [
        len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()
    ]


@pytest.mark.parametrize("fails", ["no", "loader", "model"])
def test_the_model_is_left_as_it_was(fails):
    def loader():
        yield from vectors()[:2]
        if fails == "loader":
            raise RuntimeError("disk")
        yield torch.zeros(2, 9 if fails == "model" else 4), torch.zeros(2, dtype=torch.int64)

    model = seeded(Perceptron).train()
    model.body.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    if fails == "no":
        extract_outputs(model, loader())
    else:
        with pytest.raises(RuntimeError):
            extract_outputs(model, loader())
    assert [module.training for module in model.modules()] == [True, True, True, False]
    assert hooks_of(model) == [0] * 4
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_the_device_comes_back():
    """The meta device stands for another one: the model is moved there, fails, and returns."""
    model = seeded(Perceptron)
    outputs = extract_outputs(model, vectors(), device="cpu")
    assert_same(outputs, extract_outputs(model, vectors()))
    empty = Perceptron().to("meta")
    with pytest.raises(NotImplementedError):
        extract_outputs(empty, vectors(), device="cpu")
    assert empty.body.weight.device.type == "meta"
    empty.body = nn.Linear(4, 6)
    with pytest.raises(InputError, match="lies on several devices"):
        extract_outputs(empty, vectors(), device="cpu")


def test_a_progress_bar_is_shown_when_asked(capsys):
    extract_outputs(seeded(Perceptron), vectors())
    assert capsys.readouterr().err == ""
    for loader in (vectors(), iter(vectors())):
        extract_outputs(seeded(Perceptron), loader, progress=True)
        assert "Model outputs" in capsys.readouterr().err


# --- bad input


def test_bad_input_is_named():
    model, batches = seeded(Perceptron), vectors()
    x, y = batches[0]
    net = seeded(ConvNet)
    for arguments, message in [
        ((model, []), "loader is empty"),
        ((model, [(x, y), x]), "labels with some batches and not with others"),
        ((model, [x, (x, y)]), "labels with some batches and not with others"),
        ((model, [(x, y[:3])]), r"labels of a batch must have shape \(7,\), one per input"),
        ((model, [(x, y, y)]), r"3 items, \(Tensor \(7, 4\), .* such as inputs=0, labels=1"),
        ((model, [{"a": x, "b": x}]), r"has \['a', 'b'\], and the model takes .* named \['x'\]"),
        ((model, [x.numpy()]), "got inputs of type ndarray"),
        ((model, [x[:0]]), "at least one row"),
        ((net, images(), "avgpol"), r"near names are \['avgpool'"),
        ((net, images(), "zzz"), r"near names are \['stem.0', 'stem.1'"),
        ((net, images(), ""), "no module of the model"),
        ((net, images(), nn.Linear(1, 1)), "this Linear is not one of them"),
        ((net, images(), 3), "layer must be a name or a module; got int"),
        ((Returns(lambda z: z), batches, "unused"), "the model did not execute it"),
        ((Returns(lambda z: z[:, :, None]), batches), r"here \(7, K\); got \(7, 3, 1\)"),
        ((Returns(lambda z: z[:-1]), batches), r"got \(6, 3\)"),
        ((Returns(lambda z: {"scores": z}), batches), "got NoneType"),
        ((nn.Flatten(), batches), "executes no torch.nn.Linear"),
        ((nn.Sequential(nn.Conv1d(1, 2, 1), nn.Flatten()), [x[:, None]]), "such as '1'"),
    ]:
        with pytest.raises(InputError, match=message):
            extract_outputs(*arguments)
    for wrong in ("half", None):
        with pytest.raises(InputError, match="mixed_precision must be True, False or"):
            extract_outputs(model, batches, mixed_precision=wrong)
    with pytest.raises(InputError, match="mixed_precision=True needs a GPU"):
        extract_outputs(model, batches, mixed_precision=True)


def test_batches_of_other_widths_are_named():
    model = nn.Sequential(nn.Identity(), nn.AdaptiveAvgPool1d(4), nn.Linear(4, 3))
    ragged = [torch.zeros(2, 5), torch.zeros(2, 6)]
    with pytest.raises(InputError, match="6 features for a batch, and 5 for the first"):
        extract_outputs(model, ragged, layer="0")


# --- shards

SIZES = (4, 4, 4, 4, 4, 4, 4, 4, 4, 3)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Extract with shards of eight rows: five of them, the last with seven."""
    monkeypatch.setattr(shards_module, "SHARD_ROWS", 8)

    def extract(batches=None, model=None, **options):
        loader = vectors(SIZES) if batches is None else batches
        model = seeded(Perceptron) if model is None else model
        return extract_outputs(model, loader, shards=tmp_path / "run", **options)

    return extract


def files(directory):
    return sorted(path.name for path in directory.iterdir())


def shard(directory, number):
    return directory / "run" / f"shard-{number:05d}.safetensors"


def counting(model):
    """Count the rows that go through a model."""
    seen = []
    model.body.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    return model, seen


def test_shards_hold_everything(run, tmp_path):
    outputs = run()
    assert_same(outputs, extract_outputs(seeded(Perceptron), vectors(SIZES)))
    shards = [f"shard-{number:05d}.safetensors" for number in range(5)]
    assert files(tmp_path / "run") == ["manifest.json", *shards]
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["setting"]["model"].endswith("Perceptron")
    assert manifest["setting"]["parameters"] == 51
    del manifest["setting"]
    assert manifest == {
        "n_classes": 3,
        "n_features": 6,
        "rows_per_shard": 8,
        "shards": 5,
        "rows": 39,
        "finished": True,
    }
    assert [len(storage.read(shard(tmp_path, number)).logits) for number in range(5)] == [8] * 4 + [
        7
    ]


def failing(batches, at):
    yield from batches[:at]
    raise OSError("the disk went away")


@pytest.mark.parametrize("at", range(11))
def test_a_run_that_died_continues_bit_for_bit(run, tmp_path, at):
    whole = extract_outputs(seeded(Perceptron), vectors(SIZES))
    with pytest.raises(OSError, match="the disk went away"):
        run(failing(vectors(SIZES), at))
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert not manifest["finished"]
    done = manifest["rows"]
    assert done == 8 * min(at // 2, 4)
    model, seen = counting(seeded(Perceptron))
    assert_same(run(model=model), whole)
    # The batch that shows the last layer runs twice; stored batches do not run at all.
    assert sum(seen) == 39 - done + 4
    again, seen = counting(seeded(Perceptron))
    assert_same(run(model=again), whole)
    assert seen == []


def test_a_run_may_die_again_and_again(run):
    whole = extract_outputs(seeded(Perceptron), vectors(SIZES))
    for at in (3, 3, 6, 9):
        with pytest.raises(OSError, match="went away"):
            run(failing(vectors(SIZES), at))
    assert_same(run(), whole)


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("damage", ["cut", "empty", "flip", "gone", "foreign"])
def test_a_damaged_shard_is_made_again(run, tmp_path, number, damage):
    whole = run()
    path = shard(tmp_path, number)
    data = path.read_bytes()
    if damage == "gone":
        path.unlink()
    elif damage == "foreign":
        storage.write(path, APS())
    else:
        altered = bytearray(data)
        altered[-3] ^= 1
        path.write_bytes({"cut": data[:-5], "empty": b"", "flip": bytes(altered)}[damage])
    assert_same(run(), whole)
    assert path.read_bytes() == data
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["finished"]


def test_no_truncation_of_a_shard_is_accepted(run, tmp_path):
    run()
    path = shard(tmp_path, 4)
    data = path.read_bytes()
    for size in range(0, len(data), 13):
        path.write_bytes(data[:size])
        assert len(list(shards_module._resumable_shards(tmp_path / "run"))) == 4
        assert not path.exists()


def test_labels_of_any_kind_or_none_are_kept(run, tmp_path):
    names = np.array(["ant", "bee", "cat"])
    named = [(x, names[y].tolist()) for x, y in vectors(SIZES)]
    with pytest.raises(OSError, match="went away"):
        run(failing(named, 5))
    assert run(named).labels.tolist() == [name for _, own in named for name in own]


def test_unlabelled_batches_continue_too(run):
    blind = [x for x, _ in vectors(SIZES)]
    with pytest.raises(OSError, match="went away"):
        run(failing(blind, 5))
    assert run(blind).labels is None


def test_another_loader_is_refused_and_nothing_is_lost(run):
    whole = run()
    batches = vectors(SIZES)
    shuffled = [batches[1], batches[0], *batches[2:]]
    blind = [x for x, _ in batches]
    for loader, message in [
        (shuffled, "batch 0 has other labels than are stored"),
        (blind, "batch 0 has other labels than are stored"),
        (vectors((4, 3)), "batch 1 has 3 rows, and 4 are stored"),
        (batches[:7], "it ends after 7 batches, and 10 are stored"),
        (batches + batches[:1], "it has at least 11 batches, and 10 are stored"),
    ]:
        with pytest.raises(InputError, match=message):
            run(loader)
    assert_same(run(), whole)


def test_another_model_or_layer_is_refused(run, tmp_path):
    whole = run()
    other = seeded(Perceptron)
    with torch.no_grad():
        other.head.bias[0] += 1.0
    with pytest.raises(InputError, match=r"belongs to another run: weights_sha256 was .* Choose"):
        run(model=other)
    with pytest.raises(InputError, match="layer was None, is 'body'"):
        run(layer="body")
    assert_same(run(), whole)
    (tmp_path / "run" / "manifest.json").write_text("{")
    with pytest.raises(InputError, match=r"manifest\.json: damaged"):
        run()
    (tmp_path / "run" / "manifest.json").unlink()
    with pytest.raises(InputError, match=r"shards without a manifest\.json"):
        run()


KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from test_torch import Perceptron, SIZES, seeded, vectors
from trustsets.extras import shards
from trustsets.extras.torch import extract_outputs

shards.SHARD_ROWS = 8

def loader():
    for number, batch in enumerate(vectors(SIZES)):
        if number == 7:
            open(os.path.join({run!r}, ".shard-00003.safetensors.x.part"), "wb").write(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch

extract_outputs(seeded(Perceptron), loader(), shards={run!r})
"""


def test_a_killed_process_is_continued(run, tmp_path):
    """A real SIGKILL, with half a shard on disk under its temporary name."""
    code = KILLED.format(tests=str(Path(__file__).parent), run=str(tmp_path / "run"))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    shards = [f"shard-{number:05d}.safetensors" for number in range(3)]
    left = [".lock", ".shard-00003.safetensors.x.part", "manifest.json", *shards]
    assert files(tmp_path / "run") == left
    model, seen = counting(seeded(Perceptron))
    assert_same(run(model=model), extract_outputs(seeded(Perceptron), vectors(SIZES)))
    assert sum(seen) == 39 - 24 + 4
    assert len(files(tmp_path / "run")) == 6
