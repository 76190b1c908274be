"""The hypothesis of a vector that one model alone adds to each token, or that both hold and one adds."""

from __future__ import annotations

from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.products import projection_of
from embgrad.comparison.hypotheses.site import Explanation, Site
from embgrad.comparison.hypotheses.sources import relative

__all__ = ["HeldVector"]

#: The number of tokens that shows a vector that is added to each.
LEAST_TOKENS: Final = 8


class HeldVector:
    """A bias whose sum with a tensor is no point, such as that of values, which an attention hands on unchanged."""

    def explain(self, site: Site) -> list[Explanation]:
        """Return the weight of the layer that the difference is at each token; an empty list where it is none."""
        off = site.rows(site.b) - site.rows(site.a)
        mean = off.mean(0)
        if len(off) < 2 or relative(np.broadcast_to(mean, off.shape), off) > site.near:
            return []
        for weight in site.recordings[0].weights:
            if weight.layer != site.layer or weight.shape != mean.shape:
                continue
            vector = weight.get().astype(np.float64)
            for sign, values in ((-1, ("added", "left out")), (1, ("left out", "added"))):
                if vector.any() and relative(sign * vector, mean) <= site.near:
                    is_added = sign == 1 and projection_of(site, weight.module) is not None
                    values = ("added once", "added twice") if is_added else values
                    return [Explanation("missing-bias", f"{weight.name} is", values, site.a + sign * vector)]
        if len(off) < LEAST_TOKENS:
            return []
        text = f"b adds another vector at {site.name} to each token, which is no weight of the layer"
        return [Explanation("different-weight", site.name, ("a's own", "another"), site.a + mean, sentence=text)]
