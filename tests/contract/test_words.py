"""The words of the field are used everywhere: phrases that stood for them do not come back."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Phrase, and what to write instead. Names in code, such as `own_mass`, are not phrases.
PHRASES = {
    r"from the same source": "exchangeable",
    r"in random order": "exchangeable",
    r"cover(?:age|s|ed)?(?: \w+){0,4} on average": "marginal coverage",
    r"ordinary sets?": "split conformal sets",
    r"promis(?:e[sd]?|ing)": "guarantee, target",
    r"given the class": "class-conditional",
    r"(?<!with)in each cell": "group-conditional",
    r"class shares": "class prevalence",
    r"other shares of the classes": "label shift",
    r"adapt to other inputs": "covariate shift",
    r"mends": "corrects",
    r"holds? the truth": "contains the true value",
    r"by mistake": "false positive",
    r"luck": "sampling variability",
    r"own mass": "the label's own probability",
    r"part(?:s|ed|ing)? equal ranks": "break ties",
    r"nudge[sd]?": "perturbation",
    r"(?:its|of) copies|copies of (?:a|the|each|one) (?:point|sample|row)": "multiplicities",
    r"left-out coverage": "leave-one-out coverage",
    r"the under half": "the under-coverage component",
    r"raises? rare classes": "up-weights rare classes",
    r"giv(?:es?|ing) up rare classes": "under-covers rare classes",
    r"knobs?": "parameter",
    r"dials?": "parameter",
    r"ha(?:s|ve) the bits of": "is bitwise identical to",
    r"(?:the|this) house": "code base",
    r"house style": "style",
    r"classes a set(?! has)": "classes per set",
    r"classes may be": "...",
    r"keep their coverage where": "more even coverage",
}
READ = {
    **{path: "page" for path in (ROOT / "docs").rglob("*.md") if path.name != "glossary.md"},
    **{ROOT / f"{name}.md": "page" for name in ("README", "CONTRIBUTING", "CHANGELOG")},
    **{
        path: "code" for path in (ROOT / "src").rglob("*") if path.suffix in {".py", ".html", ".js"}
    },
    **{path: "code" for path in (ROOT / "examples").glob("*.py")},
}
_RULE = re.compile("|".join(rf"\b(?:{phrase})\b" for phrase in PHRASES), flags=re.IGNORECASE)


def misused(text: str) -> list[str]:
    """Phrases in a text, whose lines may be broken anywhere; names of tests are not read."""
    plain = re.sub(r"`tests/[^`]*`", "", text)
    plain = re.sub(r"\s+(?:# |\"|f\")?", " ", plain)
    return _RULE.findall(plain)


def test_no_page_or_source_uses_them() -> None:
    assert len(READ) > 150
    bad = {
        str(path.relative_to(ROOT)): phrases
        for path in READ
        if (phrases := misused(path.read_text(encoding="utf-8")))
    }
    assert not bad


def test_formulas_of_docstrings_are_plain_text() -> None:
    """The site and `help` would print the commands of a formula as they are."""
    assert not [path for path in READ if re.search(r":math:|\.\. math::", path.read_text("utf-8"))]


@pytest.mark.parametrize("text", ["Ordinary sets miss it.", "coverage is kept on\naverage"])
def test_phrases_are_noticed(text: str) -> None:
    assert misused(text)
