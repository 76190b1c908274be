"""The tensors of a site's layer."""

from __future__ import annotations

from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.site import Site
from embgrad.comparison.hypotheses.sources import Source, sources
from embgrad.comparison.sites import name_of

__all__ = ["branches", "within"]

#: The most tensors before a site that are taken.
MOST: Final = 24


def branches(site: Site) -> list[Source]:
    """Return the tensors before a site that have its width, and the halves of those of twice its width, shared ones first."""
    width = site.a.shape[-1]
    shared = {before.name for before in site.before if before.shared}
    found = []
    for source in within(site):
        if source.values.shape == site.a.shape:
            found.append(source)
        elif source.values.shape == (*site.a.shape[:2], 2 * width):
            found.append(source.part(np.arange(width), "the first half"))
            found.append(source.part(np.arange(width, 2 * width), "the second half"))
    return sorted(found, key=lambda source: source.name not in shared)


def within(site: Site) -> list[Source]:
    """Return the tensors before a site that are not of earlier layers."""
    tensors, modules = site.recordings[0].tensors.values(), {weight.module for weight in site.weights}
    begin = min((tensor.time for tensor in tensors if tensor.path in modules), default=0)
    earlier = {name_of(tensor) for tensor in tensors if tensor.time < begin}
    return [source for source in sources(site, MOST) if source.name not in earlier]
