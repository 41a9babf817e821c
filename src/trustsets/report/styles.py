"""Templates, style sheets and scripts of pages, with the colours of the house style."""

import base64
import hashlib
from importlib import resources
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from trustsets._common.house_style import Theme, css_variables

__all__ = ["page_environment", "page_scripts", "page_styles"]

_SHEETS: dict[str, Theme] = {"report": "light", "dark": "dark"}


def page_environment(package: str, **options: Any) -> Environment:
    """The templates of a package, which escape what they are filled with."""
    return Environment(
        loader=PackageLoader(package, "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **options,
    )


def page_styles() -> dict[str, Markup]:
    """The sheet of every page (``report``), and what dark screens add to it (``dark``)."""
    return {
        name: Markup(f":root {{\n{css_variables(theme)}}}\n{_read(f'{name}.css')}")
        for name, theme in _SHEETS.items()
    }


def page_scripts() -> dict[str, Any]:
    """The script of the report, and the digest by which the page allows it."""
    # One function around both files: what they define is out of reach of other scripts.
    script = "".join(("(() => {\n", _read("alpha.js"), _read("report.js"), "})();\n"))
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    # These files are ours; everything else that reaches a page is escaped.
    return {"script": Markup(script), "script_digest": base64.b64encode(digest).decode("ascii")}


def _read(name: str) -> str:
    folder = resources.files("trustsets.report") / "templates"
    return (folder / name).read_text(encoding="utf-8")
