"""Tables as text: Markdown for reading, LaTeX for papers."""

from collections.abc import Sequence

from trustsets.metrics.catalogue import number_of, split_name, table_title

__all__ = ["bold", "escape_latex", "latex_table", "markdown_table", "title"]

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}


def title(metric: str) -> str:
    """Short name of a number of ``Evaluation.metrics`` for people.

    Examples
    --------
    >>> title("conf_trust.gap"), title("class.below_0.5")
    ('Conf x Trust CovGap', 'Class share below 0.5')
    """
    number, (table, _, least) = number_of(metric), split_name(metric)
    own = (number.short or number.title).replace("{}", least)
    return f"{table_title(table)} {own}" if table else own


def bold(text: str, *, latex: bool) -> str:
    """Make text bold."""
    return rf"\textbf{{{text}}}" if latex else f"**{text}**"


def escape_latex(text: str) -> str:
    """Make plain text safe in LaTeX; a cross between words becomes a times sign."""
    safe = "".join(_LATEX.get(letter, letter) for letter in text)
    return safe.replace(" x ", r" $\times$ ")


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]], n_names: int = 1) -> str:
    """Pipe table; the first `n_names` columns are left-aligned, numbers right-aligned."""
    cells = [[text.replace("|", "\\|") for text in row] for row in (header, *rows)]
    widths = [max(3, *(len(row[i]) for row in cells)) for i in range(len(header))]
    rule = [
        "-" * width if i < n_names else "-" * (width - 1) + ":" for i, width in enumerate(widths)
    ]

    def line(row: Sequence[str]) -> str:
        padded = (
            text.ljust(width) if i < n_names else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        return f"| {' | '.join(padded)} |"

    return "\n".join([line(cells[0]), line(rule), *(line(row) for row in cells[1:])]) + "\n"


def latex_table(
    header: Sequence[str],
    blocks: Sequence[Sequence[Sequence[str]]],
    n_names: int = 1,
    spans: Sequence[tuple[str, int]] = (),
) -> str:
    r"""Booktabs table; blocks of rows are parted by rules.

    Parameters
    ----------
    header : sequence of str
        Column heads, already safe in LaTeX, like all cells.
    blocks : sequence of blocks of rows
        The cells.
    n_names : int
        Leading columns that hold names.
    spans : sequence of (str, int)
        Heads over several columns each, after the name columns.
    """
    lines = [rf"\begin{{tabular}}{{{'l' * n_names}{'r' * (len(header) - n_names)}}}", r"\toprule"]
    if spans:
        heads = [rf"\multicolumn{{{width}}}{{c}}{{\textbf{{{text}}}}}" for text, width in spans]
        lines.append(" & ".join([""] * n_names + heads) + r" \\")
        lines.append(_rules(spans, n_names))
    lines.append(" & ".join(header) + r" \\")
    for block in blocks:
        lines.append(r"\midrule")
        lines += [" & ".join(row) + r" \\" for row in block]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _rules(spans: Sequence[tuple[str, int]], n_names: int) -> str:
    """Short rules under the heads that span columns."""
    parts, start = [], n_names + 1
    for _, width in spans:
        parts.append(rf"\cmidrule(lr){{{start}-{start + width - 1}}}")
        start += width
    return "".join(parts)
