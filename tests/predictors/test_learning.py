"""What learns from data learns from tuning samples, or `calibrate` warns; nothing else does."""

import pytest

from trustsets import (
    Bins,
    ConditionalConformal,
    Confidence,
    Entropy,
    Groups,
    Intercept,
    MondrianConformal,
    Polynomial,
    PrincipalComponents,
)
from trustsets import _storage as storage
from trustsets.errors import TrustSetsWarning

RANKS = (Confidence(transform="rank"),)
# Each has one part that learns, beside parts that do not.
LEARNING = {
    "components": PrincipalComponents(2),
    "a sum with components": Intercept() + PrincipalComponents(2),
    "a sum with ranks": Groups() + Polynomial(1, RANKS) + Intercept(),
    "one rank of two": Polynomial(1, (Confidence(), Entropy(transform="rank"))),
    "edges": Bins(Confidence(), counts=3, spacing="quantile"),
    "edges by hand on ranks": Bins(*RANKS, edges=((0.3, 0.6),)),
}
FIXED = {
    "raw": Polynomial(2, (Confidence(), Entropy(transform="log"))),
    "a sum": Intercept() + Groups() + Polynomial(1, (Confidence(),)),
    "edges by hand": Bins(Confidence(), edges=((0.5, 0.7),)),
}
PREDICTORS = {name: ConditionalConformal(basis=basis) for name, basis in LEARNING.items()}
PREDICTORS["cells"] = MondrianConformal(by=LEARNING["edges by hand on ranks"])


def learned(predictor):
    """The fitted function class or partition, as a digest of all its numbers."""
    return storage.digest(predictor.conditions_on)


@pytest.mark.parametrize("name", PREDICTORS)
def test_what_learns_takes_tuning_samples_or_warns(name, make_outputs):
    predictor, calibration = PREDICTORS[name], make_outputs(300)
    predictor.set_params(tuning_fraction=0.2).calibrate(calibration)
    assert 0 < predictor.n_tuning_ == 300 - predictor.n_calibration_
    what = "the bin edges" if name == "cells" else "the function class"
    with pytest.warns(TrustSetsWarning, match=f"{what} will be learned from"):
        predictor.set_params(tuning_fraction=0.0).calibrate(calibration)
    assert f"holds only approximately, because {what}" in predictor.summary()


@pytest.mark.parametrize("name", PREDICTORS)
def test_what_is_learned_depends_on_tuning_samples_only(name, make_outputs):
    first, second, tuning, other = (make_outputs(200, seed=seed) for seed in range(4))
    predictor = PREDICTORS[name]
    digest = learned(predictor.calibrate(first, tuning=tuning))
    assert learned(predictor.calibrate(second, tuning=tuning)) == digest
    assert learned(predictor.calibrate(first, tuning=other)) != digest


@pytest.mark.parametrize("name", FIXED)
def test_where_nothing_is_learned_all_samples_calibrate(name, make_outputs):
    """Warnings are errors here: nothing warns, whatever the fraction."""
    for fraction in ("auto", 0.0):
        predictor = ConditionalConformal(basis=FIXED[name], tuning_fraction=fraction)
        state = predictor.calibrate(make_outputs(300)).state_
        assert (len(state), state.n_tuning, state.reused) == (300, 0, ())
