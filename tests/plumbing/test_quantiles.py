import math
from fractions import Fraction

import numpy as np

from trustsets._parameters import check_alpha, check_alphas
from trustsets.scores import conformal_quantile, conformal_rank


def test_rank_is_exact_for_every_two_digit_alpha():
    for hundredths in range(1, 100):
        for n in range(1, 400):
            exact = math.ceil((n + 1) * Fraction(100 - hundredths, 100))
            assert conformal_rank(n, hundredths / 100) == exact, (n, hundredths)


def test_quantile_past_n_is_infinite():
    scores = np.arange(8.0)
    assert conformal_quantile(scores, 0.1) == np.inf
    assert conformal_quantile(np.arange(9.0), 0.1) == 8.0
    assert conformal_quantile(np.empty(0), 0.5) == np.inf


def test_single_precision_alpha_means_its_decimal():
    assert check_alpha(np.float32(0.1)) == 0.1
    assert check_alphas(np.array([0.1, 0.2])) == ((0.1, 0.2), False)
    assert check_alphas(0.3) == ((0.3,), True)
