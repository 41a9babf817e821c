"""Parameters work as those of scikit-learn's own base class, to scikit-learn and to people."""

import numpy as np
import pytest
from sklearn.base import BaseEstimator, clone
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from trustsets import APS, ConditionalConformal, TrustScore
from trustsets._parameters import check_alpha, check_alphas
from trustsets.errors import InputError
from trustsets.estimator import Estimator


def pair(base):
    class Pair(base):
        def __init__(self, inner=None, size=3, name="a"):
            self.inner, self.size, self.name = inner, size, name

    return Pair


OURS, THEIRS = pair(Estimator), pair(BaseEstimator)


def test_parameters_are_those_of_the_base_class_of_scikit_learn():
    ours, theirs = (kind(inner=kind(size=7), name="b") for kind in (OURS, THEIRS))
    for deep in (True, False):
        own, other = ours.get_params(deep), theirs.get_params(deep)
        assert own.pop("inner") is ours.inner and other.pop("inner") is theirs.inner
        assert own == other
    assert OURS(inner=OURS).get_params().keys() == THEIRS(inner=THEIRS).get_params().keys()
    for made in (ours, theirs):
        made.set_params(size=5, inner__name="c")
    assert ours.inner.name == theirs.inner.name == "c" and ours.size == 5
    assert repr(ours) == "Pair(inner=Pair(size=7, name='c'), size=5, name='b')"
    with pytest.raises(InputError, match=r"Invalid parameter 'width'.*'inner', 'size', 'name'"):
        ours.set_params(width=1)


def test_scikit_learn_clones_and_asks_our_estimators():
    trust = TrustScore(neighbour=2)
    copy = clone(trust)
    assert copy is not trust and copy.get_params() == trust.get_params()
    predictor = ConditionalConformal(score=APS(), trust=trust)
    assert clone(predictor).trust is trust
    assert predictor.get_params()["trust__neighbour"] == 2
    assert get_tags(trust).estimator_type is None
    fitted = trust.fit(np.eye(4), np.arange(4) % 2)
    check_is_fitted(fitted)


def test_single_precision_alpha_means_its_decimal():
    assert check_alpha(np.float32(0.1)) == 0.1
    assert check_alphas(np.array([0.1, 0.2])) == ((0.1, 0.2), False)
    assert check_alphas(0.3) == ((0.3,), True)
