"""A process that has imported nothing but the package reads every kind of model.

A saved model keeps the basic points of its fits, so that a loaded one need not search.
"""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from kinds import PREDICTORS
from sklearn.base import clone

import trustsets
from trustsets import Bins, ConditionalConformal, Confidence, Groups, Margin, Polynomial, storage
from trustsets.engine import fit as fit_module
from trustsets.errors import StorageError

ALPHAS = [0.1, 0.2]
MAKERS = {
    **PREDICTORS,
    "margin": lambda: trustsets.MondrianConformal(by=Bins(Margin(), counts=2)),
    "penalised groups": lambda: ConditionalConformal(
        basis=Polynomial(1, (Confidence(), Margin("rank"))) + Groups("site", penalty=5.0)
    ),
}
FRESH = """
import os, sys
# Slow to import, and none of them knows a class of ours.
import numba, scipy.stats, sklearn.cluster, sklearn.decomposition
import trustsets
from trustsets import storage
for path in sys.argv[1:]:
    # Every file meets an interpreter that has read no other.
    if os.fork() == 0:
        print(os.path.basename(path), storage.digest(trustsets.load(path)), flush=True)
        os._exit(0)
    os.wait()
"""


def test_a_fresh_process_loads_every_kind_of_model(make_outputs, tmp_path):
    names = np.array(list("abcde"))
    outputs = make_outputs(400, labels=names[make_outputs(400).codes])
    expected = {}
    for number, make in enumerate(MAKERS.values()):
        predictor = make().calibrate(outputs)
        predictor.save(tmp_path / f"{number}.trustsets")
        expected[f"{number}.trustsets"] = storage.digest(predictor)
    paths = [str(tmp_path / name) for name in expected]
    done = subprocess.run([sys.executable, "-c", FRESH, *paths], capture_output=True, text=True)
    digests = dict(line.split() for line in done.stdout.splitlines())
    assert digests == expected, done.stderr


@pytest.fixture
def saved(make_outputs, tmp_path):
    """A predictor that has answered at two alphas, its sets, and its file."""
    calibration, test = make_outputs(400).split(0.5)
    basis = Polynomial(2, of=(Confidence(),))
    predictor = ConditionalConformal(basis=basis).calibrate(calibration)
    before = storage.digest(predictor)
    sets = predictor.predict_set(test, alpha=ALPHAS)
    assert storage.digest(predictor) == before
    path = tmp_path / "model.trustsets"
    predictor.save(path)
    return predictor, test, sets, path


def rewritten(path, change):
    """The same file with the tree of its starts changed, and the checksum that belongs to it."""
    from safetensors.numpy import save

    with storage._opened(path) as (file, header):
        arrays = {key: file.get_tensor(key) for key in file.keys()}
    tree = json.loads(header["tree"])
    fitted = tree["state"]["learned"]["dict"]["state_"]["state"]["fitted"]["state"]
    arrays = change(fitted, dict(arrays))
    text = json.dumps(tree)
    header = {"version": storage.VERSION, "sha256": storage._digest(text, arrays), "tree": text}
    path.write_bytes(save(arrays, {"trustsets": json.dumps(header)}))


def test_a_loaded_model_answers_without_a_search(saved, monkeypatch):
    predictor, test, sets, path = saved
    loaded = trustsets.load(path)

    def search(*_):
        raise AssertionError("searched")

    monkeypatch.setattr(fit_module, "_starting_points", search)
    again = loaded.predict_set(test, alpha=ALPHAS)
    np.testing.assert_array_equal(again.thresholds, sets.thresholds)
    np.testing.assert_array_equal(again.mask, sets.mask)
    for alpha in ALPHAS:
        first, second = (one._problem.fit(alpha) for one in (loaded, predictor))
        np.testing.assert_array_equal(first.basic_points, second.basic_points)
        assert first.certificate.holds
    # A new alpha starts from the nearest fit; a new calibration has none and must search.
    loaded.predict_set(test, alpha=0.3)
    with pytest.raises(AssertionError, match="searched"):
        clone(predictor).calibrate(predictor.calibration_).predict_set(test, alpha=0.3)


def test_starts_are_kept_from_file_to_file(saved, tmp_path):
    path = saved[-1]
    trustsets.load(path).save(tmp_path / "again.trustsets")
    assert (tmp_path / "again.trustsets").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    "change",
    [
        lambda own: own[:-1],
        lambda own: own[::-1],
        lambda own: np.zeros_like(own),
        lambda own: own + 10**9,
        lambda own: -own,
        lambda own: np.arange(len(own)),
        lambda own: 40 * np.arange(len(own)),
        lambda own: own[:0],
    ],
)
def test_wrong_starts_change_no_result(saved, change):
    _, test, sets, path = saved

    def alter(state, arrays):
        for start in state["starts"]["tuple"]:
            key = start["tuple"][2]["tensor"]
            arrays[key] = np.ascontiguousarray(change(arrays[key]))
        return arrays

    rewritten(path, alter)
    loaded = trustsets.load(path)
    found = loaded.predict_set(test, alpha=ALPHAS)
    np.testing.assert_array_equal(found.thresholds, sets.thresholds)
    np.testing.assert_array_equal(found.status, sets.status)


@pytest.mark.parametrize(
    "start", [{"tuple": [0.1, "basic"]}, {"tuple": [0.1, 0.0, 3]}, {"tuple": [0.1, 0.0, "phi"]}, 7]
)
def test_starts_of_a_wrong_form_are_refused(saved, start):
    path = saved[-1]

    def alter(state, arrays):
        places = {name: state[name] for name in ("phi", "penalty")}
        places["basic"] = state["starts"]["tuple"][0]["tuple"][2]
        if isinstance(start, dict):
            state["starts"]["tuple"][0] = {"tuple": [places.get(i, i) for i in start["tuple"]]}
        else:
            state["starts"]["tuple"][0] = start
        return arrays

    rewritten(path, alter)
    with pytest.raises(StorageError, match="starts"):
        trustsets.load(path)


def test_a_start_that_is_not_optimal_is_not_used(saved):
    """Every step from a wrong start would be certified, too, but the fit begins anew."""
    predictor, *_ = saved
    state, fresh = predictor.state_, predictor._problem.fit(0.1)
    basic = predictor._problem.fit(0.2).basic_points
    fitted = replace(state.fitted, starts=((0.1, 0.0, basic),))
    model = predictor._with_state(replace(state, fitted=fitted))._problem.fit(0.1)
    np.testing.assert_array_equal(model.basic_points, fresh.basic_points)
    assert model.certificate.pivots == fresh.certificate.pivots
