"""The reference of the command line, from the commands themselves."""

import re
from typing import Any

import typer

from trustsets.cli import app


def command_line_page() -> str:
    """One section a command, with a table of its options."""
    group: Any = typer.main.get_command(app)
    parts = [
        "# Command line reference",
        "Made from the program itself. [The command line](../cli.md) explains it by example.",
    ]
    for name, command in sorted(_commands(group, "trustsets")):
        parts += [f"## {name}", _words(command.help), _table(command)]
    return "\n\n".join(parts) + "\n"


def _commands(group: Any, prefix: str) -> list[tuple[str, Any]]:
    found = []
    for name, command in group.commands.items():
        full = f"{prefix} {name}"
        found += _commands(command, full) if hasattr(command, "commands") else [(full, command)]
    return found


def _words(text: str | None) -> str:
    """Help text as Markdown: indented lines, which are commands, become blocks of code."""
    plain = re.sub(r"\[/?(?:bold|dim|cyan|green|yellow)\]", "", text or "").replace("\b", "")
    blocks = [part.rstrip() for part in plain.split("\n\n") if part.strip()]
    return "\n\n".join(
        "```sh\n" + "\n".join(line.strip() for line in block.strip("\n").splitlines()) + "\n```"
        if block.lstrip("\n").startswith("  ")
        else " ".join(line.strip() for line in block.splitlines())
        for block in blocks
    )


def _table(command: Any) -> str:
    rows = ["| option | meaning |", "|---|---|"]
    for option in command.params:
        if getattr(option, "hidden", False) or option.name == "help":
            continue
        names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
        if option.param_type_name == "argument":
            names = f"`{option.name.upper()}`"
        words = re.sub(r"\s+", " ", getattr(option, "help", None) or "").replace("|", "\\|")
        rows.append(f"| {names} | {words}{_default(option)} |")
    return "\n".join(rows) if len(rows) > 2 else ""


def _default(option: Any) -> str:
    if option.default in (None, False, True, (), []) or callable(option.default):
        return ""
    return f" Default: `{option.default}`."
