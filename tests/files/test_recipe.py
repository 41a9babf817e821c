"""Words for a predictor mean what leaving them out means, where they name the default."""

import numpy as np
import pytest

from trustsets import APS, RAPS, SAPS, TrustScore
from trustsets.errors import InputError
from trustsets.files.calibration import METHODS, Recipe
from trustsets.scores import MarginScore, TopK

TRUST = TrustScore().fit(np.random.default_rng(0).normal(size=(20, 2)), np.arange(20) % 2)


def score(**words):
    return Recipe(**words).build(TRUST).score


@pytest.mark.parametrize("method", METHODS)
def test_naming_the_default_score_changes_nothing(method):
    default = score(method=method)
    assert default == APS(scale="tail" if method in ("conditional", "plugin") else "raw")
    assert score(method=method, score="aps") == default
    assert score(method=method, own_mass="exclude") == default
    assert score(method=method, scale=default.scale) == default
    assert score(method=method, score="aps", scale=default.scale, own_mass="exclude") == default


@pytest.mark.parametrize("method", ["conditional", "bins"])
def test_naming_the_papers_score_changes_nothing(method):
    default = score(method=method, paper=True)
    assert default == APS()
    assert score(method=method, paper=True, score="aps") == default


def test_each_word_changes_its_own_part_of_the_score():
    assert score(scale="raw") == APS(scale="raw")
    assert score(own_mass="random") == APS(scale="tail", own_mass="random")
    assert score(method="standard", scale="tail") == APS(scale="tail")
    assert score(score="saps", lam=0.3) == SAPS(scale="tail", lam=0.3)
    assert score(method="standard", score="raps", lam=0.3) == RAPS(lam=0.3)
    assert score(score="topk", own_mass="random") == TopK(scale="tail", own_mass="random")
    assert score(method="standard", score="margin") == MarginScore()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"score": "margin", "own_mass": "random"}, "own_mass belongs to aps, raps, saps, topk"),
        ({"lam": 0.1}, "lam belongs to raps, saps; the score aps has none"),
        ({"score": "topk", "lam": 0.1}, "lam belongs to raps, saps; the score topk has none"),
    ],
)
def test_options_of_other_scores_are_refused(words, message):
    with pytest.raises(InputError, match=message):
        score(**words)


@pytest.mark.parametrize("method", METHODS)
def test_prevalence_reaches_every_method(method):
    assert Recipe(method=method, prevalence=0.5).build(TRUST).class_bias.prevalence == 0.5
    assert Recipe(method=method).build(TRUST).class_bias in (None, "auto")


def test_per_class_belongs_to_one_method():
    assert [Recipe(per_class=own).build(TRUST).per_class for own in (None, True, False)] == [
        "auto",
        True,
        False,
    ]
    assert Recipe(paper=True, per_class=True).build(TRUST).per_class is True
    with pytest.raises(
        InputError, match="per_class belongs to the method conditional; got 'class'"
    ):
        Recipe(method="class", per_class=True)
