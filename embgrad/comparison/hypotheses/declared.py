"""The settings of an attention's core that a model's configuration declares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from embgrad.comparison.hypotheses.core_parts import Scaling
from embgrad.comparison.hypotheses.site import Site

__all__ = ["declared_by", "number_in"]

#: The kinds of scaling that are known.
KINDS: Final = ("linear", "llama3", "yarn")


def declared_by(site: Site, side: int) -> Mapping[str, Any]:
    """Return the values of the settings that a or b declares, by name.

    The scale is the number that scores are multiplied by, and the scaling of frequencies has all of its numbers.

    Args:
        site: the site.
        side: 0 for a, 1 for b.
    """
    found = dict(site.settings[side])
    scale = number_in(found, "attention_scale")
    if scale is not None and scale > 1:  # the number whose root scores are divided by
        found["attention_scale"] = 1 / math.sqrt(scale)
    return {**found, "rotary_scaling": _scaling(found)}


def number_in(declared: Mapping[str, Any], name: str) -> float | None:
    """Return a declared positive number; None where there is none."""
    value = declared.get(name)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return float(value) if value > 0 and math.isfinite(value) else None


def _scaling(declared: Mapping[str, Any]) -> Scaling | None:
    """Return the scaling of frequencies that is declared; None where none is, or none that is known."""
    factor = number_in(declared, "rotary_factor")
    kind = declared.get("rotary_scaling", "linear")
    if factor is None or factor == 1 or kind not in KINDS:
        return None
    if kind == "linear":
        return Scaling("linear", factor)
    usual = (1.0, 4.0, 8192.0) if kind == "llama3" else (1.0, 32.0, number_in(declared, "positions") or 2048.0)
    names = ("rotary_low", "rotary_high", "rotary_original")
    low, high, original = (number_in(declared, name) or number for name, number in zip(names, usual, strict=True))
    return Scaling(str(kind), factor, low, high, original, rounded=bool(declared.get("rotary_rounded", True)))
