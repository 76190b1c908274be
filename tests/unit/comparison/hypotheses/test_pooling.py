"""Another pooling of hidden states is found by its values, with and without a length of 1."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from embgrad import TokenBatch
from embgrad.comparison.hypotheses.pooling import POOLS, Pooling
from embgrad.comparison.hypotheses.site import Site
from tests.unit.comparison.hypotheses.modules import REAL, best, module_site
from tests.unit.comparison.hypotheses.planted import site_of
from tests.unit.comparison.recorded import tensor

X = np.random.default_rng(0).normal(size=(*REAL.shape, 6))


def pooled(name: str, *, unit: bool = False) -> np.ndarray:
    vector = POOLS[name](X, REAL)
    return (vector / np.linalg.norm(vector, axis=-1, keepdims=True) if unit else vector)[:, None]


def site(a: np.ndarray, b: np.ndarray) -> Site:
    return module_site(a, b, {"last": X})


def test_the_mean_of_numbers_by_hand() -> None:
    x = np.arange(12.0).reshape(1, 3, 4)
    real = np.array([[True, True, False]])
    assert POOLS["the mean over tokens"](x, real).tolist() == [[2.0, 3.0, 4.0, 5.0]]
    assert POOLS["the mean over tokens"](x, real & [True, False, False]).tolist() == [[0.0, 1.0, 2.0, 3.0]]
    assert POOLS["the vector of the last token"](x, real).tolist() == [[4.0, 5.0, 6.0, 7.0]]
    assert POOLS["the largest over tokens"](x, real).tolist() == [[4.0, 5.0, 6.0, 7.0]]
    assert POOLS["the sum over tokens"](x, real).tolist() == [[4.0, 6.0, 8.0, 10.0]]
    padded, counted = "the sum over tokens by the padded length", "the sum over all positions by the number of tokens"
    np.testing.assert_allclose(POOLS[padded](x, real)[0], np.array([4.0, 6.0, 8.0, 10.0]) / 3)
    assert POOLS[counted](x, real).tolist() == [[6.0, 7.5, 9.0, 10.5]]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("the mean over tokens but the first", 5.0),
        ("the mean over tokens but the first and the last", 4.0),
        ("the sum over tokens by the root of their number", (2 + 4 + 6) / 3**0.5),
        ("the mean weighted by the position from 1", (2 * 2 + 3 * 4 + 4 * 6) / 9),
        ("the mean weighted by the position from 0", (2 + 2 * 4 + 3 * 6) / 6),
        ("the mean over all positions weighted by the position from 1", (0 + 2 * 2 + 3 * 4 + 4 * 6 + 5 * 8) / 15),
    ],
)
def test_weighted_means_and_means_of_parts_by_hand(name: str, wanted: float) -> None:
    """A text between padding, whose values are twice the position; what stands elsewhere counts by position alone."""
    x = 2.0 * np.arange(5)[None, :, None]
    real = np.array([[False, True, True, True, False]])
    assert POOLS[name](x, real).item() == pytest.approx(wanted)
    assert POOLS["the mean over tokens but the first and the last"](x, real & (x[..., 0] == 2)).item() == 0


def test_the_last_states_of_two_directions_by_hand() -> None:
    """The first text is padded behind, and the second before."""
    x = np.arange(24.0).reshape(2, 3, 4)
    real = np.array([[True, True, False], [False, True, True]])
    last, ends = (
        "the last state forward and the first one backward",
        "the states at the last position forward and at the first",
    )
    assert POOLS[last](x, real).tolist() == [[4.0, 5.0, 2.0, 3.0], [20.0, 21.0, 14.0, 15.0]]
    assert POOLS[f"{ends} backward"](x, real).tolist() == [[8.0, 9.0, 2.0, 3.0], [20.0, 21.0, 14.0, 15.0]]


NAMES = [
    *[*POOLS][:6],
    *(name for name in POOLS if "backward" in name),
    *(name for name in POOLS if "sum over" in name or "weighted" in name or "but the first" in name),
]


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(NAMES, 2)))
def test_another_pooling_is_named_with_both(first: str, second: str) -> None:
    at = site(pooled(first), pooled(second))
    found = best(at, Pooling().explain(at))
    assert (found.cause, found.setting, found.values) == ("pooling", "the pooled vector is", (first, second))
    assert found.compute is not None
    np.testing.assert_allclose(found.compute({"last": X}.__getitem__), at.b)


def test_texts_may_have_two_tokens() -> None:
    at = site_of(X[:, :1], X[:, 1:2], {"last": X[:, :2]}, real=np.ones((2, 1), bool))
    at = replace(at, recordings=(replace(at.recordings[0], batch=TokenBatch([[1, 1]] * 2)),) * 2)
    assert best(at, Pooling().explain(at)).values == ("the first vector", "the vector of the last token")


def test_a_missing_length_is_named() -> None:
    mean = "the mean over tokens"
    at = site(pooled(mean, unit=True), pooled(mean))
    assert best(at, Pooling().explain(at)).values == (f"{mean}, of length 1", mean)


def at(first: int, second: int) -> np.ndarray:
    """Return one vector of each text by its position."""
    return np.stack([X[0, first], X[1, second]])[:, None]


@pytest.mark.parametrize(
    ("a", "b", "values"),
    [
        (at(3, 1), at(2, 0), ("the vector of the first token 2", "the vector 1 earlier")),
        (at(2, 1), at(4, 3), ("the vectors at 2, 1", "the vector 2 later")),
        (at(4, 2), at(3, 1), ("the vector of the last token", "the vector of the first token 2")),
        (at(4, 2), at(3, 0), ("the vector of the last token", "the vectors at 3, 0")),
    ],
)
def test_the_vector_of_a_token_is_named_by_the_token_or_its_distance(
    a: np.ndarray, b: np.ndarray, values: tuple[str, str]
) -> None:
    found = best(site(a, b), Pooling().explain(site(a, b)))
    assert (found.cause, found.values) == ("pooling", values)


def test_a_norm_that_b_skips_before_the_pooling_is_named() -> None:
    gain = np.linspace(0.5, 1.5, 6)
    normed = X / np.sqrt((X**2).mean(-1, keepdims=True)) * gain
    before = {"norm": normed, "norm:input": X}
    settings = {"held_a": {"norm.gain": gain}, "alone": ["norm", "norm:input"]}
    skipping = module_site(normed[:, :1], X[:, :1], before, **settings)
    found = best(skipping, Pooling().explain(skipping))
    assert (found.cause, found.text) == ("missing-norm", "b lacks the norm norm")
    both = module_site(normed[:, :1], X[:, 2:3], before, **settings)
    found = best(both, Pooling().explain(both))
    assert (found.cause, found.values) == ("pooling", ("the first vector of norm", "the vector 2 later of norm:input"))


@pytest.mark.parametrize(("calls", "time", "is_named"), [(1, 2.0, True), (0, 2.0, False), (0, 4.0, True)])
def test_a_pooling_of_another_layer_is_named_if_b_calls_what_is_between(
    calls: int, time: float, is_named: bool
) -> None:
    turned = X[..., ::-1]
    tensors = [tensor(f"{name}:output#0", X, at) for name, at in (("first", 1.0), ("up", time), ("last", 3.0))]
    at = module_site(
        turned[:, :1],
        X[:, :1],
        {"last": turned, "first": X},
        key="pooled#0",
        held_a={"up.W": np.eye(6)},
        others=tensors,
    )
    b = at.recordings[1]
    kept = {key: value for key, value in b.tensors.items() if value.path != "up" or calls}
    at = replace(at, recordings=(at.recordings[0], replace(b, tensors=kept)))
    values = [("the first vector of last", "the first vector of first")]
    assert [found.values for found in Pooling().explain(at)] == (values if is_named else [])


def test_what_is_no_pooling_is_not_named() -> None:
    other = np.random.default_rng(1).normal(size=(len(X), 1, 6))
    assert Pooling().explain(site(pooled("the first vector"), other)) == []
    assert Pooling().explain(site(other, pooled("the first vector"))) == []
    assert Pooling().explain(site(X, 2 * X)) == []
    one = X[:, :1]  # of a text of one token, which every pooling returns
    unit = one / np.linalg.norm(one, axis=-1, keepdims=True)
    at = site_of(one, unit, {"last": one})
    assert Pooling().explain(at) == []
