"""Signatures, budgets of what is kept, defaults of requests, and tolerances of traces."""

from __future__ import annotations

import functools
import inspect
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.backend import unowned
from embgrad.backend.objective_callback import BatchObjective, callback_of
from embgrad.backend.protocol import Request
from embgrad.backend.registry import model_in
from embgrad.backend.replay import AGREEING, agreeing, differ
from embgrad.testing.reference import ReferenceModel, lookup
from embgrad.toolkit import object_state
from embgrad.toolkit.object_state import ObjectState
from embgrad.toolkit.signature import _further, _signature, parameters_of, plan_call

IDS = np.array([[1, 2, 3], [4, 5, 6]])


class Model:
    def forward(self, ids: Any, training: Any = None, mask: Any = None, *, types: Any = None) -> None:
        pass


def test_what_follows_a_skipped_parameter_is_passed_by_name() -> None:
    found = parameters_of(Model().forward, ["training"])
    assert [(p.name, p.kind.name) for p in found] == [
        ("ids", "POSITIONAL_OR_KEYWORD"),
        ("mask", "KEYWORD_ONLY"),
        ("types", "KEYWORD_ONLY"),
    ]
    whole = [(p.name, p.kind.name) for p in parameters_of(Model().forward)]
    assert whole[:3] == [(name, "POSITIONAL_OR_KEYWORD") for name in ("ids", "training", "mask")]
    assert [p.name for p in parameters_of(Model().forward, ["types"])] == ["ids", "training", "mask"]
    assert {p.kind.name for p in parameters_of(Model().forward, ["types"])} == {"POSITIONAL_OR_KEYWORD"}
    assert parameters_of(Model().forward, ["training"]) is found, "it is made once"


def test_a_signature_is_made_anew_where_the_function_has_changed() -> None:
    class Own:
        def forward(self, ids: Any, mask: Any = None) -> None:
            pass

    first = _signature(Own().forward)
    assert _signature(Own().forward) is first
    Own.forward.__defaults__ = (1,)
    second = _signature(Own().forward)
    assert (first[1].default, second[1].default) == (None, 1)
    Own.forward.__signature__ = inspect.Signature([second[0]])  # type: ignore[attr-defined]
    assert len(_signature(Own().forward)) == 0, "the first is self"

    def wrapping(inner: Any) -> Any:
        @functools.wraps(inner)
        def outer(*args: Any, **kwargs: Any) -> Any:
            return inner(*args, **kwargs)

        return outer

    Own.forward = wrapping(lambda self, words: None)  # type: ignore[method-assign]
    assert [p.name for p in _signature(Own().forward)] == ["words"]
    assert [p.name for p in _signature(lambda ids, mask=None: None)] == ["ids", "mask"]


@pytest.mark.parametrize(("convention", "bare"), [("ids", True), ("huggingface", False)])
def test_a_signature_without_names_gets_bare_ids_only_where_the_user_gave_them_so(convention: str, bare: bool) -> None:
    batch = embgrad.TokenBatch(IDS, convention=convention)
    both = plan_call(parameters_of(lambda *args, **kwargs: None), batch)
    assert (len(both.args), [*both.kwargs]) == ((1, []) if bare else (0, ["input_ids"]))
    named = plan_call(parameters_of(lambda **kwargs: None), batch)
    assert (len(named.args), [*named.kwargs]) == (0, ["input_ids"])
    masked = embgrad.TokenBatch(IDS, np.ones_like(IDS), convention=convention)
    placed = plan_call(parameters_of(lambda *args: None), masked)
    assert (len(placed.args), placed.kwargs, placed.unused) == (1, {}, ("mask",))


def test_a_mask_of_the_decoder_that_was_not_given_is_ones() -> None:
    batch = embgrad.TokenBatch(IDS, extras={"decoder_input_ids": IDS[:, :2]})
    found = _further("decoder_attention_mask", batch)
    assert found is not None
    assert found[0] == "decoder_input_ids"
    np.testing.assert_array_equal(found[1], np.ones((2, 2)))
    assert _further("attention_mask", batch) is None
    assert _further("decoder_attention_mask", embgrad.TokenBatch(IDS)) is None


@pytest.mark.parametrize("kind", [list, dict])
def test_nested_containers_are_kept_up_to_a_number_of_entries(monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
    monkeypatch.setattr(object_state, "MOST_ENTRIES", 10)

    def made(count: int) -> Any:
        return dict.fromkeys(range(count), 0) if kind is dict else [0] * count

    def write(container: Any) -> None:
        container[0] = 1

    own = {"plain": made(10), "outer": [made(4), made(4), made(4)], "other": made(10)}
    state = ObjectState([own])
    for container in (own["plain"], own["other"], *own["outer"]):
        write(container)
    state.restore()
    assert [own["plain"][0], own["other"][0]] == [0, 0], "attributes themselves are of any number"
    assert [container[0] for container in own["outer"]] == [0, 0, 1], "4 + 4 + 4 are more than 10"


def test_arrays_are_kept_up_to_a_size_each_and_together() -> None:
    sizes = [1 << 16, (1 << 16) + 1]
    arrays = [np.zeros(size, np.int8) for size in sizes]
    many = [np.zeros(1 << 16, np.int8) for _ in range(17)]
    for kept, expected in ((arrays, [0, 1]), (many, [0] * 16 + [1])):
        state = ObjectState([{str(number): array for number, array in enumerate(kept)}])
        for array in kept:
            array[0] = 1
        state.restore()
        assert [int(array[0]) for array in kept] == expected


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        ([], 1e-4),
        (["int64", "bool"], 1e-4),
        (["float64"], 1e-8),
        (["float64", "float32", "int64"], 1e-4),
        (["float32", "float16"], 5e-2),
        (["float16", "bfloat16", "float64"], 1e-1),
    ],
)
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


def test_an_objective_is_called_back_once_for_the_whole_batch() -> None:
    objective, batch = embgrad.Sum(), embgrad.TokenBatch(IDS)
    made = callback_of(objective, batch)
    assert isinstance(made, BatchObjective)
    assert inspect.signature(callback_of).parameters["sets"].default == 1
    assert made.objective is objective


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
