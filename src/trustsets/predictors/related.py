"""Methods of the paper's related work that are made of parts of the other predictors.

Clustered classes (`clustered.py`) and oracle sets (`oracle.py`) have files of their own.
"""

from dataclasses import KW_ONLY, dataclass
from typing import Any, final

from trustsets._common.storage import storable
from trustsets.basis import Basis, Bins, Polynomial
from trustsets.errors import InputError
from trustsets.outputs import ModelOutputs
from trustsets.predictors.base import Predictor
from trustsets.predictors.calibrated import Calibrated, Learned, Scoring, Task
from trustsets.predictors.conditional import tuned_by
from trustsets.predictors.conditional_fit import ConditionalLearned
from trustsets.predictors.mondrian import MondrianConformal
from trustsets.predictors.thresholds import SampleThresholds, side_by_side
from trustsets.predictors.tuning import Method
from trustsets.recalibration import ClassBias, TemperatureScaling
from trustsets.scores import APS, Score
from trustsets.statistics import Atypicality, Confidence, SupportsTrust, Trust

__all__ = ["PluginConformal", "atypicality_groups"]


@final
@storable
@dataclass(eq=False, repr=False)
class PluginConformal(Predictor):
    """Quantile regression of the scores, its fit plugged in as the threshold (BatchGCP).

    With basis phi, calibration scores s_i and pinball loss l of the 1 - alpha quantile,

        beta = argmin_b  sum_i l(s_i - phi(x_i)' b)        S(x) = phi(x)' beta.

    This is `ConditionalConformal` with weight u = 0 on the new sample: no score is imputed
    for it, all samples share one fit, and no set is full for lack of data. In return, there
    is **no finite-sample guarantee**. With p basis functions and scores without ties,
    coverage is lower than 1 - alpha by about (1/2 - alpha) p / n, and tends to it as n grows.
    This is an approximation; measured with n = 200, p = 6: 0.012 (0.012 expected) at alpha =
    0.1 and 0.009 (0.009) at 0.2, standard error 0.001. A sample that uses a direction of the
    function class that no calibration sample has gets a full set.

    Parameters
    ----------
    score : Score
        Default ``APS(scale="tail")``; see `Score` for the scale.
    basis : Basis
        Function class. Default: polynomials of degree 5 in the ranks of Conf and Trust. The
        publication uses indicators of overlapping groups: ``Groups()``.
    trust : TrustScore, optional
        Fitted trust score; needed where the basis depends on Trust.
    temperature, class_bias, allow_empty, tuning_fraction, random_state
        As in `StandardConformal`.

    References
    ----------
    C. Jung, G. Noarov, R. Ramalingam and A. Roth. Batch multivalid conformal prediction.
    ICLR 2023 (Algorithm 1, BatchGCP).

    Examples
    --------
    >>> import numpy as np
    >>> from trustsets import Intercept, ModelOutputs
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(2000, 5))
    >>> labels = (logits + rng.gumbel(size=(2000, 5))).argmax(axis=1)
    >>> calibration, test = ModelOutputs(logits=logits, labels=labels).split(0.5)
    >>> predictor = PluginConformal(basis=Intercept()).calibrate(calibration)
    >>> sets = predictor.predict_set(test, alpha=0.1)
    >>> own = np.sort(APS(scale="tail").of_labels(calibration))
    >>> bool(sets.thresholds[0] == own[899])  # 900th of 1000; split conformal takes the 901st
    True
    """

    score: Score = APS(scale="tail")
    basis: Basis = Polynomial(degree=5, of=(Confidence(transform="rank"), Trust(transform="rank")))
    trust: SupportsTrust | None = None
    _: KW_ONLY
    temperature: float | TemperatureScaling | str | None = None
    class_bias: ClassBias | str | None = None
    allow_empty: bool = False
    tuning_fraction: float = 0.2
    random_state: Any = 0

    def _method(self) -> Method:
        return Method(tuned_by(self.basis), self.class_bias)

    def _learn(self, task: Task) -> ConditionalLearned:
        learned = ConditionalLearned.of(self.basis, task)
        if learned.basis.uses_label:
            raise InputError(
                "PluginConformal needs basis functions of the sample alone; leave out those of the "
                "label, or use ConditionalConformal."
            )
        return learned

    def _could_learn(self, learned: Learned) -> bool:
        return isinstance(learned, ConditionalLearned) and learned.could_come_from(self.basis)

    def _thresholds(
        self,
        learned: ConditionalLearned,
        outputs: ModelOutputs,
        alphas: tuple[float, ...],
        scoring: Scoring,
    ) -> SampleThresholds:
        phi = learned.basis.design(outputs)
        found = [learned.fit(alpha).thresholds(phi, weight=0.0) for alpha in alphas]
        return side_by_side([(own.values, own.status) for own in found], alphas)

    def _guarantee(self, state: Calibrated) -> str:
        learned: Any = state.learned
        return (
            "none in finite samples. Where scores have no ties, coverage is lower than 1 - alpha "
            f"by about (1/2 - alpha) p / n, here (1/2 - alpha) {learned.phi.shape[1]} / "
            f"{state.n:,}."
        )


def atypicality_groups(
    atypicality: Atypicality, *, groups: int = 6, **parameters: Any
) -> MondrianConformal:
    """Atypicality-aware conformal prediction: thresholds by confidence and atypicality.

    Confidence and atypicality are each divided at their quantiles into `groups` bins, and each
    of the ``groups * groups`` cells gets a threshold of its own. The publication takes the plain
    quantile of a cell; `MondrianConformal` takes the finite-sample one and learns the edges
    from the tuning part, which guarantees coverage in every cell.

    Parameters
    ----------
    atypicality : Atypicality
        Fitted on training features, see `Atypicality.from_training`.
    groups : int
        Bins of each of the two statistics. With 6 (default), a cell has about n / 36
        calibration samples. Its sets are full if it has fewer than 9 (at alpha = 0.1).
    **parameters
        Further parameters of `MondrianConformal`, such as `score`.

    References
    ----------
    M. Yuksekgonul, L. Zhang, J. Zou and C. Guestrin. Beyond confidence: reliable models
    should also consider atypicality. NeurIPS 2023 (section 5, AA-APS and AA-RAPS).

    Examples
    --------
    >>> import numpy as np
    >>> from trustsets import ModelOutputs, Softmax
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.integers(3, size=3000)
    >>> features = 2.0 * np.eye(3)[labels] + rng.normal(size=(3000, 3))
    >>> atypicality = Atypicality.from_training(features[:1000], labels[:1000])
    >>> outputs = ModelOutputs(logits=features[1000:], features=features[1000:],
    ...                        labels=labels[1000:])
    >>> calibration, test = outputs.split(0.5)
    >>> predictor = atypicality_groups(atypicality, groups=3, score=Softmax())
    >>> predictor = predictor.calibrate(calibration)
    >>> len(np.unique(predictor.predict_set(test, alpha=0.1).thresholds))
    9
    """
    if not isinstance(atypicality, Atypicality):
        raise InputError(
            f"atypicality must be a fitted Atypicality; got {type(atypicality).__name__}. "
            "Make one with Atypicality.from_training(features, labels)."
        )
    if isinstance(groups, bool) or groups != int(groups) or groups < 1:
        raise InputError(f"groups must be a whole number of at least 1; got {groups!r}.")
    # Not nested: the published edges are quantiles of each statistic over all samples.
    cells = Bins(
        of=(Confidence(), atypicality),
        counts=(int(groups), int(groups)),
        spacing=("quantile", "quantile"),
        nested=False,
    )
    return MondrianConformal(by=cells, **parameters)
