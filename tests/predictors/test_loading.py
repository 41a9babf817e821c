"""A process that has imported nothing but the package reads every kind of model."""

import subprocess
import sys

import numpy as np

from trustsets import (
    RAPS,
    Bins,
    ClusteredConformal,
    ConditionalConformal,
    Confidence,
    Entropy,
    Groups,
    Intercept,
    Margin,
    MondrianConformal,
    Polynomial,
    PrincipalComponents,
    Softmax,
    StandardConformal,
    TrustScore,
)
from trustsets import _storage as storage
from trustsets.statistics import ClassFrequency

TRAINING = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 5
TRUST = TrustScore().fit(*TRAINING)
FREQUENCY = ClassFrequency(counts=(1, 2, 3, 4, 5))
PREDICTORS = (
    StandardConformal(score=RAPS(), temperature="tuning"),
    MondrianConformal(by=Groups("site"), score=Softmax(scale="tail")),
    MondrianConformal(by="class"),
    MondrianConformal(by=Bins(Margin(), Entropy(), counts=2)),
    ConditionalConformal(trust=TRUST),
    ConditionalConformal(
        basis=Polynomial(1, (Confidence(transform="rank"), FREQUENCY))
        + PrincipalComponents(2)
        + Groups("site", penalty=5.0)
        + Intercept()
    ),
    ClusteredConformal(n_clusters=2, tuning_fraction=0.4),
)
FRESH = """
import os, sys
# Slow to import, and none of them knows a class of ours.
import numba, scipy.stats, sklearn.cluster, sklearn.decomposition
import trustsets
from trustsets import _storage as storage
for path in sys.argv[1:]:
    # Every file meets an interpreter that has read no other.
    if os.fork() == 0:
        print(os.path.basename(path), storage.digest(trustsets.load(path)), flush=True)
        os._exit(0)
    os.wait()
"""


def test_a_fresh_process_loads_every_kind_of_model(make_outputs, tmp_path):
    """Whatever classes a file holds are known without anything else having been imported."""
    outputs = make_outputs(400)
    expected = {}
    for place, predictor in enumerate(PREDICTORS):
        predictor.calibrate(outputs)
        predictor.save(tmp_path / f"{place}.trustsets")
        expected[f"{place}.trustsets"] = storage.digest(predictor)
    paths = [str(tmp_path / name) for name in expected]
    done = subprocess.run([sys.executable, "-c", FRESH, *paths], capture_output=True, text=True)
    found = dict(line.split() for line in done.stdout.splitlines())
    assert found == expected, done.stderr
