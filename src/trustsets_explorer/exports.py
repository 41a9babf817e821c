"""What leaves the page: code, a command, the predictor."""

import inspect
import json
import re
import shlex
import tempfile
from pathlib import Path
from typing import Any

from trustsets import __all__ as PUBLIC
from trustsets.basis import Groups, Sum
from trustsets.predictors import Predictor
from trustsets_explorer.session import Session
from trustsets_explorer.state import State

_FLAGS = {
    "method": "--method",
    "score": "--score",
    "basis": "--basis",
    "statistics": "--statistic",
    "groups": "--group",
}


def as_python(session: Session, state: State, index: int, names: dict[str, str]) -> str:
    """A program that makes the sets of a method, those of the page."""
    setting, has_trust = state.settings[index].used, session.trust is not None
    trained = has_trust and "train" in names
    arguments = [repr(names.get("outputs", "held_out.npz"))]
    arguments += [f"groups={names['groups']!r}"] if "groups" in names else []
    arguments += [f"classes=read_classes({names['classes']!r})"] if "classes" in names else []
    readers = ["open_outputs", *(["read_classes"] if "classes" in names else [])]
    readers += ["read_training"] if trained else []
    predictor = _constructor(setting.build(session.trust_score), trained)
    used = {*re.findall(r"\b[A-Z]\w+", predictor)} & {*PUBLIC}
    used |= {"TrustScore", "evaluate"} if trained else {"evaluate"}
    lines = [
        f"from trustsets import {', '.join(sorted(used))}",
        f"from trustsets.files import {', '.join(readers)}",
        "",
        f"file = open_outputs({', '.join(arguments)})",
        "outputs = file.read()",
    ]
    if trained:
        columns = "feature_names=file.feature_names"
        lines += [
            f"train = read_training({names['train']!r}, outputs.classes, {columns})",
            "trust = TrustScore().fit(*train)",
        ]
    lines += [
        f"calibration, test = outputs.split({session.share!r}, seed={state.seed})",
        f"predictor = {predictor}",
        "predictor.calibrate(calibration)",
        f"sets = predictor.predict_set(test, alpha={state.alpha!r})",
        "print(predictor.summary(sets))",
        f"print(evaluate(sets, test{'.with_trust(trust)' if trained else ''}))",
    ]
    return "\n".join(lines) + "\n"


def _constructor(predictor: Predictor, trained: bool) -> str:
    """The call that makes a predictor, without what is at its default."""
    defaults = inspect.signature(type(predictor)).parameters
    arguments = {
        name: "trust" if name == "trust" else _text(value)
        for name, value in predictor.get_params(deep=False).items()
        if (name == "trust" and trained) or (name != "trust" and value != defaults[name].default)
    }
    inside = ", ".join(f"{name}={text}" for name, text in arguments.items())
    return f"{type(predictor).__name__}({inside})"


def _text(value: Any) -> str:
    """A value as code; a basis of groups is not made as its fields say."""
    if isinstance(value, Sum):
        return " + ".join(map(_text, value.parts))
    if isinstance(value, Groups):
        penalty = [f"penalty={value.penalty!r}"] if value.penalty != Groups().penalty else []
        return f"Groups({', '.join([*map(repr, value.columns), *penalty])})"
    return repr(value)


def as_command(session: Session, state: State, index: int, names: dict[str, str]) -> str:
    """Commands that calibrate the method on all held-out samples, and predict new ones."""
    recipe = state.settings[index].recipe
    # Methods that take all groups where none are chosen; a file without names has no more.
    is_auto = recipe["method"] == "conditional" and recipe["basis"] is None
    if (is_auto or recipe["method"] == "groups") and "groups" in names:
        recipe["groups"] = recipe["groups"] or session.parameters.groups
    words = ["trustsets", "calibrate", names.get("outputs", "held_out.npz")]
    words += ["--train", names["train"]] if "train" in names else []
    words += ["--classes", names["classes"]] if "classes" in names else []
    words += [*_options(recipe), "-o", "model.trustsets"]
    predict = ["trustsets", "predict", "model.trustsets", "new.npz", "--alpha", f"{state.alpha:g}"]
    predict += ["-o", "sets.parquet"]
    return f"{shlex.join(words)}\n{shlex.join(predict)}\n"


def _options(recipe: dict[str, Any]) -> list[str]:
    words = list[str]()
    for name, value in recipe.items():
        if value is None or value == ():
            continue
        if name in _FLAGS:
            words += [_FLAGS[name], ",".join([value] if isinstance(value, str) else value)]
        else:
            words += ["--set", f"{name}={json.dumps(value)}".replace('"', "")]
    return words


def saved_predictor(session: Session, state: State, index: int) -> bytes:
    """The calibrated predictor, as `Predictor.save` writes it."""
    predictor = session.predictor(state.settings[index], state.seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.trustsets"
        predictor.save(path)
        return path.read_bytes()
