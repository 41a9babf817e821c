"""The colours of all figures and pages: of methods, and of coverage below and above the target."""

from dataclasses import dataclass

__all__ = ["METHODS", "PALETTES", "Shade", "deepest_coverage", "shade"]

# Below, at and above the target. The second palette is the vermilion and blue of Okabe and
# Ito, which colour-blind readers can tell apart.
PALETTES = {
    "plain": ("#b2182b", "#ffffff", "#1b7837"),
    "safe": ("#d55e00", "#ffffff", "#0072b2"),
}
# One colour for each method: hues of Okabe and Ito, dark enough for thin lines on white.
METHODS = ("#0072b2", "#d55e00", "#009e73", "#b5588c", "#b87d00", "#3f9fd8", "#444b54")
# Coverage this far below the target has the deepest colour. The scale is fixed, so that noise
# in a good table does not look like a failure.
_DEEPEST = 0.3
# WCAG's relative luminance at which black and white text contrast equally.
_EQUAL_CONTRAST = 0.179


@dataclass(frozen=True)
class Shade:
    """Background and text colour of a cell, in both palettes."""

    plain: str
    plain_ink: str
    safe: str
    safe_ink: str

    @property
    def style(self) -> str:
        """As the value of a style attribute."""
        return ";".join(f"--{name.replace('_', '-')}:{code}" for name, code in vars(self).items())


def shade(coverage: float, target: float) -> Shade:
    """Colour of a coverage: white at the target, deeper the further it is away.

    Examples
    --------
    >>> shade(0.9, 0.9).plain, shade(1.0, 0.9).plain, shade(0.2, 0.9).safe
    ('#ffffff', '#1b7837', '#d55e00')
    """
    below = coverage < target
    end = deepest_coverage(target) if below else 1.0
    depth = min((coverage - target) / (end - target), 1.0)
    plain, safe = (_mixed(colours[0 if below else 2], depth) for colours in PALETTES.values())
    return Shade(_code(plain), _ink(plain), _code(safe), _ink(safe))


def deepest_coverage(target: float) -> float:
    """Coverage at and below which the colour is deepest."""
    return max(target - _DEEPEST, 0.0)


def _mixed(colour: str, depth: float) -> tuple[int, ...]:
    """A mixture with white, as red, green and blue."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return tuple(round(255 + depth * (own - 255)) for own in parts)


def _code(colour: tuple[int, ...]) -> str:
    return "#" + "".join(f"{part:02x}" for part in colour)


def _ink(colour: tuple[int, ...]) -> str:
    """Black or white, whichever contrasts more."""
    linear = [
        part / 255 / 12.92 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4
        for part in colour
    ]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000" if luminance > _EQUAL_CONTRAST else "#fff"
