"""A process that has imported nothing but the package reads every kind of model."""

import subprocess
import sys

import numpy as np
from kinds import PREDICTORS

from trustsets import (
    Bins,
    ConditionalConformal,
    Confidence,
    Groups,
    Margin,
    MondrianConformal,
    Polynomial,
)
from trustsets import _storage as storage

MAKERS = {
    **PREDICTORS,
    "margin": lambda: MondrianConformal(by=Bins(Margin(), counts=2)),
    "penalised groups": lambda: ConditionalConformal(
        basis=Polynomial(1, (Confidence(), Margin("rank"))) + Groups("site", penalty=5.0)
    ),
}
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
