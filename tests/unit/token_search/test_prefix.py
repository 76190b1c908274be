"""Texts that are run from where they differ, with a backend in NumPy that keeps the ids of a text in place of keys and values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.backend.protocol import BoundModel
from embgrad.testing.reference import ReferenceBackend, ReferenceModel, Tensor, lookup
from embgrad.token_search import prefix as prefix_module
from embgrad.token_search.prefix import SharedPrefixes, _Answer
from tests.unit.attribution.language_models import causal, weights

LENGTH = 8
IDS = np.tile([2, 7, 5, 9, 4, 3, 8, 6], (6, 1))
IDS[np.arange(6), [2, 2, 3, 3, 4, 4]] = [10, 11, 10, 11, 10, 11]
OBJECTIVE = embgrad.LogProbability(np.where(np.arange(LENGTH) >= 6, IDS, -100))

#: The shapes of the ids of each pass, in order.
PASSES: list[tuple[int, ...]] = []


class Kept:
    """Keeps the ids of a text, see `embgrad.backend.Prefix`.

    Args:
        changed: changes the outputs of texts that go on.
    """

    def __init__(self, changed: Callable[[np.ndarray], np.ndarray]) -> None:
        self._find_changed = changed
        self._ids = np.zeros(0, np.int64)

    @property
    def length(self) -> int:
        """The number of ids."""
        return len(self._ids)

    def fill(self, model: Any, inputs: Any, last: int) -> Any:
        """Keep the ids."""
        PASSES.append(inputs["input_ids"].shape)
        self._ids = inputs["input_ids"][0]
        return Tensor(model(**inputs).value[:, -last:])

    def after(self, length: int, last: int) -> Any:
        """Return a call that puts the first ids before those of each text."""

        def call(model: Any, inputs: Any) -> Any:
            ids = inputs["input_ids"]
            PASSES.append(ids.shape)
            before = np.tile(self._ids[:length], (len(ids), 1))
            return Tensor(self._find_changed(model(np.concatenate([before, ids], 1)).value[:, -last:]))

        return call


class Keeping(ReferenceBackend):
    """The reference backend, whose models take what they kept."""

    def __init__(self, changed: Callable[[np.ndarray], np.ndarray] = lambda rows: rows) -> None:
        self.changed = changed

    def prefix(self, model: Any) -> Kept:
        """Return what keeps a text."""
        return Kept(self.changed)


def shared(
    backend: Any = None,
    model: Any = None,
    batch: Any = None,
    objective: Any = OBJECTIVE,
    batch_size: int | None = None,
) -> tuple[np.ndarray, SharedPrefixes]:
    PASSES.clear()
    prefixes = SharedPrefixes(BoundModel(backend or Keeping(), model or causal()), batch_size)
    batch = embgrad.TokenBatch(IDS) if batch is None else batch
    return prefixes.evaluate(batch, np.zeros(len(batch), int), objective), prefixes


def test_the_objective_is_that_of_whole_texts() -> None:
    values, prefixes = shared()
    np.testing.assert_allclose(values, embgrad.evaluate(causal(), IDS, OBJECTIVE), rtol=1e-14)
    assert prefixes.describe() == {"prefix_cache": True}
    assert PASSES == [(1, 7), (7, 5)]  # the last token predicts nothing; the shared text is continued too


def test_what_is_kept_is_compared_with_whole_texts_once() -> None:
    model, sizes = causal(), list[int]()
    forward = model.forward

    def counted(own: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Any:
        sizes.append(len(input_ids))
        return forward(own, input_ids, attention_mask)

    model.forward = counted
    values, prefixes = shared(model=model)
    assert len(sizes) > 2
    sizes.clear()
    np.testing.assert_array_equal(prefixes.evaluate(embgrad.TokenBatch(IDS), np.zeros(6, int), OBJECTIVE), values)
    assert sizes == [1, 7]


def test_no_pass_runs_more_texts_than_allowed() -> None:
    values, prefixes = shared(batch_size=2)
    assert prefixes.used
    np.testing.assert_allclose(values, embgrad.evaluate(causal(), IDS, OBJECTIVE), rtol=1e-14)
    assert PASSES == [(1, 7), (2, 5), (2, 5), (2, 4), (1, 3)]


def test_large_passes_are_divided_where_more_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_module, "ENOUGH_POSITIONS", 8)
    values, _ = shared()
    assert PASSES == [(1, 7), (3, 5), (2, 4), (2, 3)]
    np.testing.assert_allclose(values, embgrad.evaluate(causal(), IDS, OBJECTIVE), rtol=1e-14)


def test_rows_are_widened_for_few_texts_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_module, "MOST_WIDENED", 50)  # two texts with two rows of twelve entries
    values, _ = shared()
    np.testing.assert_allclose(values, embgrad.evaluate(causal(), IDS, OBJECTIVE), rtol=1e-14)


def test_texts_that_share_nothing_are_left_out() -> None:
    ids = np.concatenate([IDS, [[1, 7, 5, 9, 4, 3, 8, 6]]])
    objective = embgrad.LogProbability(np.where(np.arange(LENGTH) >= 6, ids, -100))
    values, prefixes = shared(batch=embgrad.TokenBatch(ids), objective=objective)
    assert prefixes.used
    np.testing.assert_array_equal(np.isnan(values), [False] * 6 + [True])
    assert PASSES == [(1, 7), (7, 5)]


def reason(*arguments: Any, **options: Any) -> str:
    values, prefixes = shared(*arguments, **options)
    assert np.isnan(values).all()
    described = prefixes.describe()
    assert not described["prefix_cache"]
    return str(described["without_prefix_cache"])


def test_outputs_that_differ_from_those_of_whole_texts_are_not_used() -> None:
    assert "differ from those of the whole text" in reason(Keeping(lambda rows: rows * (1 + 1e-9)))


def test_one_text_that_differs_suffices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shared text itself tells of a computation that depends on what stands before, as that of padding does."""
    values, prefixes = shared()
    prefixes.bound.backend.changed = lambda rows: rows + 1e-3 * (len(rows) > 1)  # type: ignore[attr-defined]
    again = prefixes.evaluate(embgrad.TokenBatch(IDS), np.zeros(len(IDS), int), OBJECTIVE)
    assert np.isfinite(values).all()
    assert np.isnan(again).all()
    described = prefixes.describe()
    assert described["prefix_cache"]  # for the texts before
    assert "differ" in described["without_prefix_cache"]


