"""Colours of coverage: white at the target, one hue below, another above. Imports nothing."""

from dataclasses import dataclass

__all__ = ["Shade", "deepest_share", "shade"]

# Below and above the target, as in `trustsets.plots`: red and green, or the vermilion and
# blue of Okabe and Ito, which colour-blind readers can tell apart.
_PLAIN = ((178, 24, 43), (27, 120, 55))
_SAFE = ((213, 94, 0), (0, 114, 178))
_WHITE = (255, 255, 255)
# Deepest this far below the target, or worse: a fixed scale, so that noise in a good table
# is not painted as a catastrophe.
_FULL_COLOUR = 0.3
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
        return (
            f"--plain:{self.plain};--plain-ink:{self.plain_ink};"
            f"--safe:{self.safe};--safe-ink:{self.safe_ink}"
        )


def shade(coverage: float, target: float) -> Shade:
    """Colour of a coverage.

    Examples
    --------
    >>> shade(0.9, 0.9).plain, shade(1.0, 0.9).plain, shade(0.2, 0.9).safe
    ('#ffffff', '#1b7837', '#d55e00')
    """
    below = coverage < target
    depth = (
        (target - coverage) / (target - deepest_share(target))
        if below
        else (coverage - target) / (1.0 - target)
    )
    plain, safe = (_mixed(pair[0 if below else 1], min(depth, 1.0)) for pair in (_PLAIN, _SAFE))
    return Shade(_code(plain), _ink(plain), _code(safe), _ink(safe))


def deepest_share(target: float) -> float:
    """Coverage at and below which the colour is deepest."""
    return max(target - _FULL_COLOUR, 0.0)


def _mixed(colour: tuple[int, ...], depth: float) -> tuple[int, ...]:
    pairs = zip(_WHITE, colour, strict=True)
    return tuple(round(white + depth * (own - white)) for white, own in pairs)


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
