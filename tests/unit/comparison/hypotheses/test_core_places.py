"""A core that was found at one layer is found at the same places of another layer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from embgrad.comparison.hypotheses.core import Core
from embgrad.comparison.hypotheses.core_parts import HeadNorm
from embgrad.comparison.hypotheses.core_search import Places
from embgrad.comparison.hypotheses.sources import Source
from tests.unit.comparison.hypotheses.attended import BEFORE, HEADS, OTHER, QUERY, REAL, SIZE, attended
from tests.unit.comparison.hypotheses.planted import site_of

A = attended()
GAIN = np.arange(1.0, 1 + SIZE)
CORE = Core(
    *(Source(name, BEFORE[name]) for name in (f"layers.0.attention.{role}" for role in "qkv")), HEADS, 1.0, REAL
)
SITE = site_of(A, A, BEFORE, real=REAL)
NEXT = {name.replace("0", "1"): values + 1 for name, values in BEFORE.items()}


def test_tensors_of_the_other_layer_are_taken() -> None:
    found = Places.of(SITE, CORE).at(site_of(A, A, NEXT, real=REAL))
    assert found is not None
    assert found.inputs == ("layers.1.attention.q", "layers.1.attention.k", "layers.1.attention.v")
    np.testing.assert_array_equal(found.query.values, QUERY + 1)


def test_keys_of_the_other_layer_are_hidden_where_its_padding_is() -> None:
    found = Places.of(SITE, CORE).at(site_of(A, A, NEXT, real=~REAL))
    assert found is not None
    np.testing.assert_array_equal(found.real, ~REAL)


def test_features_of_a_fused_tensor_are_taken() -> None:
    whole = np.concatenate([BEFORE[name] for name in CORE.inputs], -1)
    source = Source("layers.0.qkv", whole)
    ends = [0, 32, 48, 64]
    parts = [source.part(np.arange(*ends[at : at + 2])) for at in range(3)]
    fused = Core(*parts, HEADS, 1.0, REAL)
    places = Places.of(site_of(A, A, {"layers.0.qkv": whole}, real=REAL), fused)
    found = places.at(site_of(A, A, {"layers.1.qkv": whole + 1}, real=REAL))
    assert found is not None
    np.testing.assert_array_equal(found.value.values, BEFORE["layers.0.attention.v"] + 1)


def test_other_tensors_at_these_places_are_refused() -> None:
    places = Places.of(SITE, CORE)
    renamed = {name.replace("attention.k", "attention.r"): values for name, values in NEXT.items()}
    assert places.at(site_of(A, A, renamed, real=REAL)) is None
    narrow = {name: values[..., :8] for name, values in NEXT.items()}
    assert places.at(site_of(A, A, narrow, real=REAL)) is None
    assert places.at(site_of(A, A, {"x": OTHER}, real=REAL)) is None


def test_cores_with_further_weights_have_no_places() -> None:
    turned = replace(CORE, key=replace(CORE.key, matrix=np.eye(2)))
    assert [Places.of(SITE, core) for core in (turned, replace(CORE, sink=np.zeros(HEADS)))] == [None, None]


def test_gains_of_the_other_layer_are_taken() -> None:
    core = Core(*(CORE.query, CORE.key, CORE.value), HEADS, 1.0, REAL, norm=HeadNorm(GAIN, 2 * GAIN))
    first = site_of(A, A, BEFORE, real=REAL, weights={"q.w": GAIN, "k.w": 2 * GAIN})
    second = site_of(A, A, NEXT, real=REAL, weights={"q.w": 3 * GAIN, "k.w": 4 * GAIN})
    found = Places.of(first, core).at(second)
    assert found is not None
    assert found.norm is not None
    np.testing.assert_array_equal(found.norm.query, 3 * GAIN)
    np.testing.assert_array_equal(found.norm.key, 4 * GAIN)
