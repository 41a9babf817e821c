"""A value of a wrong type or size is refused by name, where the basis is made or fitted."""

import inspect
import re

import numpy as np
import pytest

from trustsets import (
    Bins,
    ConditionalConformal,
    Confidence,
    Custom,
    Intercept,
    Learned,
    MondrianConformal,
    Polynomial,
    PrincipalComponents,
)
from trustsets.basis import Basis, CustomGroups, Partition
from trustsets.errors import TrustSetsError

WRONG = {
    "text": "x",
    "none": None,
    "list": [1, "a"],
    "nested list": [[1.0], 2],
    "dict": {"a": 1},
    "negative": -1,
    "zero": 0,
    "fraction": 2.5,
    "nan": float("nan"),
    "infinity": float("inf"),
    "bool": True,
    "huge integer": 10**400,
    "huge": 10**12,
    "huge float": 1e300,
    "array": np.ones((2, 2)),
    "object": object(),
}
# Values that have a meaning; all others are refused.
MEANINGFUL = {
    "penalty": {"zero", "fraction", "huge", "huge float"},
    "n_components": {"zero"},  # of learned functions: none of the features
    "degree": {"zero"},
    "nested": {"bool"},
    "of_label": {"bool"},
    "edges": {"none"},
    "clusters": {"none"},
    "regressor": {"none"},
}


def constant(outputs, codes=None):
    return np.ones((len(outputs), 1))


def two_groups(outputs):
    return outputs.rows % 2


# What a basis needs beside the parameter that is attacked.
REQUIRED = {
    Custom: {"function": constant},
    CustomGroups: {"function": two_groups},
    Polynomial: {"of": (Confidence(),), "degree": 2},
    PrincipalComponents: {"n_components": 2},
    Learned: {"n_trees": 3},
}


def kinds(base=Basis):
    """All function classes of the package that users make."""
    for kind in base.__subclasses__():
        if kind.__module__ == "trustsets.basis" and not inspect.isabstract(kind):
            yield kind
        yield from kinds(kind)


KINDS = sorted({Learned, *kinds()}, key=lambda kind: kind.__name__)
PARAMETERS = [(kind, name) for kind in KINDS for name in inspect.signature(kind).parameters]


def make(kind, name, value):
    if inspect.signature(kind).parameters[name].kind is inspect.Parameter.VAR_POSITIONAL:
        return kind(value)
    statistics = (Confidence(),) if kind is Bins else ()
    return kind(*statistics, **(REQUIRED.get(kind, {}) | {name: value}))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize(("kind", "name"), PARAMETERS)
def test_a_wrong_value_is_refused_by_name(kind, name, wrong, make_outputs):
    """Raw errors of Python or NumPy, and sets that do not come, fail."""
    outputs = make_outputs(300)
    try:
        basis = make(kind, name, WRONG[wrong])
        if issubclass(kind, Partition):
            predictor = MondrianConformal(by=basis)
        else:
            predictor = ConditionalConformal(basis=basis + Intercept(), tuning_fraction=0.4)
        sets = predictor.calibrate(outputs).predict_set(outputs[:20])
    except TrustSetsError as error:
        assert re.search(rf"\b{name.rstrip('s')}", str(error)), error
    else:
        assert wrong in MEANINGFUL.get(name, set())
        assert sets.mask.shape == (20, outputs.n_classes)
