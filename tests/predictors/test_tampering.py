"""Models altered by someone who also computes the checksum: refused by name, or as good as another.

Every array and number of every kind of predictor is cut, reshaped, reordered, negated and made
infinite. What is accepted must predict, and only changes that another calibration could have given
may be accepted.
"""

import json
import tracemalloc
import warnings

import numpy as np
import pytest
from saved_predictors import PREDICTORS

import trustsets
from trustsets import ModelOutputs
from trustsets._common import storage
from trustsets.errors import StorageError, TrustSetsWarning

ARRAYS = {
    "cut": lambda own: own[:-1],
    "longer": lambda own: np.concatenate([own, own[-1:]]),
    "empty": lambda own: own[:0],
    "flat": lambda own: own.reshape(-1) if own.ndim > 1 else own.reshape(1, -1),
    "turned": lambda own: own.T if own.ndim > 1 else own[:, None],
    "reversed": lambda own: own[::-1],
    "negative": lambda own: -own - (own.dtype.kind in "iu"),
    "not a number": lambda own: own * np.nan,
    "infinite": lambda own: np.where(np.arange(own.size).reshape(own.shape) == 1, np.inf, own),
    "huge": lambda own: own.astype(np.float64) * 1e300 * 1e8 + 1e308 * (own != 0) * 10,
    "past the end": lambda own: own + 10**9 if own.dtype.kind in "iu" else own.astype(np.int64),
    "other type": lambda own: own.astype(np.float16) if own.dtype.kind == "f" else own * 1.0,
}
NUMBERS = {
    "negative": lambda own: -own - 1,
    "huge": lambda own: own + 10**30,
    "text": str,
    "infinite": lambda own: {"float": "inf"},
    "not a number": lambda own: {"float": "nan"},
    "none": lambda own: None,
    "list": lambda own: {"list": [own]},
}
# What another calibration could have given: other finite numbers where any order is possible, and
# numbers that are only kept to say how a model was made.
LEGITIMATE = {
    "none": {"n_features", "random_state"},
    "huge": {"random_state", "lam", "k_reg", "filter_neighbours", "scale",
             "temperature", "strength", "gain", "log_scale", "beyond"},
    "names": {"classes"},
    "other word": {"candidates", "groups"},
    "cut": {"reference", "cuts"},
    "longer": {"reference"},
    "other type": {"features"},
    "negative": {"scores", "tuning_scores", "features", "directions", "mean", "low", "edges",
                 "cuts", "losses", "bias", "gain"},
    "reversed": {"scores", "tuning_scores", "codes", "tuning_codes", "features", "directions",
                 "mean", "low", "high", "phi", "cuts", "bias", "losses", "errors", "counts",
                 "of_calibration", "of_tuning", "tuning_phi"},
}  # fmt: skip


def calibrated(name, make_outputs):
    labels = np.array(list("abcde"))[make_outputs(600).codes]
    calibration, test = make_outputs(600, labels=labels).split(0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrustSetsWarning)
        return PREDICTORS[name]().calibrate(calibration), test


def rewrite(path, tree, arrays):
    """A file with this content and the checksum that belongs to it."""
    from safetensors.numpy import save

    text = json.dumps(tree)
    kept = {key: np.ascontiguousarray(own) for key, own in arrays.items()}
    header = {"version": 1, "sha256": storage._digest(text, kept), "tree": text}
    path.write_bytes(save(kept, {"trustsets": json.dumps(header)}))


def leaves(node, place=()):
    """Places of all numbers, tensors and texts of a tree."""
    if isinstance(node, dict) and "tensor" not in node and "strings" not in node:
        for key, own in node.items():
            if key != "object":
                yield from leaves(own, (*place, key))
    elif isinstance(node, list):
        for key, own in enumerate(node):
            yield from leaves(own, (*place, key))
    else:
        yield place, node


