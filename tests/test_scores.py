"""Every score against its formula written out for one label at a time."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trustsets import APS, RAPS, SAPS, ModelOutputs, Softmax
from trustsets import _blocks as blocks
from trustsets.errors import InputError
from trustsets.scores import MarginScore, TopK, conformal_rank

SCORES = [
    Softmax(),
    Softmax(floor=0.3),
    *[APS(own_mass=own) for own in ("exclude", "include", "random")],
    *[RAPS(own_mass=own, lam=0.05, k_reg=2) for own in ("exclude", "include", "random")],
    *[SAPS(own_mass=own, lam=0.15) for own in ("exclude", "include", "random")],
    *[TopK(own_mass=own) for own in ("exclude", "random")],
    MarginScore(),
]
SCALES = ["raw", "tail"]


def with_scale(score, scale):
    return type(score)(**{**vars(score), "scale": scale})


def slow_score(score, probabilities, label, draw):
    """The published formulas, one label of one row."""
    order = sorted(range(len(probabilities)), key=lambda j: (-probabilities[j], j))
    rank = order.index(label) + 1
    own = probabilities[label]
    if isinstance(score, Softmax):
        raw, largest, rest = 1.0 - own, 1.0, own
    elif isinstance(score, MarginScore):
        others = [probabilities[j] for j in reversed(order) if j != label]
        raw = max(others, default=0.0) - own
        # 1 - p_(1) is the sum of the other probabilities.
        rest = 1.0 - raw if rank == 1 else sum(probabilities[j] for j in order[:0:-1]) + own
        largest = 2.0
    elif isinstance(score, SAPS):
        share = {"exclude": 0.0, "include": 1.0, "random": draw}[score.own_mass]
        top = probabilities[order[0]]
        raw = share * top if rank == 1 else top + (rank - 2 + share) * score.lam
        largest = 1.0 + (len(order) - 1) * score.lam
        rest = largest - raw
    elif isinstance(score, TopK):
        raw = rank - 1 + (draw if score.randomized else 0.0)
        largest = len(order)
        rest = largest - raw
    else:
        share = {"exclude": 0.0, "include": 1.0, "random": draw}[score.own_mass]
        above = sum(probabilities[j] for j in order[: rank - 1])
        below = sum(probabilities[j] for j in reversed(order[rank:]))
        raw, largest, rest = above + share * own, 1.0, below + (1.0 - share) * own
        if isinstance(score, RAPS):
            late = 1 if score.own_mass == "exclude" else 0
            penalty = score.lam * max(0, rank - late - score.k_reg)
            most = score.lam * max(0, len(order) - late - score.k_reg)
            raw, largest, rest = raw + penalty, 1.0 + most, rest + most - penalty
    floor = getattr(score, "floor", -np.inf)
    if score.scale == "raw":
        return max(raw, floor)
    return max(-np.log(max(rest / largest, np.finfo(float).tiny)), floor)


# Probabilities with exact ties and exact zeros: counts over their sum.
probability_rows = hnp.arrays(
    np.int64,
    shape=hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=7),
    elements=st.integers(0, 4),
).map(lambda counts: (counts + (counts.sum(axis=1, keepdims=True) == 0)).astype(float))


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("score", SCORES, ids=repr)
@given(counts=probability_rows, seed=st.integers(0, 3))
def test_scores_follow_their_formula(score, scale, counts, seed):
    score = with_scale(score, scale)
    probabilities = counts / counts.sum(axis=1, keepdims=True)
    n, n_classes = probabilities.shape
    rng = np.random.default_rng(seed)
    draws, labels = rng.uniform(size=n), rng.integers(n_classes, size=n)
    outputs = ModelOutputs(probabilities=probabilities, labels=labels, classes=range(n_classes))
    slow = np.array(
        [
            [slow_score(score, outputs.probabilities[i], y, draws[i]) for y in range(n_classes)]
            for i in range(n)
        ]
    )
    matrix = score.matrix(outputs, draws=draws)
    # log(1 / tiny) is where the tail scale ends; rounding decides whether a tail is 0.
    near_end = (slow > 30) & (matrix > 30)
    np.testing.assert_allclose(matrix[~near_end], slow[~near_end], rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(score.of_labels(outputs, draws=draws), matrix[range(n), labels])


@pytest.mark.parametrize("score", SCORES, ids=repr)
def test_scores_grow_with_the_rank(score, make_outputs):
    outputs = make_outputs(50, 9)
    draws = np.random.default_rng(0).uniform(size=50)
    for scale in SCALES:
        matrix = with_scale(score, scale).matrix(outputs, draws=draws)
        order = np.argsort(-outputs.probabilities, axis=1)
        assert (np.diff(np.take_along_axis(matrix, order, axis=1), axis=1) >= 0.0).all()


@pytest.mark.parametrize("n_classes", [1, 2, 9, 1000])
@pytest.mark.parametrize("spread", [0, 3, 10**6])
def test_probabilities_that_differ_in_their_last_bits_are_ranked(n_classes, spread):
    steps = np.random.default_rng(0).integers(-spread, spread + 1, size=(20, n_classes))
    outputs = ModelOutputs(probabilities=(1.0 + steps * 2.0**-52) / n_classes)
    order = np.argsort(-outputs.probabilities, axis=1, kind="stable")
    np.testing.assert_array_equal(TopK().matrix(outputs), np.argsort(order, axis=1))


def test_tail_scale_keeps_digits_that_the_raw_scale_loses():
    outputs = ModelOutputs(logits=[[0.0, -50.0, -60.0]])
    assert len(set(APS().matrix(outputs)[0].tolist())) == 2
    np.testing.assert_allclose(APS(scale="tail").matrix(outputs)[0], [0.0, 50.0, 60.0], atol=1e-4)


@pytest.mark.parametrize("score", SCORES, ids=repr)
def test_neither_blocks_nor_batches_change_a_bit(score, make_outputs, monkeypatch):
    outputs = make_outputs(97, 11)
    draws = np.random.default_rng(0).uniform(size=97)
    whole = score.of_labels(outputs, draws=draws), score.matrix(outputs, draws=draws)
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 8 * 11 * 3)
    np.testing.assert_array_equal(score.of_labels(outputs, draws=draws), whole[0])
    np.testing.assert_array_equal(score.matrix(outputs, draws=draws), whole[1])
    for rows in (slice(0, 1), slice(1, 40), slice(40, 97)):
        part = outputs.take(rows)
        np.testing.assert_array_equal(score.of_labels(part, draws=draws[rows]), whole[0][rows])


@pytest.mark.parametrize("score", [SAPS(), SAPS(own_mass="include"), MarginScore()], ids=repr)
def test_tail_scale_keeps_the_digits_of_a_sure_classifier(score):
    outputs = ModelOutputs(logits=[[0.0, -40.0], [0.0, -42.0]])
    lowest = with_scale(MarginScore() if isinstance(score, MarginScore) else SAPS(lam=0.0), "tail")
    worst = lowest.matrix(outputs)[:, 1]
    # What is left of 1 - p_(1), which the raw scale rounds to 0.
    np.testing.assert_allclose(worst, [40.0, 42.0], rtol=1e-12)
    assert (with_scale(score, "tail").matrix(outputs)[:, 0] < worst).all()


def test_the_top_score_ties_exactly_with_the_own_mass_excluded(make_outputs):
    outputs = make_outputs(400, 5)
    for score in (SAPS(scale="tail"), TopK(scale="tail")):
        assert (score.matrix(outputs).min(axis=1) == 0.0).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: APS(scale="log"), "scale must be"),
        (lambda: APS(own_mass="half"), "own_mass must be"),
        (lambda: APS().matrix(np.zeros((2, 2))), "outputs must be ModelOutputs"),
        (lambda: APS().of_labels(ModelOutputs(logits=[[1.0]])), "needs labels"),
        (lambda: APS(own_mass="random").matrix(ModelOutputs(logits=[[1.0]])), "needs draws"),
    ],
)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_rounding_of_alpha_does_not_raise_the_rank():
    assert conformal_rank(9, 1.0 - 0.9) == conformal_rank(9, 0.1) == 9
    assert [conformal_rank(n, 1.0 / 3.0) for n in (2, 5, 8)] == [2, 4, 6]


def test_rank_is_exact_for_every_two_digit_alpha():
    for hundredths in range(1, 100):
        for n in range(1, 400):
            exact = math.ceil((n + 1) * Fraction(100 - hundredths, 100))
            assert conformal_rank(n, hundredths / 100) == exact, (n, hundredths)
