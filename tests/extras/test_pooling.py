"""Policies against loops over single tokens, for NumPy and torch alike."""

import numpy as np
import pytest
import torch

from trustsets import InputError
from trustsets.extras.pooling import check_policy, one_vector

KINDS = {"numpy": np.asarray, "torch": torch.as_tensor}


def tokens(seed=0, n=6, length=7, d=3):
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(n, length, d)).astype(np.float32)
    mask = np.zeros((n, length), dtype=np.int64)
    for row in range(n):
        start, stop = sorted(rng.choice(length + 1, size=2, replace=False))
        mask[row, start:stop] = 1  # padding on both sides
    values[mask == 0] = np.nan
    return values, mask


def slow(values, mask, policy):
    rows = []
    for own, used in zip(values, mask, strict=True):
        kept = own[used == 1].astype(np.float64)
        rows.append({"cls": kept[0], "last token": kept[-1], "mean": kept.mean(axis=0)}[policy])
    return np.array(rows)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("policy", ["cls", "mean", "last token"])
def test_token_policies_never_look_at_padding(policy, kind):
    for seed in range(5):
        values, mask = tokens(seed)
        for own in (mask, mask.astype(bool), mask.astype(np.float32)):
            found = one_vector(KINDS[kind](values), policy, 6, KINDS[kind](own))
            np.testing.assert_allclose(found, slow(values, mask, policy), rtol=1e-5, atol=1e-6)
    assert np.isnan(values).any()  # the caller's values are left alone


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_mask_all_tokens_count(kind):
    values = KINDS[kind](np.arange(24.0).reshape(2, 4, 3))
    for policy, expected in [
        ("cls", values[:, 0]),
        ("last token", values[:, 3]),
        ("mean", values.mean(1)),
        ("flatten", values.reshape(2, 12)),
        (lambda own: own[:, 2], values[:, 2]),
    ]:
        np.testing.assert_array_equal(one_vector(values, policy, 2), expected)
    maps = KINDS[kind](np.arange(48.0).reshape(2, 3, 2, 4))
    np.testing.assert_array_equal(one_vector(maps, "pool", 2), maps.reshape(2, 3, 8).mean(2))


def test_half_precision_means_do_not_overflow():
    values = torch.full((1, 1000, 2), 200.0, dtype=torch.float16)
    mask = torch.ones(1, 1000)
    np.testing.assert_allclose(one_vector(values, "mean", 1, mask), 200.0, rtol=5e-3)


def test_one_vector_already_is_kept():
    flat = np.eye(3)
    for values in (flat, flat[:, :, None], flat[:, :, None, None]):
        np.testing.assert_array_equal(one_vector(values, None, 3), flat)


@pytest.mark.parametrize(
    ("shape", "features", "mask", "words"),
    [
        ((2, 5, 3), None, None, r'"cls" .* "mean" or "last token" .* "pool" .* "flatten"'),
        ((2, 1, 3), None, None, "several vectors a sample"),
        (
            (2, 5),
            "mean",
            None,
            r"needs values of shape \(n, tokens, d\); these have shape \(2, 5\)",
        ),
        ((2, 5, 3), "pool", None, 'use features="mean"'),
        ((2, 5), "pool", None, "feature map"),
        ((3, 5), None, None, "must be one array with 2 rows"),
        ((2, 5, 3), "mean", np.ones((2, 4)), r"mask has shape \(2, 4\)"),
        ((2, 5, 3), "cls", np.zeros((2, 5)), "mask of zeros alone"),
        ((2, 5, 3), lambda values: None, None, "got NoneType"),
    ],
)
def test_what_does_not_fit_is_named(shape, features, mask, words):
    with pytest.raises(InputError, match=words):
        one_vector(np.ones(shape), features, 2, mask)


@pytest.mark.parametrize("wrong", ["avg", "CLS", 3, "last_token"])
def test_unknown_policies_are_named(wrong):
    with pytest.raises(InputError, match="'cls', 'mean', 'last token', 'pool'"):
        check_policy(wrong)
