"""A command takes its groups of options one by one, and names what the library names."""

import dataclasses
from enum import StrEnum
from typing import Annotated, get_args

import pytest
import typer

from trustsets.cli import calibrate
from trustsets.cli.options import expanded, option
from trustsets.files.calibration import BASES, METHODS, SCORES, STATISTICS, Recipe


@dataclasses.dataclass(frozen=True)
class Group:
    path: Annotated[str, typer.Argument()]
    count: Annotated[int, option("N", "How many.", min=1)] = 3


def invoke(function, *arguments):
    app = typer.Typer()
    app.command()(expanded(function))
    app(list(arguments), standalone_mode=False)


def test_a_dataclass_stands_for_its_fields():
    seen = []

    def command(name: Annotated[str, option("NAME", "Who.")] = "me", *, group: Group) -> None:
        seen.append((name, group))

    invoke(command, "file")
    invoke(command, "other", "--count", "5", "--name", "you", "--json", "--quiet")
    assert seen == [("me", Group("file")), ("you", Group("other", 5))]


def test_an_option_of_a_group_that_is_missing_or_wrong_is_refused():
    def command(group: Group) -> None:
        raise AssertionError("must not run")

    for arguments in ([], ["file", "--count", "0"], ["file", "--wrong"]):
        with pytest.raises(Exception, match=r"path|PATH|greater|wrong"):
            invoke(command, *arguments)


@pytest.mark.parametrize(
    ("names", "known"),
    [
        (calibrate.Method, METHODS),
        (calibrate.ScoreName, SCORES),
        (calibrate.BasisName, BASES),
        (calibrate.StatisticName, STATISTICS),
    ],
)
def test_the_command_line_offers_what_a_recipe_takes(names, known):
    is_enum = isinstance(names, type) and issubclass(names, StrEnum)
    assert tuple(map(str, names if is_enum else get_args(names))) == tuple(known)


def test_options_left_out_make_the_default_recipe():
    assert calibrate.RecipeOptions().recipe() == Recipe()
