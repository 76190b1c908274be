"""A lookup of one number for each token is "word" only where the model reads the ids in no other way."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.engine.sole_use import _with_other_tokens, expect_sole_use
from embgrad.model_points.points import Lookup
from embgrad.testing.reference import ReferenceModel, Tensor, lookup

IDS = np.array([[1, 3, 5, 8, 2], [1, 4, 7, 6, 2]])
RANDOM = np.random.default_rng(3)
WEIGHTS = {"scale": RANDOM.normal(size=(10, 1)), "H": RANDOM.normal(size=(4, 2)), "h": RANDOM.normal(size=(1, 2))}
ROWS = RANDOM.integers(-9, 9, (10, 4))
LOGIT = embgrad.Logit(1)
SPECIAL = (0, 1, 2, 9)


def quantised(model: Any, ids: np.ndarray) -> Tensor:
    """Multiply rows of whole numbers, which Python reads, with a scale for each token."""
    return (lookup(model["scale"], ids) * Tensor(ROWS[ids] * 1.0)).mean(1) @ model["H"]


def language_model(model: Any, ids: np.ndarray) -> Tensor:
    rows = lookup(model["scale"], ids) * Tensor(np.cumsum(ROWS[ids], 1) * 0.1)
    return rows @ model["H"] @ Tensor(np.eye(2, 10))


def plain(model: Any, ids: np.ndarray) -> Tensor:
    return lookup(model["scale"], ids).sum(1).tanh() @ model["h"]


def masked(model: Any, ids: np.ndarray) -> Tensor:
    """Make a mask of the ids, of padding and of the tokens that begin, part and end a text."""
    mask = Tensor((~np.isin(ids, SPECIAL) * 1.0)[..., None])
    return (lookup(model["scale"], ids) * mask).sum(1).tanh() @ model["h"]


def model_of(forward: Callable[..., Tensor]) -> tuple[ReferenceModel, list[np.ndarray]]:
    """Return a model, and the ids of its passes."""
    seen: list[np.ndarray] = []

    def recorded(model: Any, ids: np.ndarray) -> Tensor:
        seen.append(ids)
        return forward(model, ids)

    return ReferenceModel(recorded, WEIGHTS), seen


@pytest.mark.parametrize(
    "call",
    [
        embgrad.gradients,
        lambda *args: embgrad.gradients(*args, batch_size=1),
        lambda *args: embgrad.attribute(*args, embgrad.methods.IntegratedGradients(2)),
        lambda *args: embgrad.attribute(*args, embgrad.methods.Occlusion("zero")),
    ],
)
def test_a_scale_beside_rows_that_python_reads_is_not_word(call: Any) -> None:
    model, _ = model_of(quantised)
    with pytest.raises(
        embgrad.errors.PointNotReachedError,
        match=r"^the lookup scale#0 .* has one number for each token, and with its values as they are L changes by up to \d",
    ):
        call(model, IDS, LOGIT)
    found = embgrad.gradients(model, IDS, LOGIT, at="scale")
    np.testing.assert_allclose(found.values[..., 0], ROWS[IDS] @ WEIGHTS["H"][:, 1] / 5)


@pytest.mark.parametrize("method", ["input_x_gradient", embgrad.methods.IntegratedGradients(2)])
def test_output_tokens_of_such_a_scale_are_refused(method: Any) -> None:
    with pytest.raises(embgrad.errors.PointNotReachedError, match="has one number for each token"):
        embgrad.attribute_tokens(model_of(language_model)[0], IDS, method=method)


@pytest.mark.parametrize("forward", [plain, masked])
@pytest.mark.parametrize(
    "ids",
    [IDS, IDS[:1], IDS[:1, 1:2], np.array([[1, 3, 2, 0], [1, 4, 5, 2]]), np.array([[1, 3, 9, 8, 2], [1, 4, 9, 6, 2]]),
        np.zeros((2, 3), int)],
)  # fmt: skip
def test_an_embedding_of_one_number_is_word(forward: Callable[..., Tensor], ids: np.ndarray) -> None:
    model, _ = model_of(forward)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = embgrad.gradients(model, ids, LOGIT)
    slope = (1 - np.tanh(forward_sum(forward, ids)) ** 2) * WEIGHTS["h"][0, 1]
    kept = ~np.isin(ids, SPECIAL) if forward is masked else np.ones(ids.shape)
    np.testing.assert_allclose(found.values[..., 0], slope * kept, atol=1e-12)


def forward_sum(forward: Callable[..., Tensor], ids: np.ndarray) -> np.ndarray:
    kept = ~np.isin(ids, SPECIAL) if forward is masked else np.ones(ids.shape)
    return np.asarray((WEIGHTS["scale"][ids, 0] * kept).sum(1, keepdims=True))


def test_the_test_is_made_once_with_other_tokens_inside_the_texts() -> None:
    model, seen = model_of(plain)
    for _ in range(2):
        embgrad.gradients(model, IDS, LOGIT)
    own, other, again = seen
    np.testing.assert_array_equal(own, again)
    assert (other[:, 1:-1] != IDS[:, 1:-1]).all()
    np.testing.assert_array_equal(other[:, [0, -1]], IDS[:, [0, -1]])


def test_rows_of_two_numbers_take_no_further_pass() -> None:
    weights = {"scale": RANDOM.normal(size=(10, 2)), "h": RANDOM.normal(size=(2, 2))}
    model, seen = model_of(plain)
    embgrad.gradients(ReferenceModel(model.forward, weights), IDS, LOGIT)
    assert len(seen) == 1


def test_a_model_that_takes_no_other_ids_is_run_as_it_is() -> None:
    def forward(model: Any, ids: np.ndarray) -> Tensor:
        if (ids != IDS).any():
            raise ValueError("other ids")
        return plain(model, ids)

    assert embgrad.gradients(model_of(forward)[0], IDS, LOGIT).values.shape == (2, 5, 1)


@pytest.mark.parametrize(
    ("ids", "lengths", "rows", "other"),
    [
        ([[1, 3, 5, 8, 2], [1, 4, 7, 6, 2]], [5, 5], 10, [[1, 4, 6, 3, 2], [1, 5, 8, 7, 2]]),
        ([[1, 3, 9, 8, 2], [1, 4, 9, 6, 2]], [5, 5], 10, [[1, 4, 9, 3, 2], [1, 6, 9, 8, 2]]),
        ([[1, 3, 2, 0], [1, 4, 5, 2]], [3, 4], 10, [[1, 4, 2, 0], [1, 5, 3, 2]]),
        ([[1, 3, 2, 5], [1, 4, 5, 2]], [3, 4], 10, [[1, 4, 2, 5], [1, 3, 5, 2]]),
        ([[7, 8, 9]], [3], 12, [[7, 10, 9]]),
        ([[7, 8, 9]], [3], 10, [[7, 1, 9]]),
        ([[5, 6]], [2], 10, [[6, 5]]),
        ([[5]], [1], 7, [[6]]),
        ([[5]], [1], 6, [[1]]),
        ([[1]], [1], 2, None),
        ([[5, 6], [5, 6]], [2, 2], 10, None),
        ([[0, 0, 0]], [3], 10, None),
    ],
)
def test_the_other_tokens_are_ordinary_ones_in_turn(ids: Any, lengths: list[int], rows: int, other: Any) -> None:
    mask = np.arange(len(ids[0])) < np.array(lengths)[:, None]
    made = _with_other_tokens(embgrad.TokenBatch(ids, mask), rows)
    assert (None if made is None else made.ids.tolist()) == other


@pytest.mark.parametrize(("dtype", "share"), [("float32", 2**-12), ("float64", 2**-26.5)])
@pytest.mark.parametrize("largest", [2.0, 8.0])
def test_how_much_the_objective_may_change_with_the_other_ids(dtype: str, share: float, largest: float) -> None:
    memory: dict[Any, bool] = {}
    bound: Any = SimpleNamespace(supports=lambda _: True, call=None, memory_of=lambda _: memory)
    calls = []

    def expect(change: float) -> None:
        def evaluate(other: embgrad.TokenBatch) -> np.ndarray:
            calls.append(other)
            return np.array([1.0, -largest])

        own = np.array([1.0 + change, -largest])
        expect_sole_use(bound, embgrad.TokenBatch(IDS), Lookup("scale", 0, IDS, 10, 1, None), own, dtype, evaluate)

    for _ in range(2):
        with pytest.raises(embgrad.errors.PointNotReachedError, match="changes by up to"):
            expect(1.1 * share * largest)
    assert len(calls) == 2
    for _ in range(2):
        expect(0.9 * share * largest)
    assert len(calls) == 3, "what was seen once is remembered"
