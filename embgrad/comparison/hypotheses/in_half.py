"""The hypothesis of a part that one side computes in half precision, between others in single precision."""

from __future__ import annotations

from typing import Final

import numpy as np

from embgrad.common.tolerance import HALVES
from embgrad.comparison.hypotheses.site import Explanation, Site
from embgrad.comparison.weight_values import rounded

__all__ = ["MOST_ROUNDOFFS", "InHalf", "has_digits_of"]

#: The relative rounding error of a number that was computed from one with few digits.
DIGITS: Final = 1e-6

#: The number of unit roundoffs of half precision by which a part that is computed in it differs.
MOST_ROUNDOFFS: Final = 8.0

#: The number of tensors before a site among which one in half precision is looked for.
NEAR_BEFORE: Final = 12


class InHalf:
    """A part whose output has no more digits than half precision on one side, or that reads such an output of b."""

    def explain(self, site: Site) -> list[Explanation]:
        """Return which side computes the site in half precision; an empty list where neither or both do."""
        for dtype, roundoff in reversed(HALVES.items()):  # the coarsest first
            coarse = [has_digits_of(dtype, site.rows(values)) for values in (site.a, site.b)]
            is_part = coarse[0] != coarse[1] and site.difference <= MOST_ROUNDOFFS * roundoff
            if is_part or (site.difference <= roundoff and _is_given_half(site, dtype)):
                dtypes = (dtype, "float32") if coarse[0] else ("float32", dtype)
                sentence = f"{'a' if coarse[0] else 'b'} computes parts in {dtype}, {site.name} first"
                return [Explanation("half-precision", "parts", dtypes, site.b, sentence=sentence)]
        return []


def _is_given_half(site: Site, dtype: str) -> bool:
    """Return whether b holds a tensor shortly before a site in half precision, to which a's values are rounded there."""
    keys, tensors = {pair.name: pair.b for pair in site.pairs}, site.recordings[1].tensors
    looked_up = [tensor.values for tensor in tensors.values() if tensor.ids is not None]
    for before in site.before[:NEAR_BEFORE]:
        tensor = tensors.get(keys.get(before.name, ""))
        if tensor is None or any(np.array_equal(tensor.values, rows) for rows in looked_up):  # a table may be rounded
            continue
        if has_digits_of(dtype, site.rows(tensor.values)):
            return not has_digits_of(dtype, site.rows(before.values))
    return False


def has_digits_of(dtype: str, values: np.ndarray) -> bool:
    """Return whether numbers, not all of them zero, have no more digits than a dtype."""
    return bool(values.any()) and bool((np.abs(rounded(values, dtype) - values) <= DIGITS * np.abs(values)).all())
