"""Corollary 1 of the paper by simulation: what indicators of Conf and Trust bins guarantee."""

import numpy as np
import pytest

from trustsets import Bins, Confidence, ModelOutputs, Trust
from trustsets.engine import fit_quantiles

ALPHA, N, NEW, REPEATS = 0.1, 200, 300, 250
# P(Conf in I1, Trust in I2): rows are the two intervals of Conf, columns those of Trust.
CELLS = np.array([[0.3, 0.2], [0.2, 0.3]])
# Scores are uniform up to this: what is hard is the combination, and neither Conf nor Trust alone.
WIDTHS = np.array([[1.0, 4.0], [4.0, 1.0]])
BASES = {
    True: Bins(edges=((0.75,), (1.0,))),
    False: Bins(Confidence(), edges=((0.75,),)) + Bins(Trust(), edges=((1.0,),)),
}


def draw(rng, n):
    """Samples with known Conf and Trust, their cells, and continuous scores."""
    cells = rng.choice(4, size=n, p=CELLS.ravel())
    conf = np.where(cells >= 2, rng.uniform(0.76, 0.99, n), rng.uniform(0.51, 0.74, n))
    trust = np.where(cells % 2, rng.uniform(1.1, 3.0, n), rng.uniform(0.1, 0.9, n))
    outputs = ModelOutputs(probabilities=np.stack([conf, 1 - conf], axis=1), features=conf[:, None])
    return outputs.with_trust(trust), cells, WIDTHS.ravel()[cells] * rng.random(n)


def simulate(product):
    """Covered and all test samples by cell, each of shape (REPEATS, 2, 2)."""
    rng, basis = np.random.default_rng(0), BASES[product]
    counts = np.zeros((2, REPEATS, 4))
    for repeat in range(REPEATS):
        (seen, _, scores), (new, cells, values) = draw(rng, N), draw(rng, NEW)
        fitted = basis.fit(seen)
        model = fit_quantiles(fitted.design(seen), scores, alpha=ALPHA)
        covered = values <= model.thresholds(fitted.design(new)).values
        counts[0, repeat] = np.bincount(cells, weights=covered, minlength=4)
        counts[1, repeat] = np.bincount(cells, minlength=4)
    return counts.reshape(2, REPEATS, 2, 2)


def within(counts, chance):
    """Coverage lies between 1 - alpha and the upper bound of the corollary, up to noise."""
    covered, total = counts
    shares = covered.sum(axis=0) / total.sum(axis=0)
    noise = 4.0 * (covered / total).std(axis=0) / np.sqrt(REPEATS)
    functions = 4  # two intervals of each statistic, or the four cells
    upper = 1 - ALPHA + functions / ((N + 1) * chance)
    return (shares >= 1 - ALPHA - noise) & (shares <= upper + noise), shares


def test_products_of_the_indicators_keep_joint_coverage_within_the_bound():
    good, shares = within(simulate(product=True), CELLS)
    assert good.all(), shares


@pytest.mark.parametrize("axis", [0, 1])
def test_sums_of_the_indicators_keep_coverage_given_either_but_not_both(axis):
    """The corollary's own class: within the bound given Conf, and given Trust; not jointly."""
    counts = simulate(product=False)
    good, shares = within(counts.sum(axis=3 - axis), CELLS.sum(axis=1 - axis))
    assert good.all(), shares
    _, joint = within(counts, CELLS)
    # Threshold t with .6 + .4 t / 4 = .9: the hard cells are covered with probability 3 / 4.
    assert (joint[WIDTHS == 4.0] < 0.85).all() and (joint[WIDTHS == 1.0] > 0.97).all()
