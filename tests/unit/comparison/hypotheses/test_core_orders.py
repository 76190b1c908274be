"""Heads in another order are found by their outputs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from embgrad.comparison.hypotheses.attention import AttentionCore
from embgrad.comparison.hypotheses.core import Core
from embgrad.comparison.hypotheses.core_parts import Mask
from embgrad.comparison.hypotheses.core_search import reordered
from embgrad.comparison.hypotheses.sources import Source
from tests.unit.comparison.hypotheses.attended import BEFORE, HEADS, OTHER, REAL, SIZE, attended
from tests.unit.comparison.hypotheses.planted import expect_exact, site_of

SOURCES = [Source(name, BEFORE[name]) for name in (f"layers.0.attention.{role}" for role in "qkv")]
CORE = Core(*SOURCES, HEADS, SIZE**-0.5, REAL, mask=Mask(causal=True))
BY_HEAD = attended().reshape(*REAL.shape, HEADS, SIZE)


def test_the_usual_order_is_that_of_groups() -> None:
    assert CORE.usual_order == ((0, 0), (1, 0), (2, 1), (3, 1))
    assert replace(CORE, tiled=True).usual_order == ((0, 0), (1, 1), (2, 0), (3, 1))


@pytest.mark.parametrize("heads", [(1, 0, 2, 3), (3, 2, 1, 0), (2, 3, 0, 1)])
def test_heads_in_another_order_are_named(heads: tuple[int, ...]) -> None:
    site = site_of(attended(), BY_HEAD[:, :, list(heads)].reshape(OTHER.shape), BEFORE, real=REAL)
    (found,) = AttentionCore().explain(site)
    expect_exact(site, found)
    wanted = ", ".join(map(str, heads))
    assert (found.cause, found.text) == ("attention-heads", f"the order of heads is 0, 1, 2, 3 in a and {wanted} in b")


def test_other_keys_and_values_are_named() -> None:
    exchanged = [BEFORE[f"layers.0.attention.{role}"].reshape(*REAL.shape, 2, SIZE)[:, :, ::-1] for role in "kv"]
    b = attended(key=exchanged[0].reshape(*REAL.shape, -1), value=exchanged[1].reshape(*REAL.shape, -1))
    site = site_of(attended(), b, BEFORE, real=REAL)
    (found,) = AttentionCore().explain(site)
    expect_exact(site, found)
    assert (found.cause, found.values) == ("attention-groups", ("0, 0, 1, 1", "1, 1, 0, 0"))


def test_no_order_reproduces_other_values() -> None:
    assert reordered(CORE, CORE.whole, BY_HEAD + 0.1, 1e-6) is None
    np.testing.assert_allclose(CORE.part(CORE.whole), BY_HEAD)
    assert reordered(CORE, CORE.whole, BY_HEAD, 1e-6) is None
