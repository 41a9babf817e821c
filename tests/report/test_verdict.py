"""Which bins the sentence at the top of the report speaks of."""

import numpy as np
from report_cases import sets_that_cover

from trustsets import ModelOutputs, evaluate
from trustsets.report.verdict import verdict


def test_verdict_names_significant_bins_only():
    """The lowest coverage of all may be chance: three samples say nothing, 400 do."""
    # Bins: sound; surely too low; lowest, but tiny; low by its own p-value, but not after Holm's.
    count, covered = np.array([1000, 400, 3, 40]), np.array([905, 316, 1, 32])
    codes = np.repeat(np.arange(4), count)
    hits = np.concatenate([np.arange(n) < k for n, k in zip(count, covered, strict=True)])
    n = codes.size
    groups = {"site": np.array(list("abcd"))[codes]}
    outputs = ModelOutputs(logits=np.zeros((n, 3)), labels=np.zeros(n, dtype=int), groups=groups)
    result = evaluate(sets_that_cover(hits, outputs), outputs, metrics=["groups"])
    table = result.tables["group:site"]
    assert table.coverage.argmin() == 2
    assert (table.p_value <= 0.05).tolist() == [False, True, True, True]
    assert (table.holm <= 0.05).tolist() == [False, True, False, False]
    said = verdict({"m": result})
    assert "in 1 of 4 groups by site (lowest 79.0%)" in said
    assert "33.3%" not in said and "80.0%" not in said
