"""A calibrated predictor says how many samples its thresholds rest on."""

from collections import Counter

import numpy as np
import pytest

from trustsets import Groups, MondrianConformal, StandardConformal, load


@pytest.mark.parametrize("by", ["class", Groups("site")])
def test_cells_are_counted_by_name(make_outputs, tmp_path, by):
    outputs = make_outputs(n=300)
    predictor = MondrianConformal(by=by).calibrate(outputs)
    column = outputs.labels if by == "class" else outputs.groups["site"]
    expected = Counter(np.asarray(column).astype(str).tolist())
    assert {name: n for name, n in predictor.cell_counts_.items() if n} == expected
    assert predictor.n_calibration_ == 300
    predictor.save(tmp_path / "model.trustsets")
    loaded = load(tmp_path / "model.trustsets")
    assert loaded.cell_counts_ == predictor.cell_counts_ and loaded.n_calibration_ == 300


def test_samples_that_tune_are_not_counted(make_outputs):
    outputs = make_outputs(n=300)
    tuned = StandardConformal(temperature="tuning", tuning_fraction=0.2).calibrate(outputs)
    assert tuned.n_calibration_ == 240
