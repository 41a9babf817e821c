"""``trustsets calibrate``: labelled outputs to a saved predictor."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from trustsets.cli import console
from trustsets.cli.options import Config, Debug, Json, Quiet, Seed, resolved

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


def calibrate(
    context: typer.Context,
    outputs: Annotated[
        Path,
        typer.Argument(
            metavar="OUTPUTS",
            help="Labelled outputs: .npz, .parquet, .safetensors or a folder of .npy.",
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="MODEL", help="Where to save it (.trustsets)."),
    ],
    train: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=_DATA,
            help="Features and labels of the training data, for the trust score.",
        ),
    ] = None,
    tuning: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=_DATA,
            help="Other labelled outputs to tune on, instead of a part of OUTPUTS.",
        ),
    ] = None,
    classes: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            rich_help_panel=_DATA,
            help="Class names: a text file, or a file with an array 'classes'.",
        ),
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=_DATA,
            help="An array that holds groups; may be given again.",
        ),
    ] = None,
    method: Annotated[
        Method,
        typer.Option(
            metavar="METHOD",
            rich_help_panel=_METHOD,
            help="How thresholds are set: conditional, standard, bins, groups, class, plugin or "
            "clustered.",
        ),
    ] = Method.CONDITIONAL,
    basis: Annotated[
        list[BasisName] | None,
        typer.Option(
            metavar="BASIS",
            rich_help_panel=_METHOD,
            help="Function class of 'conditional' and 'plugin': polynomial (default), bins, "
            "groups, components or intercept; given again, they add up.",
        ),
    ] = None,
    degree: Annotated[
        int | None,
        typer.Option(
            min=0,
            metavar="N",
            rich_help_panel=_METHOD,
            help="Degree of the polynomial. Default: 5.",
        ),
    ] = None,
    components: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", rich_help_panel=_METHOD, help="Number of principal components."
        ),
    ] = 20,
    statistic: Annotated[
        list[StatisticName] | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=_METHOD,
            help="What polynomial and bins look at: confidence, trust, entropy or margin; may be "
            "given again. Default: confidence and trust.",
        ),
    ] = None,
    transform: Annotated[
        Transform | None,
        typer.Option(
            metavar="NAME",
            rich_help_panel=_METHOD,
            help="How the polynomial takes a statistic: rank (default), log or raw.",
        ),
    ] = None,
    neighbour: Annotated[
        int,
        typer.Option(
            min=1,
            metavar="N",
            rich_help_panel=_METHOD,
            help="Which nearest neighbour the trust score looks at.",
        ),
    ] = 1,
    randomized: Annotated[
        bool,
        typer.Option(
            "--randomized", rich_help_panel=_METHOD, help="'conditional' with exact coverage."
        ),
    ] = False,
    paper: Annotated[
        bool,
        typer.Option(
            "--paper",
            rich_help_panel=_METHOD,
            help="The paper's own setting of 'conditional' or 'bins' (there NAIVE).",
        ),
    ] = False,
    score: Annotated[
        ScoreName | None,
        typer.Option(
            metavar="SCORE", rich_help_panel=_SCORE, help="aps (default), raps or softmax."
        ),
    ] = None,
    scale: Annotated[
        Scale | None,
        typer.Option(
            metavar="SCALE",
            rich_help_panel=_SCORE,
            help="raw or tail. Default: tail for 'conditional' and 'plugin', else raw.",
        ),
    ] = None,
    own_mass: Annotated[
        OwnMass | None,
        typer.Option(
            metavar="HOW",
            rich_help_panel=_SCORE,
            help="Mass of the label itself in aps and raps: exclude (default), include or random.",
        ),
    ] = None,
    temperature: Annotated[
        str | None,
        typer.Option(
            metavar="T",
            rich_help_panel=_SCORE,
            help="Divide the logits by a number, or by the best one for the 'tuning' part.",
        ),
    ] = None,
    allow_empty: Annotated[
        bool,
        typer.Option(
            "--allow-empty", rich_help_panel=_SCORE, help="Sets may lack the most likely class."
        ),
    ] = False,
    tuning_fraction: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            rich_help_panel=_DATA,
            help="Share of OUTPUTS to tune on, if there is anything to tune.",
        ),
    ] = None,
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
    if console.settings.json:
        state = predictor.state_
        console.print_json(
            record
            | {"output": str(output), "n": state.n, "n_tuning": state.n_tuning}
            | {"n_classes": state.classes.size, "temperature": state.temperature}
            | {"summary": predictor.summary()}
        )
        return
    console.say(f"{predictor.summary()}\nSaved to {output}.")


def _temperature(text: str | None) -> float | str | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return text
