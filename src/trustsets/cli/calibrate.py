"""``trustsets calibrate``: labelled outputs to a saved predictor."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from trustsets.cli import console
from trustsets.cli.options import (
    DATA,
    Classes,
    Groups,
    LabelColumn,
    LabelledOutputs,
    Seed,
    TableOptions,
    option,
    resolved,
)

if TYPE_CHECKING:
    from trustsets.files.calibration import Adaptation, Recipe

__all__ = ["calibrate"]

Method = Literal["conditional", "standard", "bins", "groups", "class", "clustered"]
ScoreName = Literal["aps", "raps", "saps", "topk", "softmax", "margin"]
# Typer takes no lists of literals.
BasisName = StrEnum("BasisName", ["polynomial", "bins", "groups", "components", "intercept"])
StatisticName = StrEnum("StatisticName", ["confidence", "trust", "entropy", "margin"])
_METHOD, _SCORE, _ADAPT = "Method", "Score", "Another population"


@dataclass(frozen=True)
class RecipeOptions:
    """Options that say which predictor is made."""

    group: Groups = None
    tuning_fraction: Annotated[
        float | None,
        option("SHARE", "Share of OUTPUTS to tune on, if there is anything to tune.", panel=DATA),
    ] = None
    method: Annotated[
        Method,
        option(
            "METHOD",
            "How thresholds are set: conditional, standard, bins, groups, class or clustered.",
            panel=_METHOD,
        ),
    ] = "conditional"
    basis: Annotated[
        list[BasisName] | None,
        option(
            "BASIS",
            "Function class of 'conditional': polynomial, bins, groups, "
            "components or intercept. Several are added up. Default: 'conditional' chooses on "
            "the tuning samples.",
            panel=_METHOD,
        ),
    ] = None
    degree: Annotated[
        int | None,
        option(
            "N",
            "Degree of the polynomial. Default: 5 if --basis, --statistic or --transform is given.",
            min=0,
            panel=_METHOD,
        ),
    ] = None
    penalty: Annotated[
        float | None,
        option(
            "NUMBER",
            "What coefficients of degree 2 or more cost in the polynomial's fit. Default: 0.",
            min=0.0,
            panel=_METHOD,
        ),
    ] = None
    components: Annotated[
        int, option("N", "Number of principal components.", min=1, panel=_METHOD)
    ] = 20
    statistic: Annotated[
        list[StatisticName] | None,
        option(
            "NAME",
            "What polynomial and bins are functions of: confidence, trust, entropy or "
            "margin; may be given again. Default: confidence and trust.",
            panel=_METHOD,
        ),
    ] = None
    transform: Annotated[
        Literal["rank", "log", "raw"] | None,
        option(
            "NAME",
            "How the polynomial transforms a statistic: rank (default), log or raw.",
            panel=_METHOD,
        ),
    ] = None
    per_class: Annotated[
        bool | None,
        option(
            None,
            "Whether 'conditional' covers each class, rare ones too, jointly with its function "
            "class; sets are larger. Default: auto.",
            "--per-class/--no-per-class",
            panel=_METHOD,
        ),
    ] = None
    randomized: Annotated[
        bool,
        option(
            None,
            "Random thresholds for 'conditional'; with --allow-empty, coverage is exact.",
            "--randomized",
            panel=_METHOD,
        ),
    ] = False
    paper: Annotated[
        bool,
        option(
            None,
            "The paper's own setting of 'conditional' or 'bins' (called NAIVE there).",
            "--paper",
            panel=_METHOD,
        ),
    ] = False
    score: Annotated[
        ScoreName | None,
        option("SCORE", "aps (default), raps, saps, topk, softmax or margin.", panel=_SCORE),
    ] = None
    scale: Annotated[
        Literal["raw", "tail"] | None,
        option(
            "SCALE",
            "raw or tail. Default: tail for 'conditional', else raw.",
            panel=_SCORE,
        ),
    ] = None
    own_mass: Annotated[
        Literal["exclude", "include", "random"] | None,
        option(
            "HOW",
            "Mass of the label itself in aps, raps, saps and topk: exclude (default), include or "
            "random.",
            panel=_SCORE,
        ),
    ] = None
    lam: Annotated[
        float | None,
        option(
            "NUMBER",
            "What a rank adds to raps (default 0.01) and saps (default 0.2).",
            min=0.0,
            panel=_SCORE,
        ),
    ] = None
    temperature: Annotated[
        str | None,
        option(
            "T",
            "Divide the logits by this number; 'tuning' finds the best one on the tuning samples.",
            panel=_SCORE,
        ),
    ] = None
    prevalence: Annotated[
        float | None,
        option(
            "POWER",
            "Divide probabilities by this power of the class shares, which are counted on the "
            "tuning samples: 0 learns class biases alone, 1 makes rare classes count as much as "
            "others.",
            min=0.0,
            max=10.0,
            panel=_SCORE,
        ),
    ] = None
    allow_empty: Annotated[
        bool, option(None, "Sets may lack the most likely class.", "--allow-empty", panel=_SCORE)
    ] = False
    seed: Seed = 0

    def recipe(self) -> "Recipe":
        """What `trustsets.files.calibration` takes."""
        from trustsets.files.calibration import Recipe

        chosen = dict(vars(self))
        chosen["groups"] = tuple(chosen.pop("group") or ())
        chosen["statistics"] = tuple(map(str, chosen.pop("statistic") or ()))
        chosen["basis"] = tuple(map(str, self.basis or ()))
        chosen["temperature"] = _temperature(self.temperature)
        return Recipe(**chosen)


@dataclass(frozen=True)
class AdaptOptions:
    """Options that say which other population the predictor is for."""

    adapt: Annotated[
        Path | None,
        option("FILE", "Outputs of the samples to predict, without labels.", panel=_ADAPT),
    ] = None
    shift: Annotated[
        Literal["label", "covariate"],
        option(
            "WHAT",
            "What is different: the shares of the classes (label), or the inputs (covariate).",
            panel=_ADAPT,
        ),
    ] = "label"
    of: Annotated[
        Literal["statistics", "features"],
        option(
            "WHAT",
            "What tells other inputs apart: statistics (confidence, trust and those of the method) "
            "or features.",
            panel=_ADAPT,
        ),
    ] = "statistics"

    def adaptation(self) -> "Adaptation | None":
        """What `trustsets.files.calibration` takes."""
        from trustsets.errors import InputError
        from trustsets.files.calibration import Adaptation

        if self.adapt is not None:
            return Adaptation(self.adapt, self.shift, self.of)
        if (self.shift, self.of) != ("label", "statistics"):
            raise InputError(
                "--shift and --of say how the samples of --adapt differ, and there is no --adapt; "
                "name their file with --adapt FILE."
            )
        return None


Output = Annotated[Path, option("MODEL", "Where to save it (.trustsets).", "--output", "-o")]
Train = Annotated[
    Path | None,
    option("FILE", "Features and labels of the training data, for the trust score.", panel=DATA),
]
Tuning = Annotated[
    Path | None,
    option("FILE", "Other labelled outputs to tune on, instead of a part of OUTPUTS.", panel=DATA),
]
Neighbour = Annotated[
    int,
    option(
        "N",
        "The trust score measures the distance to the N-th nearest neighbour of a class.",
        min=1,
        panel=_METHOD,
    ),
]


def calibrate(
    context: typer.Context,
    outputs: LabelledOutputs,
    output: Output,
    train: Train = None,
    tuning: Tuning = None,
    classes: Classes = None,
    neighbour: Neighbour = 1,
    label_column: LabelColumn = None,
    *,
    options: RecipeOptions,
    population: AdaptOptions,
    table: TableOptions,
) -> None:
    """Learn thresholds from labelled samples the classifier was not trained on.

    OUTPUTS holds the arrays 'logits' (or 'probabilities'), 'labels', for the
    trust score 'features' (the layer before the last), and, if you like,
    'classes' (their names) and groups called 'group_NAME'. In a table, such as
    a .csv file, each class has a column: 'prob_cat', 'prob_dog'. The allowed
    miscoverage alpha is chosen later, when predicting.

    Example:

      trustsets calibrate held_out.npz --train train.npz -o model.trustsets
    """
    from trustsets.files.calibration import calibrate_file

    record = resolved(context)
    predictor = calibrate_file(
        outputs,
        output,
        options.recipe(),
        train=train,
        tuning=tuning,
        classes=classes,
        neighbour=neighbour,
        adaptation=population.adaptation(),
        columns=table.columns(label_column),
        record=record,
    )
    _show(predictor, record, output)


def _show(predictor: Any, record: dict[str, Any], output: Path) -> None:
    """Say what was learned and where it is."""
    state, summary = predictor.state_, predictor.summary()
    result = record | {"output": str(output), "n": state.n, "n_tuning": state.n_tuning}
    result |= {"n_classes": state.classes.size, "temperature": state.temperature}
    console.conclude(result | {"summary": summary}, *summary.split("\n"), f"Saved to {output}.")


def _temperature(text: str | None) -> float | str | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return text
