"""``trustsets calibrate``: labelled outputs to a saved predictor."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from trustsets.cli import console
from trustsets.cli.options import Config, Debug, Json, LabelledOutputs, Quiet, Seed, resolved

__all__ = ["calibrate"]


class Method(StrEnum):
    """Ways to set thresholds."""

    CONDITIONAL = "conditional"
    STANDARD = "standard"
    BINS = "bins"
    GROUPS = "groups"
    CLASS = "class"
    PLUGIN = "plugin"
    CLUSTERED = "clustered"


class ScoreName(StrEnum):
    """Conformity scores."""

    APS = "aps"
    RAPS = "raps"
    SOFTMAX = "softmax"


class Scale(StrEnum):
    """Scales of a score."""

    RAW = "raw"
    TAIL = "tail"


class OwnMass(StrEnum):
    """Share of the label's own mass in APS and RAPS."""

    EXCLUDE = "exclude"
    INCLUDE = "include"
    RANDOM = "random"


class BasisName(StrEnum):
    """Function classes."""

    POLYNOMIAL = "polynomial"
    BINS = "bins"
    GROUPS = "groups"
    COMPONENTS = "components"
    INTERCEPT = "intercept"


class StatisticName(StrEnum):
    """What coverage is conditioned on."""

    CONFIDENCE = "confidence"
    TRUST = "trust"
    ENTROPY = "entropy"
    MARGIN = "margin"


class Transform(StrEnum):
    """How a polynomial takes a statistic."""

    RANK = "rank"
    LOG = "log"
    RAW = "raw"


_DATA, _METHOD, _SCORE = "Data", "Method", "Score"


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
Group = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        rich_help_panel=_DATA,
        help="An array that holds groups; may be given again.",
    ),
]
MethodChoice = Annotated[
    Method,
    typer.Option(
        metavar="METHOD",
        rich_help_panel=_METHOD,
        help="How thresholds are set: conditional, standard, bins, groups, class, plugin or "
        "clustered.",
    ),
]
Basis = Annotated[
    list[BasisName] | None,
    typer.Option(
        metavar="BASIS",
        rich_help_panel=_METHOD,
        help="Function class of 'conditional' and 'plugin': polynomial, bins, groups, components "
        "or intercept; given again, they add up. Default: for 'conditional', chosen on the tuning "
        "part.",
    ),
]
Degree = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        rich_help_panel=_METHOD,
        help="Degree of a polynomial of your own; 5 if its basis or statistic is given alone.",
    ),
]
Components = Annotated[
    int,
    typer.Option(
        min=1, metavar="N", rich_help_panel=_METHOD, help="Number of principal components."
    ),
]
Statistic = Annotated[
    list[StatisticName] | None,
    typer.Option(
        metavar="NAME",
        rich_help_panel=_METHOD,
        help="What polynomial and bins look at: confidence, trust, entropy or margin; may be "
        "given again. Default: confidence and trust.",
    ),
]
TransformChoice = Annotated[
    Transform | None,
    typer.Option(
        metavar="NAME",
        rich_help_panel=_METHOD,
        help="How a polynomial of your own takes a statistic: rank (default), log or raw.",
    ),
]
Neighbour = Annotated[
    int,
    typer.Option(
        min=1,
        metavar="N",
        rich_help_panel=_METHOD,
        help="Which nearest neighbour the trust score looks at.",
    ),
]
Randomized = Annotated[
    bool,
    typer.Option(
        "--randomized",
        rich_help_panel=_METHOD,
        help="'conditional' with random thresholds: exact coverage, with --allow-empty.",
    ),
]
Paper = Annotated[
    bool,
    typer.Option(
        "--paper",
        rich_help_panel=_METHOD,
        help="The paper's own setting of 'conditional' or 'bins' (there NAIVE).",
    ),
]
Score = Annotated[
    ScoreName | None,
    typer.Option(metavar="SCORE", rich_help_panel=_SCORE, help="aps (default), raps or softmax."),
]
ScaleChoice = Annotated[
    Scale | None,
    typer.Option(
        metavar="SCALE",
        rich_help_panel=_SCORE,
        help="raw or tail. Default: tail for 'conditional' and 'plugin', else raw.",
    ),
]
OwnMassChoice = Annotated[
    OwnMass | None,
    typer.Option(
        metavar="HOW",
        rich_help_panel=_SCORE,
        help="Mass of the label itself in aps and raps: exclude (default), include or random.",
    ),
]
Temperature = Annotated[
    str | None,
    typer.Option(
        metavar="T",
        rich_help_panel=_SCORE,
        help="Divide the logits by a number, or by the best one for the 'tuning' part.",
    ),
]
AllowEmpty = Annotated[
    bool,
    typer.Option(
        "--allow-empty", rich_help_panel=_SCORE, help="Sets may lack the most likely class."
    ),
]
TuningFraction = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE",
        rich_help_panel=_DATA,
        help="Share of OUTPUTS to tune on, if there is anything to tune.",
    ),
]


def calibrate(
    context: typer.Context,
    outputs: LabelledOutputs,
    output: Output,
    train: Train = None,
    tuning: Tuning = None,
    classes: Classes = None,
    group: Group = None,
    method: MethodChoice = Method.CONDITIONAL,
    basis: Basis = None,
    degree: Degree = None,
    components: Components = 20,
    statistic: Statistic = None,
    transform: TransformChoice = None,
    neighbour: Neighbour = 1,
    randomized: Randomized = False,
    paper: Paper = False,
    score: Score = None,
    scale: ScaleChoice = None,
    own_mass: OwnMassChoice = None,
    temperature: Temperature = None,
    allow_empty: AllowEmpty = False,
    tuning_fraction: TuningFraction = None,
    seed: Seed = 0,
    config: Config = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Learn thresholds from labelled samples the classifier was not trained on.

    OUTPUTS holds the arrays 'logits' (or 'probabilities'), 'labels', for the
    trust score 'features' (the layer before the last), and, if you like,
    'classes' (their names) and groups called 'group_NAME'. The level alpha
    is chosen later, when predicting.

    Example:

      trustsets calibrate held_out.npz --train train.npz -o model.trustsets
    """
    from trustsets.files.calibration import Recipe, calibrate_file

    recipe = Recipe(
        method=method.value,
        score=None if score is None else score.value,
        scale=None if scale is None else scale.value,
        own_mass=None if own_mass is None else own_mass.value,
        basis=tuple(name.value for name in basis or ()),
        degree=degree,
        components=components,
        statistics=tuple(name.value for name in statistic or ()),
        transform=None if transform is None else transform.value,
        groups=tuple(group or ()),
        temperature=_temperature(temperature),
        tuning_fraction=tuning_fraction,
        randomized=randomized,
        allow_empty=allow_empty,
        paper=paper,
        seed=seed,
    )
    record = resolved(context)
    predictor = calibrate_file(
        outputs,
        output,
        recipe,
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
