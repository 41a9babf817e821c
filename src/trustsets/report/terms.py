"""Links from the terms of a text to their explanations at the end of the page."""

import re

from markupsafe import Markup, escape

__all__ = ["explained"]

# What a term looks like in a text, by the name of its explanation (`term-NAME` in the page).
_TERMS = {
    "floor": r"[Nn]oise floors?",
    "macro": r"[Mm]acro coverage",
    "below": r"Covered less than",
    "gap": r"CovGap|[Mm]ean coverage gap|Coverage gap",
    "shortfall": r"[Ss]hortfall",
    "p": r"[Ss]ignificantly(?: too low)?|p-values?|Holm’s correction",
    "interval": r"[Ii]ntervals?",
    "coverage": r"[Cc]overage",
    "conf": r"Conf|[Cc]onfidence",
    "trust": r"[Tt]rust",
    "rank": r"Rank",
    "frequency": r"[Cc]lass frequency",
    "size": r"Full sets|Empty sets",
}
_PATTERN = re.compile("|".join(rf"(?P<{name}>\b(?:{own})\b)" for name, own in _TERMS.items()))


def explained(text: str) -> Markup:
    """Escape a text and link the first place of each term to its explanation.

    The page's script shows the explanation beside the term; without it, the link leads there.

    Examples
    --------
    >>> print(explained("Rank <b>"))
    <dfn><a class="term" href="#term-rank" aria-describedby="about-rank">Rank</a></dfn> &lt;b&gt;
    """
    pieces, seen, end = [], set(), 0
    for found in _PATTERN.finditer(text):
        name = str(found.lastgroup)
        if name not in seen:
            seen.add(name)
            link = f'<dfn><a class="term" href="#term-{name}" aria-describedby="about-{name}">'
            pieces += [escape(text[end : found.start()]), Markup(link), escape(found[0])]
            pieces.append(Markup("</a></dfn>"))
            end = found.end()
    return Markup("").join([*pieces, escape(text[end:])])
