"""Predictors of every kind, samples that all take, and stand-ins for what they condition on."""

import numpy as np

from trustsets import (
    APS,
    RAPS,
    SAPS,
    Bins,
    ClassBias,
    Classes,
    ClusteredConformal,
    ConditionalConformal,
    Confidence,
    Entropy,
    Groups,
    Intercept,
    ModelOutputs,
    MondrianConformal,
    Polynomial,
    PrincipalComponents,
    Softmax,
    StandardConformal,
    TrustScore,
)
from trustsets.scores import MarginScore, TopK
from trustsets.statistics import Statistic

LETTERS = np.array(list("abcde"))
LINE = Intercept() + Polynomial(1, (Confidence(),))
RANKS = Polynomial(3, (Confidence("rank"),), penalty=2.0)
PREDICTORS = {
    "standard": lambda: StandardConformal(),
    "random scores": lambda: StandardConformal(
        score=APS(own_mass="random"), allow_empty=True, random_state=3
    ),
    "SAPS": lambda: StandardConformal(score=SAPS(own_mass="random"), temperature=0.7),
    "ties": lambda: StandardConformal(score=TopK(), allow_empty=True),
    "margin": lambda: StandardConformal(score=MarginScore(scale="tail")),
    "tuned": lambda: StandardConformal(temperature="tuning", allow_empty=True),
    "class bias": lambda: StandardConformal(class_bias=ClassBias(prevalence=0.5)),
    "groups": lambda: MondrianConformal(by=Groups("site"), score=RAPS(lam=0.1, k_reg=1)),
    "bins": lambda: MondrianConformal(by=Bins(Confidence(), counts=3), score=Softmax(scale="tail")),
    "class": lambda: MondrianConformal(by="class", temperature=1.5),
    "clusters": lambda: ClusteredConformal(
        score=APS(own_mass="random"), n_clusters=2, tuning_fraction=0.4, random_state=4
    ),
    "clusters, auto": lambda: ClusteredConformal(),
    "default": lambda: ConditionalConformal(),
    "line": lambda: ConditionalConformal(basis=LINE, allow_empty=True),
    "ranks": lambda: ConditionalConformal(score=Softmax(), basis=RANKS),
    "group indicators": lambda: ConditionalConformal(basis=Intercept() + Groups("site")),
    "penalised groups": lambda: ConditionalConformal(basis=RANKS + Groups("site", penalty=2.0)),
    "classes": lambda: ConditionalConformal(basis=LINE + Classes(penalty=2.0)),
    "randomised": lambda: ConditionalConformal(basis=LINE, randomized=True, allow_empty=True),
    "many functions": lambda: ConditionalConformal(
        basis=Polynomial(2, of=(Confidence("rank"), Entropy("log")))
        + PrincipalComponents(2)
        + Groups("site"),
        randomized=True,
    ),
    "trust": lambda: ConditionalConformal(
        basis=Polynomial(2) + Bins(counts=2) + Intercept(),
        trust=TrustScore().fit(np.random.default_rng(0).normal(size=(60, 3)), list("abcde") * 12),
    ),
}


def some(seed: int, n: int, digits: int = 9) -> ModelOutputs:
    """Samples of five classes with names; few digits give ties."""
    rng = np.random.default_rng(seed)
    logits = (1.5 * rng.normal(size=(n, 5))).round(digits)
    codes = (logits + rng.gumbel(size=(n, 5))).argmax(axis=1)
    site = rng.choice(["x", "y", "z"], p=[0.6, 0.3, 0.1], size=n)
    site[:3] = ["x", "y", "z"][:n]
    features = (logits[:, :3] + rng.normal(size=(n, 3))).round(digits)
    fields = {"features": features, "groups": {"site": site}, "classes": LETTERS}
    return ModelOutputs(logits=logits, labels=LETTERS[codes], **fields)


class FirstFeature:
    """A trust score that is the first feature."""

    def score(self, features, predicted):
        return np.asarray(features[:, 0], dtype=float)


class Column(Statistic):
    """A statistic that is one column of the features."""

    def __init__(self, index: int) -> None:
        object.__setattr__(self, "index", index)

    def measure(self, observed):
        return np.asarray(observed.features[:, self.index], dtype=float)

    @property
    def name(self):
        return f"x{self.index}"
