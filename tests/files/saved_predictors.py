"""Predictors of every kind, for the tests of what is saved."""

import numpy as np

from trustsets import (
    APS,
    RAPS,
    SAPS,
    Bins,
    ClassBias,
    ClusteredConformal,
    ConditionalConformal,
    Confidence,
    Entropy,
    Groups,
    Intercept,
    MondrianConformal,
    Polynomial,
    PrincipalComponents,
    Softmax,
    StandardConformal,
    TrustScore,
)

PREDICTORS = {
    "standard": lambda: StandardConformal(score=APS(own_mass="random"), random_state=3),
    "standard, SAPS": lambda: StandardConformal(score=SAPS(own_mass="random"), temperature=0.7),
    "standard, tuned": lambda: StandardConformal(temperature="tuning", allow_empty=True),
    "groups": lambda: MondrianConformal(by=Groups("site"), score=RAPS(lam=0.1, k_reg=1)),
    "bins": lambda: MondrianConformal(by=Bins(Confidence(), counts=3), score=Softmax(scale="tail")),
    "class": lambda: MondrianConformal(by="class", temperature=1.5),
    "conditional": lambda: ConditionalConformal(
        basis=Polynomial(2, of=(Confidence(transform="rank"), Entropy(transform="log")))
        + PrincipalComponents(2)
        + Groups("site"),
        randomized=True,
    ),
    "conditional, trust": lambda: ConditionalConformal(
        basis=Polynomial(2) + Bins(counts=2) + Intercept(),
        trust=TrustScore().fit(np.random.default_rng(0).normal(size=(60, 3)), list("abcde") * 12),
    ),
    "default": ConditionalConformal,
    "clusters": lambda: ClusteredConformal(
        score=APS(own_mass="random"), n_clusters=2, tuning_fraction=0.4, random_state=4
    ),
    "class bias": lambda: StandardConformal(class_bias=ClassBias(prevalence=0.5)),
}
