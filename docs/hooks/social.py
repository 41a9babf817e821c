"""The picture that other sites show beside a link to this one."""

import io

from matplotlib.figure import Figure

from trustsets.plots import COVERAGE_COLOURS, THEMES, mixed

TITLE = "trustsets"
WORDS = "Prediction sets with more even coverage:\nconfidence, trust, groups, classes"
LIGHT, (BELOW, _, ABOVE) = THEMES["light"], COVERAGE_COLOURS["light"]
STRIPE = (BELOW, mixed(BELOW, "#ffffff", 0.5), mixed(ABOVE, "#ffffff", 0.5), ABOVE)


def social_image() -> bytes:
    """A PNG of 1200 by 630 pixels."""
    figure = Figure(figsize=(12, 6.3), dpi=100, facecolor=LIGHT["page"])
    figure.text(0.07, 0.62, TITLE, fontsize=76, weight="bold", color=ABOVE)
    figure.text(0.07, 0.32, WORDS, fontsize=30, color=LIGHT["ink"], linespacing=1.5)
    for place, colour in enumerate(STRIPE):
        figure.add_axes((0.07 + 0.215 * place, 0.12, 0.205, 0.05), facecolor=colour).set(
            xticks=[], yticks=[]
        )
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    return stream.getvalue()
