"""Queries, keys and values of an attention whose keys have turned features that all heads share, as in DeepSeek-V2.

A projection of a latent vector returns the features of keys that are not turned, and the values. The features that are turned are
the last ones of the latent vector's own projection: Liu et al., 2024, "DeepSeek-V2", section 2.1.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from embgrad.comparison.hypotheses.core import Core
from embgrad.comparison.hypotheses.projections import Projections, spans_values
from embgrad.comparison.hypotheses.site import Site
from embgrad.comparison.hypotheses.sources import Fused, Source

__all__ = ["latent_projections", "other_orders"]

#: Whether the turned features of queries, the values behind keys, and the shared features are the last ones.
Order = tuple[bool, bool, bool]
ORDERS: Final = tuple((first, second, third) for first, second, third in itertools.product((True, False), repeat=3))


def latent_projections(
    site: Site, group: Sequence[Source], found: Sequence[Source], heads: Sequence[int] = ()
) -> list[Projections]:
    """Return the tensors that may be queries, keys and values, likeliest first.

    Args:
        site: the site.
        group: the tensors that may hold keys and values.
        found: the tensors that may hold queries and what heads share, beside these.
        heads: the numbers of heads that are tried first.
    """
    width = site.a.shape[-1]
    group = [source for source in group if source.values.shape[:2] == site.a.shape[:2]]
    others = [source for source in found if source.values.shape[:2] == site.a.shape[:2] and source not in group]
    counts = dict.fromkeys([*heads, *range(width // 2, 1, -1)])
    candidates = []
    for count in (count for count in counts if width % count == 0):
        for both in group:
            plain, left = divmod(both.values.shape[-1] - width, count)  # a head's features of keys that are not turned
            if left or plain < 1:
                continue
            for order in (order for order in ORDERS if spans_values(site, _value(both, count, plain, order).values)):
                candidates += list(_with_queries([*group, *others], both, count, plain, order))
    return candidates


def _with_queries(found: Sequence[Source], both: Source, count: int, plain: int, order: Order) -> Iterator[Projections]:
    for query in found:
        size, left = divmod(query.values.shape[-1], count)
        turned = size - plain
        if query is both or left or turned < 2:
            continue
        for shared in found:
            if shared is not query and shared is not both and turned < shared.values.shape[-1] < size * count:
                yield _ordered(query, both, shared, count, plain, size, order)


def _ordered(
    query: Source, both: Source, shared: Source, count: int, plain: int, size: int, order: Order
) -> Projections:
    """Return queries, keys and values of heads in which the turned features come first."""
    turned = size - plain
    of_query = np.arange(count * size).reshape(count, size)
    of_both = np.arange(both.values.shape[-1]).reshape(count, -1)
    of_shared = both.values.shape[-1] + np.arange(shared.values.shape[-1])
    of_query = np.roll(of_query, turned, 1) if order[0] else of_query
    of_both = of_both[:, :plain] if order[1] else of_both[:, -plain:]
    of_shared = of_shared[-turned:] if order[2] else of_shared[:turned]
    places = np.concatenate([np.tile(of_shared, (count, 1)), of_both], 1).ravel()
    values = np.concatenate([both.values, shared.values], -1)[..., places]
    key = Fused(both.name, values, label="key", parts=(both, shared), order=places)
    value = _value(both, count, plain, order)
    return Projections(query.part(of_query.ravel(), "query"), key, value, size, turned=turned)


def _value(both: Source, count: int, plain: int, order: Order) -> Source:
    features = np.arange(both.values.shape[-1]).reshape(count, -1)
    return both.part((features[:, plain:] if order[1] else features[:, :-plain]).ravel(), "value")


def other_orders(core: Core, found: Sequence[Source]) -> Iterator[Projections]:
    """Yield the tensors of a latent core with each order of their parts.

    Args:
        core: the core.
        found: the whole tensors before the site.
    """
    whole = next((source for source in found if source.name == core.query.name), None)
    if whole is None:
        return
    assert isinstance(core.key, Fused), "it is latent"
    both, shared = core.key.parts
    plain = both.values.shape[-1] // core.heads - core.value_size
    for order in ORDERS:
        yield _ordered(whole, both, shared, core.heads, plain, core.size, order)