def _looking_ahead(model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
    rows = lookup(model["E"], input_ids)
    return (rows + rows.sum(1).reshape(len(input_ids), 1, rows.value.shape[-1])) @ model["W"]


def test_a_model_whose_rows_depend_on_later_tokens_runs_whole_texts() -> None:
    assert "differ" in reason(model=ReferenceModel(_looking_ahead, weights()))

    def peeking(model: Any, input_ids: np.ndarray, attention_mask: Any = None) -> Tensor:
        """Read a later token at one position of what the texts share."""
        seen = np.eye(input_ids.shape[1])
        seen[1, 5] = 1
        return Tensor(seen) @ lookup(model["E"], input_ids) @ model["W"]

    assert "differ" in reason(model=ReferenceModel(peeking, weights()))


def test_outputs_of_another_shape_are_not_used() -> None:
    summed = ReferenceModel(lambda model, input_ids: lookup(model["E"], input_ids).sum(1), weights())
    assert reason(model=summed) == "the output of shape (1, 2) has no row for each position"
    assert "does not hold the last positions" in reason(Keeping(lambda rows: rows[:, :1]))
    longer = ReferenceModel(
        lambda model, input_ids, **_: lookup(model["E"], np.append(input_ids, input_ids, 1)) @ model["W"], weights()
    )
    assert "has no row for each of 8 positions" in reason(model=longer)


def test_objectives_without_positions_and_further_inputs_run_whole_texts() -> None:
    assert reason(objective=embgrad.CrossEntropy([0] * 6)) == "the objective reads an output without positions"
    assert reason(objective=embgrad.Sum()) == "there were too few texts that begin alike"
    extras = embgrad.TokenBatch(IDS, extras={"positions": np.zeros(IDS.shape), "also": np.zeros(6)})
    assert reason(batch=extras) == "the model has further inputs: also, positions"

    class Whole(embgrad.Sum):
        def evaluate(self, output: np.ndarray, batch: Any) -> tuple[np.ndarray, np.ndarray]:
            return super().evaluate(output, batch)

    assert reason(objective=Whole()) == "Whole has its own evaluate, which takes whole outputs"


def test_a_backend_without_the_method_runs_whole_texts() -> None:
    assert reason(ReferenceBackend()) == "the model does not take what it kept of a text"
    assert not PASSES


def test_what_the_model_raises_is_the_reason() -> None:
    def refuses(rows: np.ndarray) -> np.ndarray:
        raise RuntimeError("no cache today")

    assert reason(Keeping(refuses)) == "a pass over part of a text raised RuntimeError: no cache today"


def test_an_answer_keeps_the_rows_that_each_text_reads() -> None:
    labels = np.array([[-100, -100, 3, 4], [-100, 5, -100, 1]])  # of which the position before reads
    answer = _Answer(embgrad.LogProbability(labels), embgrad.TokenBatch(labels.clip(0)), 3)
    assert [answer.positions_of(text).tolist() for text in (0, 1)] == [[1, 2], [0, 2]]
    examples, places = answer.reads(None, (2, 3, 9))
    output = np.random.default_rng(0).normal(size=(2, 3, 9))
    answer({None: output[examples, places]})
    np.testing.assert_array_equal(answer.rows_of(1), output[1, [0, 2]])
    logs = output - np.log(np.exp(output).sum(-1, keepdims=True))
    np.testing.assert_allclose(answer.values, [logs[0, 1, 3] + logs[0, 2, 4], logs[1, 0, 5] + logs[1, 2, 1]])
