"""Tensors before a site are taken in order, with their parts."""

from __future__ import annotations

import numpy as np
import pytest

from embgrad.comparison.hypotheses.sources import Source, last_part, most_off, relative, sources
from tests.unit.comparison.hypotheses.planted import site_of

X = np.arange(12.0).reshape(1, 3, 4)


def test_different_tensors_are_taken_once_the_nearest_first() -> None:
    site = site_of(X, X, {"c": X, "b": X + 1, "a": X, "broken": X * np.nan, "first": X + 2})
    assert [source.name for source in sources(site, 9)] == ["c", "b", "first"]
    assert [source.name for source in sources(site, 2)] == ["c", "b"]


def test_tensors_that_are_equal_at_some_features_alone_are_different() -> None:
    """Queries stand in the first features of a fused tensor, which has as many entries for each of theirs."""
    whole = np.arange(2.0 * 64 * 12).reshape(2, 64, 12)
    changed = np.array(whole)
    changed[..., 1:] += 1
    names = [source.name for source in sources(site_of(X, X, {"qkv": whole, "q": whole[..., :4], "r": changed}), 9)]
    assert names == ["qkv", "q", "r"]


def test_parts_of_parts_read_the_features_of_the_tensor() -> None:
    part = Source("a", X).part(np.array([1, 2, 3]), "some").part(np.array([2, 0]), "few")
    np.testing.assert_array_equal(part.values, X[..., [3, 1]])
    np.testing.assert_array_equal(part.read(lambda name: 2 * X), 2 * X[..., [3, 1]])
    assert part.text == "few of a"


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("layers.0.mlp.up", "up"), ("layers.0.mlp.up:input", "up"), ("layers/0/mlp/up", "up"),
        ("layers.0.qkv[0:12]", "qkv[0:12]"), ("up", "up")],
)  # fmt: skip
def test_the_place_of_a_layer_is_left_out(name: str, wanted: str) -> None:
    assert last_part(name) == wanted


def test_nothing_predicts_zeros() -> None:
    assert relative(np.array([3.0, 4.5]), np.array([3.0, 4.0])) == 0.1
    assert relative(np.zeros(2), np.zeros(2)) == np.inf
    assert relative(np.array([np.nan, 1]), np.ones(2)) == np.inf


@pytest.mark.parametrize(
    ("change", "floor", "wanted"),
    [(1.0, 1e-9, 1e-4), (1e-5, 1e-9, 2.5e-6), (1.0, 1e-3, 1e-2), (1e-5, 1e-5, 2e-5)],
)
def test_a_reference_is_reproduced_better_than_the_port_differs(change: float, floor: float, wanted: float) -> None:
    assert most_off(site_of(X, X * (1 + change), {}, floor=floor)) == pytest.approx(wanted)
