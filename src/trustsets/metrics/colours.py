"""The colour of a coverage below, at and above the target."""

from dataclasses import dataclass

from trustsets._common.house_style import METHODS, PALETTES, ink_on, mixed

__all__ = ["METHODS", "PALETTES", "Shade", "deepest_coverage", "shade"]

# Coverage this far below the target has the deepest colour. The scale is fixed, so that noise
# in a good table does not look like a failure.
DEEPEST = 0.3


@dataclass(frozen=True)
class Shade:
    """Background and text colour of a cell, on light and dark pages."""

    light: str
    light_ink: str
    dark: str
    dark_ink: str

    @property
    def style(self) -> str:
        """As the value of a style attribute."""
        return ";".join(f"--{name.replace('_', '-')}:{code}" for name, code in vars(self).items())


def shade(coverage: float, target: float) -> Shade:
    """Colour of a coverage: that of the page at the target, deeper the further it is away.

    Examples
    --------
    >>> shade(0.9, 0.9).light, shade(1.0, 0.9).light, shade(0.2, 0.9).light
    ('#ffffff', '#0072b2', '#d55e00')
    """
    below = coverage < target
    end = deepest_coverage(target) if below else 1.0
    depth = min((coverage - target) / (end - target), 1.0)
    light, dark = (
        mixed(colours[1], colours[0 if below else 2], depth) for colours in PALETTES.values()
    )
    return Shade(light, ink_on(light), dark, ink_on(dark))


def deepest_coverage(target: float) -> float:
    """Coverage at and below which the colour is deepest."""
    return max(target - DEEPEST, 0.0)
