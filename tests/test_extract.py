"""Outputs of modules and functions: the right layer, any form of batch, and nothing left behind."""

import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from trustsets.errors import InputError
from trustsets.extract import extract_outputs
from trustsets.files import open_outputs

torch = pytest.importorskip("torch")
nn = torch.nn

RNG = np.random.default_rng(0)
X = RNG.normal(size=(70, 4)).astype(np.float32)
Y = RNG.integers(3, size=70)


@pytest.fixture(autouse=True)
def one_thread():
    """Small networks: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(before)


def batches(size=16, x=X, y=Y, wrap=torch.tensor):
    return [(wrap(x[i : i + size]), wrap(y[i : i + size])) for i in range(0, len(x), size)]


def plain():
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


class Wrapped(nn.Module):
    """A head, and further linear layers around it, with some form of result."""

    def __init__(self, form):
        super().__init__()
        self.form, self.head = form, nn.Linear(6, 3)
        self.narrow, self.body, self.after = nn.Linear(4, 3), nn.Linear(3, 6), nn.Linear(3, 5)

    def forward(self, x):
        assert torch.is_inference_mode_enabled()
        # A layer before the head has as many outputs, and one that is no head runs last.
        hidden = torch.tanh(self.body(self.narrow(x)))
        logits = self.head(input=hidden)
        self.after(logits)
        hidden.zero_()
        return self.form(logits)


FORMS = {
    "tensor": lambda logits: logits,
    "mapping": lambda logits: {"loss": 0.0, "logits": logits},
    "object": lambda logits: SimpleNamespace(logits=logits, hidden=None),
    "tuple": lambda logits: (logits, None),
}


class TestHead:
    @pytest.mark.parametrize("form", FORMS)
    def test_features_are_what_the_head_gets(self, form):
        model = Wrapped(FORMS[form])
        x = torch.tensor(X)
        with torch.no_grad():
            hidden = torch.tanh(model.body(model.narrow(x)))
            logits = model.head(hidden)
        for run in (model, nn.DataParallel(model)):  # which is run as its module
            outputs = extract_outputs(run, batches())
            np.testing.assert_allclose(outputs.features, hidden, atol=1e-6)
            np.testing.assert_allclose(outputs.logits, logits, atol=1e-6)
            np.testing.assert_array_equal(outputs.labels, Y)


class TestLayers:
    def test_a_layer_by_name_by_itself_and_a_function_give_the_same(self):
        class Named(nn.Module):
            def __init__(self):
                super().__init__()
                self.body = nn.Sequential(nn.Linear(4, 6), nn.ReLU(inplace=True))
                self.head = nn.Linear(6, 3)

            def forward(self, x):
                hidden = self.body(x)
                return {"logits": self.head(hidden), "hidden": hidden}

        model = Named()
        default = extract_outputs(model, batches()).features
        for features in ("body", model.body, lambda output: output["hidden"]):
            found = extract_outputs(model, batches(), features=features).features
            np.testing.assert_array_equal(found, default)
        before = extract_outputs(model, batches(), features="body.0").features
        assert before.min() < 0  # a later layer works in place
        assert extract_outputs(model, batches(), features=False).features is None

    def test_half_precision_features_stay_so_and_logits_do_not(self):
        model = plain().half()
        outputs = extract_outputs(model, batches(x=X.astype(np.float16)))
        assert outputs.features.dtype == np.float16 and outputs.logits.dtype == np.float32
        brain = extract_outputs(plain().bfloat16(), [(torch.tensor(X).bfloat16(), Y)])
        assert brain.features.dtype == np.float32
        double = extract_outputs(plain().double(), batches(x=X.astype(np.float64)))
        assert double.logits.dtype == np.float64


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = plain()

    def forward(self, first, second=None):
        return self.net(first if second is None else first + second)


FORMS_OF_BATCHES = {
    "pairs": lambda x, y: (x, y),
    "lists": lambda x, y: [x, y],
    "arrays": lambda x, y: (x.double().numpy(), y.numpy()),
    "mappings": lambda x, y: {"first": x, "label": y},
    "other names": lambda x, y: {"pixels": x, "targets": y},
    "other entries": lambda x, y: {"first": x, "y": y, "name": ["a"] * len(x), "index": y},
    "two inputs": lambda x, y: ((x / 2, x / 2), y),
    "two names": lambda x, y: {"first": x / 2, "second": x / 2, "labels": y},
    "labels as list": lambda x, y: (x, y.tolist()),
    "one array": lambda *new: [old[: len(it)].copy_(it) for old, it in zip(ONE, new, strict=True)],
}
ONE = torch.empty(16, 4), torch.empty(16, dtype=torch.int64)


class TestBatches:
    @pytest.mark.parametrize("form", FORMS_OF_BATCHES)
    @pytest.mark.parametrize("size", [1, 16])
    def test_neither_form_nor_size_matters(self, form, size):
        model = Several()
        expected = extract_outputs(model, [(torch.tensor(X), torch.tensor(Y))])
        loader = (FORMS_OF_BATCHES[form](*pair) for pair in batches(size))
        outputs = extract_outputs(model, loader)
        np.testing.assert_allclose(outputs.logits, expected.logits, atol=1e-6)
        np.testing.assert_allclose(outputs.features, expected.features, atol=1e-6)
        np.testing.assert_array_equal(outputs.labels, Y)

    @pytest.mark.parametrize("sized", [True, False])
    def test_progress_is_shown_to_the_end_where_it_is_wanted(self, sized, capsys):
        loader = batches() if sized else iter(batches())
        extract_outputs(plain(), loader, progress=True)
        assert ("100%" in capsys.readouterr().err) is sized
        extract_outputs(plain(), batches(), progress=False)
        assert capsys.readouterr().err == ""

    def test_labels_are_optional_and_positions_become_names(self):
        assert extract_outputs(plain(), [x for x, _ in batches()]).labels is None
        names = np.array(["ant", "bee", "cat"])
        for loader in (batches(), [(x, names[y]) for x, y in batches()]):
            found = extract_outputs(plain(), loader, classes=names)
            np.testing.assert_array_equal(found.labels, names[Y])
            np.testing.assert_array_equal(found.classes, names)
        assert (extract_outputs(plain(), batches(), classes=[2, 1, 0]).labels == Y).all()


class TestFunctions:
    def test_a_function_gives_the_outputs_of_the_module(self):
        model = plain()
        expected = extract_outputs(model, batches())

        def classify(inputs):
            hidden = model[1](model[0](inputs))
            return [model[2](hidden), hidden]  # with gradients, as a user would

        outputs = extract_outputs(classify, batches())
        np.testing.assert_array_equal(outputs.logits, expected.logits)
        np.testing.assert_array_equal(outputs.features, expected.features)
        alone = extract_outputs(model.forward, batches())
        np.testing.assert_array_equal(alone.logits, expected.logits)
        assert alone.features is None
        one = np.empty((14, 3)), np.empty((14, 6))

        def into_one_array(inputs):
            for array, values in zip(one, classify(inputs), strict=True):
                array[:] = values.detach()
            return one

        found = extract_outputs(into_one_array, batches(14)).features
        np.testing.assert_allclose(found, expected.features, atol=1e-6)

    def test_a_function_gets_the_inputs_as_they_are(self):
        texts = [(["a", "b c"], [0, 1]), (["d"], [2])]
        seen = []

        def classify(inputs):
            seen.append(inputs)
            return np.eye(3)[: len(inputs)]

        assert len(extract_outputs(classify, texts)) == 3
        assert seen == [["a", "b c"], ["d"]]
        rest = extract_outputs(lambda own: np.eye(3)[: len(own["x"])], [{"x": X[:2], "y": [0, 1]}])
        np.testing.assert_array_equal(rest.labels, [0, 1])


class Failing(nn.Module):
    """Fails at a number of calls."""

    def __init__(self, at):
        super().__init__()
        self.net, self.left = nn.Sequential(plain(), nn.Dropout()), at

    def forward(self, x):
        self.left -= 1
        if self.left == 0:
            raise KeyError("stop")
        return self.net(x)


@pytest.mark.parametrize("at", [0, 1, 2, 4])
def test_a_model_is_as_before_also_after_an_error(at):
    model = Failing(at)
    model.net[0].eval()
    modes = [module.training for module in model.modules()]
    try:
        extract_outputs(model, batches())
    except InputError:
        assert at
    assert [module.training for module in model.modules()] == modes
    for module in model.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks
    assert all(parameter.requires_grad for parameter in model.parameters())


MISTAKES = {
    "width": (plain, lambda: batches(x=X[:, :3]), {}, r"batch 0, .* shape \(16, 3\) float32: mat1"),
    "type": (plain, lambda: batches(x=X.astype(np.float64)), {}, r"shape \(16, 4\) float64: "),
    "names": (
        Several, lambda: [{"a": x, "b": x, "label": y} for x, y in batches()], {},
        "a shape .* b shape .* missing 1 required positional argument: 'first'",
    ),
    "three items": (plain, lambda: [(x, y, y) for x, y in batches()], {}, "a batch has 3 items: "),
    "one-hot labels": (plain, lambda: [(X, np.eye(3)[Y])], {}, r"shape \(70,\), one per input"),
    "a dataset": (plain, lambda: list(zip(torch.tensor(X), Y, strict=True)), {}, "DataLoader"),
    "nothing": (plain, list, {}, "at least one batch"),
    "an array": (plain, lambda: X, {}, "got a single ndarray"),
    "no rows": (plain, lambda: [(X[:0], Y[:0])], {}, "at least one row"),
    "labels at times": (plain, lambda: [*batches(), torch.tensor(X)], {}, "with all or with none"),
    "label beyond": (plain, batches, {"classes": ["a", "b"]}, "positions in the 2 classes; got 2"),
    "layer": (plain, batches, {"features": "body"}, "features must be a layer .* Near names"),
    "foreign layer": (plain, batches, {"features": nn.Linear(4, 6)}, "features must be a layer"),
    "no tensor": (plain, batches, {"features": lambda out: 3}, "must give one tensor"),
    "tokens": (
        lambda: nn.Sequential(nn.Embedding(9, 5), nn.Flatten(), nn.Linear(20, 3)),
        lambda: [(torch.ones(6, 4, dtype=torch.int64), Y[:6])], {"features": "0"},
        r"features of batch 0 must have shape \(n, width\), here n=6; got \(6, 4, 5\)",
    ),
    "no head": (lambda: nn.Softmax(dim=1), batches, {}, "no torch.nn.Linear with 4 outputs"),
    "logits": (
        lambda: nn.Sequential(nn.Embedding(9, 5), nn.Linear(5, 3)),
        lambda: [(torch.ones(6, 4, dtype=torch.int64), Y[:6])], {}, "logits of ba",
    ),
    "no logits": (lambda: Wrapped(lambda _: None), batches, {}, "it returned a NoneType"),
    "no model": (lambda: "model", batches, {}, "must be a torch.nn.Module, or a function"),
    "features of a function": (
        lambda: lambda x: x, batches, {"features": "body"}, "a function without features=",
    ),
    "no result": (lambda: lambda x: (None, x), batches, {}, "must return logits or"),
    "three results": (lambda: lambda x: (x, x, x), batches, {}, "got 3 items"),
    "widths": (
        lambda: lambda x: x[:, : len(x)], lambda: [(X[:4], Y[:4]), (X[:3], Y[:3])], {},
        "of the same width",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named_in_one_line(name):
    model, loader, options, told = MISTAKES[name]
    with pytest.raises(InputError, match=told) as caught:
        extract_outputs(model(), loader(), **options)
    assert "\n" not in str(caught.value)


def as_function(model):
    def classify(inputs):
        with torch.no_grad():
            hidden = model[1](model[0](inputs))
            return model[2](hidden).numpy(), hidden.numpy()

    return classify


class Interrupted(Exception):
    pass


def until(number, loader):
    for index, batch in enumerate(loader):
        if index == number:
            raise Interrupted
        yield batch


class TestFolders:
    @pytest.mark.parametrize("wrap", [lambda model: model, as_function], ids=["module", "function"])
    @pytest.mark.parametrize("at", [0, 1, 3, 5])
    def test_an_interrupted_run_continues_and_gives_the_same(self, wrap, at, tmp_path):
        model, runs = plain(), []
        model[0].register_forward_hook(lambda *_: runs.append(1))
        expected = extract_outputs(wrap(model), batches())
        with pytest.raises(Interrupted):
            extract_outputs(wrap(model), until(at, [*batches(), None]), folder=tmp_path)
        runs.clear()
        outputs = extract_outputs(wrap(model), batches(), folder=tmp_path)
        # The first batch runs again, to find the head and to compare its outputs.
        again = 1 if wrap is as_function else 2
        assert len(runs) == (again if at else again - 1) + 5 - at
        np.testing.assert_array_equal(outputs.logits, expected.logits)
        np.testing.assert_array_equal(outputs.features, expected.features)
        np.testing.assert_array_equal(outputs.labels, Y)

    def test_the_folder_is_what_the_command_line_reads(self, tmp_path):
        names = ["ant", "bee", "cat"]
        expected = extract_outputs(plain(), batches(), folder=tmp_path, classes=names)
        read = open_outputs(tmp_path).read()
        for name in ("logits", "features", "labels"):
            np.testing.assert_array_equal(getattr(read, name), getattr(expected, name))
        assert read.classes.tolist() == names

    def test_every_change_of_the_weights_is_noticed(self, tmp_path):
        model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
        with pytest.raises(Interrupted):
            extract_outputs(model, until(2, batches()), folder=tmp_path)
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        for name, tensor in state.items():
            model.load_state_dict(state | {name: tensor.flatten().sub(1).reshape(tensor.shape)})
            told = "another run: its model, weights or features= differ"
            with pytest.raises(InputError, match=told):
                extract_outputs(model, batches(), folder=tmp_path)
        model.load_state_dict(state)
        with pytest.raises(InputError, match="its model, weights or features= differ"):
            extract_outputs(model, batches(), folder=tmp_path, features="0")
        assert len(extract_outputs(model, batches(), folder=tmp_path)) == len(X)

    @pytest.mark.parametrize("finished", [False, True])
    def test_a_function_with_other_weights_is_noticed(self, finished, tmp_path):
        model = plain()
        loader = batches() if finished else until(2, batches())
        with pytest.raises(Interrupted) if not finished else nullcontext():
            extract_outputs(as_function(model), loader, folder=tmp_path)
        for parameter in model.parameters():
            parameter.data += 0.05
            with pytest.raises(InputError, match=r"its model gave other (logits|features)"):
                extract_outputs(as_function(model), batches(), folder=tmp_path)
            parameter.data -= 0.05

    @pytest.mark.parametrize("finished", [False, True])
    def test_other_data_are_noticed(self, finished, tmp_path):
        model = plain()
        with pytest.raises(Interrupted) if not finished else nullcontext():
            loader = batches() if finished else until(3, batches())
            extract_outputs(model, loader, folder=tmp_path)
        other_x, other_y = X.copy(), Y.copy()
        other_x[20, 1] += 1e-3
        other_y[20] = (other_y[20] + 1) % 3
        order = np.r_[16:32, :16, 32:70]
        others = [batches(x=other_x), batches(y=other_y), batches(x=X[order], y=Y[order])]
        for loader in (*others, batches(size=8), [x for x, _ in batches()]):
            with pytest.raises(InputError, match="its loader gave other inputs or labels"):
                extract_outputs(model, loader, folder=tmp_path)
        with pytest.raises(InputError, match="its loader gave more batches"):
            extract_outputs(model, batches()[:2], folder=tmp_path)
        assert len(extract_outputs(model, batches(), folder=tmp_path)) == len(X)

    @pytest.mark.parametrize("types", [("f4", "f2"), ("f8", "f4"), ("f4", "f8")])
    def test_arrays_on_file_keep_their_types(self, types, tmp_path):
        """Resumed without autocast, or with another precision from batch to batch."""
        loader = [X[:8].astype(types[0]), X[8:16].astype(types[1]), X[16:24].astype(types[0])]
        with pytest.raises(Interrupted):
            extract_outputs(lambda x: (x, x.astype("f2")), until(2, loader), folder=tmp_path)
        with pytest.raises(InputError, match="another run: its model gave logits and features"):
            extract_outputs(lambda x: x, loader, folder=tmp_path)
        outputs = extract_outputs(lambda x: (x, x), loader, folder=tmp_path)
        np.testing.assert_allclose([outputs.logits, outputs.features], [X[:24]] * 2, rtol=2e-3)

    def test_a_finished_run_goes_on_with_more_and_damage_is_named(self, tmp_path):
        model = plain()
        assert len(extract_outputs(model, batches()[:2], folder=tmp_path)) == 32
        assert len(extract_outputs(model, batches(), folder=tmp_path)) == len(X)
        for name in ("logits.npy", "extraction.json"):
            good = (tmp_path / name).read_bytes()
            (tmp_path / name).write_bytes(good[: len(good) // 2])
            with pytest.raises(InputError, match=f"{name}: damaged .* Empty the folder"):
                extract_outputs(model, batches(), folder=tmp_path)
            (tmp_path / name).write_bytes(good)

    def test_memory_holds_one_batch(self, tmp_path):
        head = np.ones((4, 1000), dtype=np.float32)
        some = (RNG.normal(size=(100, 4)).astype(np.float32) for _ in range(200))
        tracemalloc.start()
        outputs = extract_outputs(lambda x: (x @ head, x @ head), some, folder=tmp_path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        size = outputs.logits.nbytes + outputs.features.nbytes
        assert size == 160_000_000 and peak < size / 8

    @pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
    def test_a_killed_process_is_continued(self, tmp_path):
        code = f"""
import sys, time
import numpy as np
from trustsets.extract import extract_outputs
def classify(x):
    time.sleep(0.02)
    return x @ np.arange(12.0).reshape(4, 3), x
loader = [np.full((5, 4), i, dtype=float) for i in range(60)]
extract_outputs(classify, loader, folder={str(tmp_path)!r})
"""
        process = subprocess.Popen([sys.executable, "-c", code], env=os.environ)
        record, deadline = tmp_path / "extraction.json", time.monotonic() + 60
        while not record.exists() or json.loads(record.read_text())["batches"] < 20:
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.01)
        process.kill()
        process.wait()
        assert json.loads(record.read_text())["batches"] < 60
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
        logits, features = (np.load(tmp_path / f"{name}.npy") for name in ("logits", "features"))
        np.testing.assert_array_equal(features, np.repeat(np.arange(60.0), 5)[:, None] * np.ones(4))
        np.testing.assert_array_equal(logits, features @ np.arange(12.0).reshape(4, 3))
