"""Atypicality: how unlikely the features are under the training data.

Unlike the other statistics it carries numbers fitted on training features.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Self, final

import numpy as np

from trustsets._common.arrays import Array, Codes, Floats, column, floating_matrix, read_only
from trustsets._common.blocks import row_numbers
from trustsets._common.storage import require, require_numbers, storable
from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs
from trustsets.statistics.statistic import Statistic, Transform

# Eigenvalues of the covariance below this fraction of the largest are rounding noise of
# directions that the training features do not use (SciPy's rule for singular covariances).
RANK_TOLERANCE = 1e6 * float(np.finfo(np.float64).eps)
# Training rows worked on at a time.
FIT_ROWS = 8192


@final
@storable
@dataclass(frozen=True, eq=False)
class Atypicality(Statistic):
    r"""Negative log density of the features under the class that makes it largest.

    Each class has a Gaussian density with its own mean :math:`\mu_c`; the covariance
    :math:`\Sigma` is common to all. Both are fitted on training features by maximum likelihood.

    .. math:: a(x) = -\max_c \log N(x; \mu_c, \Sigma) = \tfrac12 \big( r \log 2\pi +
        \log\det\Sigma + \min_c \|W'(x - \mu_c)\|^2 \big), \qquad W W' = \Sigma^{-1}.

    Where the covariance is singular (fewer samples than dimensions, or constant features), the
    density is that on the r-dimensional span of the training deviations from the class means;
    directions outside of it are ignored. Use `Atypicality.from_training` to make one.

    Parameters
    ----------
    transform : {"raw", "rank"}
        See `Statistic`; there is no ``"log"``, because the value may be negative.
    mean : array of shape (d,)
        Mean of the class means; subtracted first, so that no digits are lost.
    whitening : array of shape (d, r)
        W.
    centres : array of shape (C, r)
        Class means, centred and whitened.
    log_scale : float
        ``r log 2 pi + log det Sigma``.

    References
    ----------
    M. Yuksekgonul, L. Zhang, J. Zou and C. Guestrin. Beyond confidence: reliable models
    should also consider atypicality. NeurIPS 2023 (section 2.1).

    Examples
    --------
    >>> from trustsets.outputs import ModelOutputs
    >>> train = [[-1.0], [1.0], [9.0], [11.0]]  # means 0 and 10, variance 1
    >>> atypicality = Atypicality.from_training(train, ["cat", "cat", "dog", "dog"])
    >>> outputs = ModelOutputs(logits=[[0.0, 1.0]] * 3, features=[[0.0], [10.0], [5.0]])
    >>> atypicality.measure(outputs).round(4)  # log(2 pi) / 2, twice, and 12.5 more
    array([ 0.9189,  0.9189, 13.4189])
    """

    name = "Atypicality"

    mean: Floats = field(default_factory=lambda: np.empty(0), repr=False)
    whitening: Floats = field(default_factory=lambda: np.empty((0, 0)), repr=False)
    centres: Floats = field(default_factory=lambda: np.empty((0, 0)), repr=False)
    log_scale: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.transform == "log":
            raise InputError(
                'transform="log" needs positive values, and Atypicality may be negative; '
                'use "raw" or "rank".'
            )
        if self.centres.size == 0:
            raise InputError(
                "Atypicality is not fitted; make it with "
                "Atypicality.from_training(features, labels)."
            )
        for name in ("mean", "whitening", "centres"):
            object.__setattr__(self, name, read_only(getattr(self, name)))

    def check_state(self) -> None:
        """Refuse arrays that no fit gives."""
        width = self.whitening.shape[-1] if self.whitening.ndim == 2 else 0
        require_numbers(self.mean, "Atypicality.mean", None)
        require_numbers(self.whitening, "Atypicality.whitening", self.mean.size, width)
        require_numbers(self.centres, "Atypicality.centres", None, width)
        require(np.isfinite(self.log_scale), "Atypicality.log_scale", "must be finite")

    @classmethod
    def from_training(cls, features: Any, labels: Any, *, transform: Transform = "raw") -> Self:
        """Fit the Gaussians.

        Parameters
        ----------
        features : array of shape (n, d)
            Features of training samples, of the layer that `ModelOutputs` will hold.
        labels : array of shape (n,)
            Their classes, of any sortable type.
        transform : {"raw", "rank"}
            See `Statistic`.
        """
        matrix = floating_matrix(features, "features")
        names, codes = np.unique(column(labels, "labels", len(matrix)), return_inverse=True)
        means = _class_means(matrix, codes, names.size)
        values, vectors = np.linalg.eigh(_covariance(matrix, codes, means))
        used = values > RANK_TOLERANCE * values[-1]
        if not used.any():
            raise InputError(
                "features do not vary within any class, so they have no density; "
                "pass several different training samples of at least one class."
            )
        whitening = vectors[:, used] / np.sqrt(values[used])
        mean = means.mean(axis=0)
        return cls(
            transform,
            mean,
            whitening,
            (means - mean) @ whitening,
            float(np.count_nonzero(used) * np.log(2.0 * np.pi) + np.log(values[used]).sum()),
        )

    def measure(self, outputs: ModelOutputs) -> Floats:
        """Return the negative log density of each sample."""
        features = outputs.features
        if features is None:
            raise InputError("Atypicality needs features; pass features= to ModelOutputs.")
        if features.shape[1] != self.mean.size:
            raise InputError(
                f"features have dimension {features.shape[1]}, but Atypicality was fitted on "
                f"{self.mean.size}. Pass features of the same layer of the same model."
            )

        def measured(block: slice) -> Floats:
            white = (features[block].astype(np.float64) - self.mean) @ self.whitening
            # The nearest centre by |z - c|^2 = |z|^2 - 2 z'c + |c|^2; the square is then computed
            # again, without the cancellation of this form.
            far = (self.centres * self.centres).sum(axis=1) - 2.0 * (white @ self.centres.T)
            gaps = white - self.centres[far.argmin(axis=1)]
            return np.asarray(0.5 * (self.log_scale + (gaps * gaps).sum(axis=1)))

        return row_numbers(measured, len(features), features.shape[1] + len(self.centres))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Atypicality) and all(
            np.array_equal(getattr(self, own.name), getattr(other, own.name))
            for own in fields(self)
        )

    def __hash__(self) -> int:
        return hash((self.transform, self.log_scale, self.centres.shape))


def _class_means(features: Array, codes: Codes, n_classes: int) -> Floats:
    """Mean of each class."""
    from scipy.sparse import csr_array

    sums = np.zeros((n_classes, features.shape[1]))
    for block in _fit_blocks(len(features)):
        own = codes[block]
        member = csr_array((np.ones(own.size), (own, np.arange(own.size))), (n_classes, own.size))
        sums += member @ features[block].astype(np.float64)
    return np.asarray(sums / np.bincount(codes, minlength=n_classes)[:, None])


def _covariance(features: Array, codes: Codes, means: Floats) -> Floats:
    """Mean outer product of the deviations from the class means."""
    total = np.zeros((features.shape[1], features.shape[1]))
    for block in _fit_blocks(len(features)):
        gaps = features[block].astype(np.float64) - means[codes[block]]
        total += gaps.T @ gaps
    return total / len(features)


def _fit_blocks(n: int) -> Iterator[slice]:
    """Blocks of rows: no float64 copy of all features, and few passes over the covariance."""
    return (slice(start, start + FIT_ROWS) for start in range(0, n, FIT_ROWS))
