"""Defaults of requests, tolerances of traces, and what is said of models that no backend owns."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.backend import Callback, NativeObjective, unowned
from embgrad.backend.objective_callback import BatchObjective, callback_of
from embgrad.backend.protocol import Request, Weight
from embgrad.backend.registry import model_in
from embgrad.backend.replay import AGREEING, agreeing, differ
from embgrad.objectives.objective import Layouts, OpenPositionsError
from embgrad.testing.reference import ReferenceModel, lookup

IDS = np.array([[1, 2, 3], [4, 5, 6]])


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [([], 1e-4), (["int64", "bool"], 1e-4), (["float64"], 1e-8), (["float64", "float32", "int64"], 1e-4),
        (["float32", "float16"], 5e-2), (["float16", "bfloat16", "float64"], 1e-1)],
)  # fmt: skip
def test_two_runs_agree_within_the_digits_of_the_coarsest_dtype(dtypes: list[str], expected: float) -> None:
    assert agreeing(dtypes) == expected
    assert sorted(AGREEING.values()) == [1e-8, 1e-4, 5e-2, 1e-1]


def test_which_results_differ() -> None:
    ones = np.ones(4)
    for first, second, relative, absolute, expected in (
        (ones, ones, 0.0, 0.0, False),
        (ones, ones * 1.001, 1e-2, 0.0, False),
        (ones, ones * 1.1, 1e-2, 0.0, True),
        (ones, ones * 1.1, 1e-2, 1.0, False),
        (None, None, 0.0, 0.0, False),
        (ones, None, 1.0, 1.0, True),
        (None, ones, 1.0, 1.0, True),
        (ones, np.ones(3), 1.0, 1.0, True),
        (ones, ones * np.nan, 1.0, 1.0, True),
        (ones * np.nan, ones * np.nan, 0.0, 0.0, False),
    ):
        assert bool(differ(first, second, relative, absolute)) == expected, (first, second, relative, absolute)


def test_a_request_asks_for_a_pullback_in_evaluation_mode_unless_it_says_otherwise() -> None:
    request = Request()
    assert (request.pullback, request.training) == (True, False)
    assert not any(map(len, (request.points, request.objectives, request.override, request.add, request.edit)))


def test_a_weight_is_shown_without_its_functions() -> None:
    shown = repr(Weight("up.W", "up", (2,), "float32", get=np.array, rows=np.array, put=np.array))
    assert shown.startswith("Weight(name='up.W', module='up', shape=(2,), dtype='float32', canonical=")


def test_an_objective_is_called_back_once_for_the_whole_batch() -> None:
    objective, batch = embgrad.Sum(), embgrad.TokenBatch(IDS)
    made = callback_of(objective, batch)
    assert isinstance(made, BatchObjective)
    defaults = {name: it.default for name, it in inspect.signature(callback_of).parameters.items()}
    assert (defaults["sets"], defaults["sized"]) == (1, False)
    assert made.objective is objective
    assert made({None: np.arange(6.0).reshape(2, 3)}).values.tolist() == [3.0, 12.0]
    answer = Callback(lambda outputs: [])({})
    assert (answer.values.size, answer.sets, answer.shape, answer.size) == (0, [], None, 0)
    native = NativeObjective(len, scalar=False)
    assert [Request((), own).has_native for own in ((made,), (made, native), ())] == [False, True, False]


@pytest.mark.parametrize("sets", [0, 1, 2])
@pytest.mark.parametrize("sized", [False, True])
def test_the_answer_to_a_whole_output_and_to_the_rows_that_are_read(sets: int, sized: bool) -> None:
    batch, output = embgrad.TokenBatch(IDS), np.random.default_rng(0).normal(size=(2, 3, 4))
    output[0, 0, 0] = np.inf  # as at a masked class, which the objective does not read
    given = {"sets": sets, "sized": sized}
    slope = np.zeros((2, 3, 4))
    slope[[0, 1], [2, 1], 3] = 1
    by_example = slope * np.eye(2)[:, :, None, None]
    at = embgrad.Logit(3, position=[2, 1])
    for whole in (callback_of(at, batch, **given), callback_of(at, batch, **given, layouts=Layouts())):
        found = whole({None: output})
        assert found.values.tolist() == output[[0, 1], [2, 1], 3].tolist()
        cotangents = [one[None] for one in found.sets]
        np.testing.assert_array_equal(cotangents, [[], [slope], by_example][sets])
        assert (found.shape, found.size) == (output.shape, np.abs(found.values).sum() if sized else 0)
        rows = whole.reads(None, output.shape)
        np.testing.assert_array_equal(rows, [[0, 1], [2, 1]])
        read = whole({None: output[rows]})
        np.testing.assert_array_equal(
            [one[None] for one in read.sets], [[], [slope[rows]], by_example[(slice(None), *rows)]][sets]
        )
        assert (read.shape, read.size) == (found.shape, found.size)


def test_an_answer_does_not_read_the_positions_before_the_batchs() -> None:
    batch, output = embgrad.TokenBatch(IDS), np.random.default_rng(0).normal(size=(2, 5, 4))
    layouts = Layouts(prefixed={(None, 2): True})
    for objective, own in ((embgrad.Sum(), output[:, 2:].sum((1, 2))), (embgrad.Logit(1, position=0), output[:, 2, 1])):
        made = callback_of(objective, batch, layouts=layouts)
        found = made({None: output})
        np.testing.assert_allclose(found.values, own)
        assert not found.sets[0][None][:, :2].any()
    np.testing.assert_array_equal(made.reads(None, output.shape), [[0, 1], [2, 2]])
    half = callback_of(embgrad.Logit(1, position=0), embgrad.TokenBatch(IDS[:, :2]))
    np.testing.assert_array_equal(half.reads(None, (2, 2, 4)), [[0, 1], [0, 0]])
    layouts.prefixed[None, 2] = False
    np.testing.assert_allclose(
        callback_of(embgrad.Sum(), batch, layouts=layouts)({None: output}).values, output.sum((1, 2))
    )
    with pytest.raises(OpenPositionsError):
        callback_of(embgrad.Sum(), batch, layouts=Layouts())({None: output})


def test_where_a_backend_is_registered_or_broken_its_installation_is_no_advice() -> None:
    assert unowned.nothing_registered({}, {}).startswith(" No backend is registered at all: install embgrad itself")
    found: Any = SimpleNamespace()
    assert unowned.nothing_registered({"a": found}, {}) == unowned.nothing_registered({}, {"a": "raised"}) == ""


def model() -> ReferenceModel:
    return ReferenceModel(lambda own, input_ids: lookup(own["E"], input_ids), {"E": np.ones((9, 2))})


def test_the_model_of_a_pipeline_is_the_model_and_a_model_is_itself() -> None:
    inner, other = model(), model()
    assert model_in(SimpleNamespace(model=inner)) is inner
    assert model_in(inner) is inner
    inner.model = other  # type: ignore[attr-defined]
    assert model_in(inner) is inner
    holder = SimpleNamespace(model="a name")
    assert model_in(holder) is holder
    assert model_in([inner]) == [inner]


def test_several_parts_without_a_backend_get_no_advice_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unowned, "_is_jitted", lambda part: True)
    advice = unowned._advice([object()])
    assert advice is not None
    assert advice.startswith("it is a function under jit, which holds no weights")
    assert unowned._advice([object(), object()]) is None


def test_a_base_class_of_all_keras_backends_names_none() -> None:
    layer = type("Layer", (), {"__module__": "keras.src.layers"})
    base = type("Variables", (layer,), {"__module__": "keras.src.backend"})
    assert unowned._keras_backend(base()) is None
    assert unowned._keras_backend(type("Dense", (base,), {"__module__": "keras.src.backend.jax.layer"})()) == "jax"
