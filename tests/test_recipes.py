"""Names of methods, scores and bases: every word makes its predictor, others are refused."""

import numpy as np
import pytest

from trustsets import (
    ConditionalConformal,
    Groups,
    MondrianConformal,
    Polynomial,
    StandardConformal,
    TrustScore,
)
from trustsets.errors import InputError
from trustsets.recipes import (
    ALIASES,
    BASES,
    METHODS,
    SCORES,
    STATISTICS,
    make_basis,
    make_bins,
    make_predictor,
    make_score,
    uses_trust,
)

PAPER = ("paper", "naive")
"""Methods that cannot do without trust."""


@pytest.fixture(scope="module")
def samples(make_outputs):
    return make_outputs(600, 4, seed=3)


@pytest.fixture(scope="module")
def trust(samples):
    rng = np.random.default_rng(4)
    return TrustScore().fit(rng.normal(size=(200, 3)), np.arange(200) % 4)


CASES = [(method, score, True) for method in METHODS for score in (None, *SCORES)]
CASES += [(method, "lac", False) for method in (*METHODS, "bins") if method not in PAPER]


@pytest.mark.parametrize(("method", "score", "with_trust"), CASES)
@pytest.mark.filterwarnings("ignore::trustsets.errors.TrustSetsWarning")
def test_every_word_makes_a_predictor_that_predicts(method, score, with_trust, samples, trust):
    predictor = make_predictor(method, score=score, trust=trust if with_trust else None, n=600)
    sets = predictor.calibrate(samples).predict_set(samples, alpha=0.2)
    assert len(sets) == 600 and 0.7 < sets.covers(samples.labels).mean()


def test_words_make_what_python_makes(samples, trust):
    """The default of a name is the constructor's own default, thresholds and all."""
    for method, same in [
        ("conditional", ConditionalConformal(trust=trust)),
        ("standard", StandardConformal()),
        ("class", MondrianConformal(by="class")),
        ("groups", MondrianConformal(by=Groups())),
    ]:
        made = make_predictor(method, trust=trust)
        found, expected = (one.calibrate(samples).predict_set(samples) for one in (made, same))
        np.testing.assert_array_equal(found.thresholds, expected.thresholds)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"method": "nonsense"}, "method"),
        ({"method": 3}, "method"),
        ({"score": "nonsense"}, "score"),
        ({"basis": "nonsense"}, "basis"),
        ({"statistics": ["nonsense"]}, "statistics"),
        ({"nonsense": 1}, "nonsense"),
        ({"method": "standard", "degree": 3}, "degree"),
        ({"method": "standard", "basis": "bins"}, "basis"),
        ({"method": "class", "statistics": ["trust"]}, "statistics"),
        ({"method": "standard", "randomized": True}, "randomized"),
        ({"basis": "auto", "degree": 3, "statistics": ["trust"]}, "degree, statistics would have"),
        ({"score": make_score("aps"), "lam": 0.1}, "lam would have no effect"),
    ],
)
def test_what_is_no_word_is_refused_by_name(options, word):
    with pytest.raises(InputError, match=word):
        make_predictor(**options)


def test_scores_refuse_parameters_of_others():
    with pytest.raises(InputError, match="lam"):
        make_score("aps", lam=0.1)
    assert make_score("raps", lam=0.1).lam == 0.1
    assert make_score("saps", lam=None) == make_score("saps")
    for alias, name in ALIASES.items():
        if name in SCORES:
            assert make_score(alias) == make_score(alias.upper()) == make_score(name)


def test_a_named_score_has_the_scale_of_its_method():
    assert make_predictor("conditional", score="softmax").score.scale == "tail"
    assert make_predictor("paper", score="softmax").score.scale == "raw"
    assert make_predictor("standard", score=make_score("aps", scale="tail")).score.scale == "tail"


def test_groups_that_are_named_are_part_of_every_basis(samples):
    """`--group` with a basis of one's own was dropped without a word."""
    for names in BASES:
        made = make_basis(names, statistics=["confidence"], groups=["site"], n=600)
        parts = getattr(made, "parts", (made,))
        assert Groups("site") in parts
    predictor = make_predictor("conditional", statistics=["confidence"], groups=["site"])
    assert predictor.calibrate(samples).needed_groups == ("site",)


def test_parameters_of_the_basis_make_a_basis_of_ones_own():
    named = make_predictor("conditional", basis="auto", score="AUTO")
    assert named.basis == "auto" and repr(named) == repr(make_predictor("conditional"))
    for given, used in ((None, "raw"), ("log", "log")):
        made = make_basis(statistics=["confidence"], degree=3, transform=used)
        assert make_predictor("paper", degree=3, transform=given).basis == made
    assert make_predictor("conditional", basis=Polynomial(2)).basis == Polynomial(2)


def test_cells_have_fifty_samples_each():
    for n in (1, 40, 60, 200, 999, 1250, 10**6):
        for statistics in (["confidence"], ["confidence", "trust"]):
            cells = int(np.prod(make_bins(statistics, n).counts))
            assert cells <= min(25, max(1, n // 50))
    assert make_bins(["confidence"], 1250).counts == (25,)


def test_which_choices_use_trust():
    used = {name for name in METHODS if uses_trust(name)}
    assert used == {"conditional", "mondrian", "paper", "naive"}
    assert not uses_trust("conditional", statistics=["confidence"])
    assert not uses_trust("conditional", basis=["groups", "intercept"])
    assert uses_trust("conditional", basis=["groups", "polynomial"])
    assert uses_trust("conditional", basis="auto")
    assert set(STATISTICS) == {"confidence", "trust", "entropy", "margin"}
