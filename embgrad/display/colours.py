"""The colours of tokens: steps of a scale for light and dark pages, with a legible text colour for each."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

__all__ = ["LEAST_CONTRAST", "LEVELS", "Step", "contrast", "ink", "mix", "shade", "step", "tint", "token_css"]

#: The number of steps above zero; each has its own class in the page's stylesheet.
LEVELS: Final = 16

#: The least contrast of text with its background in the Web Content Accessibility Guidelines 2.2, level AA.
LEAST_CONTRAST: Final = 4.5

#: The background of the page, and the ends of the scales: magnitude in purple, signed in blue below zero and orange above. These
#: can be distinguished with all common colour blindnesses (after Okabe and Ito, "Color universal design", 2008).
PALETTES: Final = {
    "light": {"paper": "#ffffff", "n": "#6a2c91", "p": "#d55e00", "m": "#0072b2"},
    "dark": {"paper": "#16181d", "n": "#cf9bf2", "p": "#f0a04b", "m": "#5fb4ee"},
}

#: The opacity of the strongest tint in a notebook, where text has the notebook's colour, dark or light.
MOST_OPAQUE: Final = 0.5


class Step(NamedTuple):
    """One step of a scale.

    Attributes:
        background: the colour behind the token, such as "#d55e00".
        text: black or white, whichever is more legible on the background.
    """

    background: str
    text: str


def contrast(first: str, second: str) -> float:
    """Return the contrast ratio of two colours, 1 to 21, as the guidelines define it."""
    bright, dim = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


def mix(start: str, end: str, share: float) -> str:
    """Return the colour at a share of the way from one colour to the other."""
    pairs = zip(_channels(start), _channels(end), strict=True)
    return "#" + "".join(f"{round(low + (high - low) * share):02x}" for low, high in pairs)


def ink(background: str) -> str:
    """Return black or white, whichever is more legible; one of the two always has a contrast of at least 4.58."""
    return max(("#000000", "#ffffff"), key=lambda text: contrast(text, background))


def step(scheme: str, scale: str, level: int) -> Step:
    """Return a step of a scale: "n" for magnitude, "p" and "m" for above and below zero, on a "light" or "dark" page."""
    palette = PALETTES[scheme]
    # The exponent spreads the faint end, where most tokens are.
    background = mix(palette["paper"], palette[scale], (level / LEVELS) ** 0.8)
    return Step(background, ink(background))


def shade(figure: float, largest: float, signed: bool) -> tuple[str, int]:
    """Return the scale and the level of a figure: "n" for a magnitude, "p" and "m" for above and below zero, and 0 to LEVELS.

    Args:
        largest: the size of a figure that has full colour, as larger ones have.
        signed: whether figures may be below zero.

    Returns:
        ("", 0) for zero and for a figure that is not finite.
    """
    if not math.isfinite(figure) or figure == 0:
        return "", 0
    level = round(LEVELS * min(1.0, abs(figure) / largest)) if largest else LEVELS
    return "n" if not signed else "p" if figure > 0 else "m", level


def token_css() -> str:
    """Return the stylesheet's classes n1, p1, m1 and so on: colours, and the bar widths that show the same without colour."""
    lines = [f".{scale}{level}{{--w:{level / LEVELS:.2%}}}" for scale in "npm" for level in range(1, LEVELS + 1)]
    for scheme in PALETTES:
        steps = {f"{scale}{level}": step(scheme, scale, level) for scale in "npm" for level in range(1, LEVELS + 1)}
        rules = "".join(f".{name}{{--b:{colours.background};--f:{colours.text}}}" for name, colours in steps.items())
        # Printed pages are light, whatever the screen is.
        lines.append(rules if scheme == "light" else f"@media screen and (prefers-color-scheme:dark){{{rules}}}")
    return "\n".join(lines)


def tint(scale: str, level: int, most: float = MOST_OPAQUE) -> str:
    """Return a translucent colour for notebooks, such as "rgba(213,94,0,0.50)", `most` of it opaque at the highest level."""
    red, green, blue = _channels(PALETTES["light"][scale])
    return f"rgba({red},{green},{blue},{most * level / LEVELS:.2f})"


def _channels(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _luminance(colour: str) -> float:
    shares = (channel / 255 for channel in _channels(colour))
    red, green, blue = (share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