def replaced(tree, place, new):
    tree = json.loads(json.dumps(tree))
    node = tree
    for key in place[:-1]:
        node = node[key]
    node[place[-1]] = new
    return tree


def same(one, other):
    return one.dtype == other.dtype and np.array_equal(one, other)


def field_of(place):
    return next(key for key in reversed(place) if isinstance(key, str) and key not in
                ("state", "tuple", "list", "dict", "parameters", "object"))  # fmt: skip


def altered(tree, arrays):
    """Names of changes, fields, and the trees and arrays they give."""
    for place, own in leaves(tree):
        if isinstance(own, dict) and "tensor" in own:
            for change, make in ARRAYS.items():
                key = own["tensor"]
                with np.errstate(all="ignore"):
                    new = make(arrays[key])
                if not same(new, arrays[key]):
                    yield change, field_of(place), tree, arrays | {key: new}
            yield "another", field_of(place), replaced(tree, place, 1.0), arrays
        elif isinstance(own, int | float) and not isinstance(own, bool):
            for change, make in NUMBERS.items():
                yield change, field_of(place), replaced(tree, place, make(own)), arrays
        elif isinstance(own, dict):
            names = own["strings"]
            for new in ([*names, "z"], names[:-1], [names[0]] * len(names), [1.0] * len(names)):
                yield (
                    "names",
                    field_of(place),
                    replaced(tree, place, own | {"strings": new}),
                    arrays,
                )
        elif isinstance(own, str):
            yield "other word", field_of(place), replaced(tree, place, "\x1b[31m"), arrays
            yield "number", field_of(place), replaced(tree, place, 7), arrays


@pytest.mark.parametrize("name", PREDICTORS)
def test_a_tampered_model_is_refused_or_as_good_as_another(name, make_outputs, tmp_path):
    predictor, test = calibrated(name, make_outputs)
    path = tmp_path / "model.trustsets"
    predictor.save(path)
    header, arrays = storage._read_parts(path)
    refused, accepted = 0, 0
    for change, field, tree, changed in altered(json.loads(header["tree"]), arrays):
        rewrite(path, tree, changed)
        try:
            loaded = trustsets.load(path)
        except StorageError as error:
            assert str(error).startswith(str(path))
            refused += 1
            continue
        assert field in LEGITIMATE.get(change, ()), (change, field)
        accepted += 1
        few = test if loaded.classes_.size == 5 else without_classes(test, loaded.classes_)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sets = loaded.predict_set(few.take(np.arange(20)), alpha=0.2)
            loaded.summary(sets)
    assert refused > 8 * accepted


def without_classes(test, classes):
    """The same samples for as many classes as a model says it has."""
    logits = np.resize(test.logits, (len(test), classes.size))
    return ModelOutputs(logits=logits, features=test.features, groups=test.groups, classes=classes)


def test_a_wide_text_type_takes_no_memory(make_outputs, tmp_path):
    """A width is a claim: 2**30 characters for five names of one letter would be 20 GB."""
    path = tmp_path / "model.trustsets"
    predictor, _ = calibrated("standard", make_outputs)
    predictor.save(path)
    header, arrays = storage._read_parts(path)
    for width in ("<U1073741824", "<U100000", "<M8[s]", "O", "nothing"):
        rewrite(path, json.loads(header["tree"].replace("<U1", width)), arrays)
        with pytest.raises(StorageError, match="trustsets"):
            trustsets.load(path)


def test_offsets_past_the_features_take_no_memory(make_outputs, tmp_path):
    path = tmp_path / "model.trustsets"
    predictor, _ = calibrated("conditional, trust", make_outputs)
    predictor.save(path)
    header, arrays = storage._read_parts(path)
    key = next(key for key, own in arrays.items() if own.dtype.kind == "i")
    rewrite(path, json.loads(header["tree"]), arrays | {key: arrays[key] * 10**9})
    tracemalloc.start()
    with pytest.raises(StorageError, match=r"TrustScore\.starts must divide the features"):
        trustsets.load(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20
