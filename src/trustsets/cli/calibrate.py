"""``trustsets calibrate``: labelled outputs to a saved predictor."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from trustsets.cli import console
from trustsets.cli.options import LabelledOutputs, Seed, resolved

if TYPE_CHECKING:
    from trustsets.files.calibration import Recipe

__all__ = ["calibrate"]

Method = Literal["conditional", "standard", "bins", "groups", "class", "plugin", "clustered"]
ScoreName = Literal["aps", "raps", "softmax"]
# Typer takes no lists of literals.
BasisName = StrEnum("BasisName", ["polynomial", "bins", "groups", "components", "intercept"])
StatisticName = StrEnum("StatisticName", ["confidence", "trust", "entropy", "margin"])
_DATA, _METHOD, _SCORE = "Data", "Method", "Score"


@dataclass(frozen=True)
class RecipeOptions:
    """Options that say which predictor is made."""

    group: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=_DATA,
            help="An array that holds groups; may be given again.",
        ),
    ] = None
    tuning_fraction: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            rich_help_panel=_DATA,
            help="Share of OUTPUTS to tune on, if there is anything to tune.",
        ),
    ] = None
    method: Annotated[
        Method,
        typer.Option(
            metavar="METHOD",
            rich_help_panel=_METHOD,
            help="How thresholds are set: conditional, standard, bins, groups, class, plugin or "
            "clustered.",
        ),
    ] = "conditional"
    basis: Annotated[
        list[BasisName] | None,
        typer.Option(
            metavar="BASIS",
            rich_help_panel=_METHOD,
            help="Function class of 'conditional' and 'plugin': polynomial, bins, groups, "
            "components or intercept. Several are added up. Default: 'conditional' chooses on "
            "the tuning samples.",
        ),
    ] = None
    degree: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            rich_help_panel=_METHOD,
            help="Degree of the polynomial. Default: 5 if --basis, --statistic or --transform is "
            "given.",
        ),
    ] = None
    components: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", rich_help_panel=_METHOD, help="Number of principal components."
        ),
    ] = 20
    statistic: Annotated[
        list[StatisticName] | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=_METHOD,
            help="What polynomial and bins are functions of: confidence, trust, entropy or "
            "margin; may be given again. Default: confidence and trust.",
        ),
    ] = None
    transform: Annotated[
        Literal["rank", "log", "raw"] | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=_METHOD,
            help="How the polynomial transforms a statistic: rank (default), log or raw.",
        ),
    ] = None
    randomized: Annotated[
        bool,
        typer.Option(
            "--randomized",
            rich_help_panel=_METHOD,
            help="Random thresholds for 'conditional'; with --allow-empty, coverage is exact.",
        ),
    ] = False
    paper: Annotated[
        bool,
        typer.Option(
            "--paper",
            rich_help_panel=_METHOD,
            help="The paper's own setting of 'conditional' or 'bins' (called NAIVE there).",
        ),
    ] = False
    score: Annotated[
        ScoreName | None,
        typer.Option(
            metavar="SCORE", rich_help_panel=_SCORE, help="aps (default), raps or softmax."
        ),
    ] = None
    scale: Annotated[
        Literal["raw", "tail"] | None,
        typer.Option(
            metavar="SCALE",
            rich_help_panel=_SCORE,
            help="raw or tail. Default: tail for 'conditional' and 'plugin', else raw.",
        ),
    ] = None
    own_mass: Annotated[
        Literal["exclude", "include", "random"] | None,
        typer.Option(
            metavar="HOW",
            rich_help_panel=_SCORE,
            help="Mass of the label itself in aps and raps: exclude (default), include or random.",
        ),
    ] = None
    temperature: Annotated[
        str | None,
        typer.Option(
            metavar="T",
            rich_help_panel=_SCORE,
            help="Divide the logits by this number; 'tuning' finds the best one on the tuning "
            "samples.",
        ),
    ] = None
    allow_empty: Annotated[
        bool,
        typer.Option(
            "--allow-empty", rich_help_panel=_SCORE, help="Sets may lack the most likely class."
        ),
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


Output = Annotated[
    Path,
    typer.Option("--output", "-o", metavar="MODEL", help="Where to save it (.trustsets)."),
]
Train = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=_DATA,
        help="Features and labels of the training data, for the trust score.",
    ),
]
Tuning = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=_DATA,
        help="Other labelled outputs to tune on, instead of a part of OUTPUTS.",
    ),
]
Classes = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        rich_help_panel=_DATA,
        help="Class names: a text file, or a file with an array 'classes'.",
    ),
]
Neighbour = Annotated[
    int,
    typer.Option(
        min=1,
        metavar="N",
        rich_help_panel=_METHOD,
        help="The trust score measures the distance to the N-th nearest neighbour of a class.",
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
    *,
    options: RecipeOptions,
) -> None:
    """Learn thresholds from labelled samples the classifier was not trained on.

    OUTPUTS holds the arrays 'logits' (or 'probabilities'), 'labels', for the
    trust score 'features' (the layer before the last), and, if you like,
    'classes' (their names) and groups called 'group_NAME'. The allowed
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
        record=record,
    )
    _show(predictor, record, output)


def _show(predictor: Any, record: dict[str, Any], output: Path) -> None:
    """Say what was learned and where it is."""
    if console.settings.json:
        state = predictor.state_
        console.print_json(
            record
            | {"output": str(output), "n": state.n, "n_tuning": state.n_tuning}
            | {"n_classes": state.classes.size, "temperature": state.temperature}
            | {"summary": predictor.summary()}
        )
        return
    console.say(*predictor.summary().split("\n"), f"Saved to {output}.")


def _temperature(text: str | None) -> float | str | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return text
