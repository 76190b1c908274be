"""Recordings on the reference: models with several outputs, with and without gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.comparison.live_side import LiveSide
from embgrad.comparison.partial_calls import steps_of
from embgrad.comparison.port import check_port
from embgrad.comparison.recording import FINAL, read_once
from embgrad.errors import EmbgradError, OutputError
from embgrad.model_points.points import Point
from embgrad.testing.reference import ReferenceModel, Tensor, lookup

IDS = [[1, 2, 3], [4, 5, 6]]


def encoder(factor: float = 1.0) -> ReferenceModel:
    """Return a model with two outputs, the states and their mean."""

    def forward(m: Any, input_ids: np.ndarray) -> Any:
        states = m.module("body", lambda rows: (rows @ m["body.W"]).tanh(), lookup(m["E"], input_ids))
        return {"last_hidden_state": states, "pooler_output": states.mean(1)}

    random = np.random.default_rng(0)
    weights = {"E": random.normal(size=(9, 4)), "body.W": factor * random.normal(size=(4, 4))}
    return ReferenceModel(forward, weights, ["body"])


WHOLE = slice(None)
CALLS: list[tuple[list[tuple[int, ...]], list[tuple[slice, slice]]]] = [
    ([(2, 1, 6), (2, 3, 6)], [(WHOLE, slice(0, 1)), (WHOLE, slice(1, 4))]),
    ([(2, 1, 6), (3, 3, 6)], []),  # of another number of texts
    ([(2, 1, 6), (2, 3, 5)], []),
    ([(2, 1, 6), (2, 2, 6)], []),  # a position is left
    ([(2, 1), (2, 3)], []),
    ([(2, 4, 6)], []),
    ([(1, 4, 6), (1, 3, 6)], [(slice(0, 1), slice(0, 4)), (slice(1, 2), slice(1, 4))]),
    ([(4, 6), (4, 6)], [(slice(0, 1), slice(0, 4)), (slice(1, 2), slice(0, 4))]),
    ([(4, 6), (4, 5)], []),
    ([(3, 6), (4, 6)], []),
    ([(4,), (3,)], []),
    ([(1, 4, 6)] * 3, []),
]


@pytest.mark.parametrize(("shapes", "parts"), CALLS, ids=str)
def test_calls_for_a_part_of_the_batch_make_it_up(
    shapes: list[tuple[int, ...]], parts: list[tuple[slice, slice]]
) -> None:
    batch = embgrad.TokenBatch([[1, 2, 3, 4], [0, 5, 6, 7]], [[1, 1, 1, 1], [0, 1, 1, 1]])
    points = [Point("up", (), shape, key=f"up#{number}") for number, shape in enumerate(shapes)]
    steps = [(f"up#{number}", *part) for number, part in enumerate(parts)]
    assert steps_of(points, batch) == ({"up#0": tuple(steps)} if steps else {})


def test_a_model_with_several_outputs_has_gradients_too() -> None:
    batch, objective = embgrad.TokenBatch(IDS), embgrad.Sum(output="pooled")
    recording = LiveSide(encoder(), batch, objective).record()
    assert recording.tensors[FINAL].values.shape[:2] == (len(IDS), 1)  # what the pooler returns
    word = recording.by_role("word")
    assert word is not None
    expected = embgrad.gradients(encoder(), IDS, objective)
    np.testing.assert_array_equal(word.gradient, expected.values)
    np.testing.assert_array_equal(recording.objective, expected.objective)


@pytest.mark.parametrize("objective", [None, embgrad.Sum(output="pooled")])
def test_ports_with_several_outputs_are_checked(objective: Any) -> None:
    assert check_port(encoder(), encoder(), IDS, objective).agrees
    wrong = check_port(encoder(), encoder(2.0), IDS, objective)
    assert (wrong.agrees, wrong.first) == (False, "body")
    assert [point.gradient is None for point in wrong.points if point.name == "body"] == [objective is None]


def test_states_of_all_examples_one_after_another_are_points() -> None:
    """OPT flattens examples and positions before its feed-forward nets."""

    def forward(m: Any, input_ids: np.ndarray) -> Any:
        rows = lookup(m["E"], input_ids)
        flat = m.module("flat", lambda x: (x @ m["flat.W"]).tanh(), rows.reshape(6, 4))
        return {"last_hidden_state": flat.reshape(2, 3, 4)}

    random = np.random.default_rng(0)
    weights = {"E": random.normal(size=(9, 4)), "flat.W": random.normal(size=(4, 4))}
    recording = LiveSide(ReferenceModel(forward, weights, ["flat"]), embgrad.TokenBatch(IDS)).record()
    inside = recording.of_module("flat", "output")
    assert inside is not None
    np.testing.assert_allclose(inside.values, np.tanh(weights["E"][np.array(IDS)] @ weights["flat.W"]))


def test_states_of_all_tokens_that_are_not_padding_are_points() -> None:
    """ModernBERT leaves out the padding; a tensor of more rows is none of these."""
    places = np.array([0, 1, 2, 3, 4])

    def forward(m: Any, input_ids: np.ndarray) -> Any:
        m.module("more", lambda x: x.tanh(), m["E"])
        rows = m.module("body", lambda x: x.tanh(), lookup(m["E"], input_ids.ravel()[places]))
        whole = rows.swap(0, 1) @ Tensor(np.eye(6)[places])
        return {"last_hidden_state": whole.swap(0, 1).reshape(2, 3, 4)}

    table = np.random.default_rng(0).normal(size=(9, 4))
    batch = embgrad.TokenBatch(IDS, [[1, 1, 1], [1, 1, 0]])
    recording = LiveSide(ReferenceModel(forward, {"E": table}, ["body", "more"]), batch).record()
    body = recording.of_module("body", "output")
    assert body is not None
    np.testing.assert_allclose(body.values, np.tanh(table[np.array(IDS)]) * batch.real[..., None])
    assert recording.of_module("more", "output") is None


def test_a_number_for_each_text_is_no_point() -> None:
    def forward(m: Any, input_ids: np.ndarray) -> Any:
        rows = lookup(m["E"], input_ids)
        return {"last_hidden_state": rows * m.module("score", lambda x: x.sum(2).sum(1), rows).reshape(2, 1, 1)}

    model = ReferenceModel(forward, {"E": np.ones((9, 4))}, ["score"])
    recording = LiveSide(model, embgrad.TokenBatch(IDS)).record()
    assert recording.of_module("score", "input") is not None
    assert recording.of_module("score", "output") is None


@pytest.mark.parametrize("shape", [(2, 3, 4), (6, 4)])
def test_points_that_the_first_pass_alone_reaches_are_left_out(shape: tuple[int, ...]) -> None:
    """A compiled loop may compute before its first step what no step changes, in some passes."""
    passes: list[None] = []

    def forward(m: Any, input_ids: np.ndarray) -> Any:
        rows = lookup(m["E"], input_ids)
        passes.append(None)
        if len(passes) == 1:
            for name in ("once", "also_once"):
                m.module(name, lambda x: x.tanh(), rows.reshape(*shape))
        return {"last_hidden_state": m.module("body", lambda x: x.tanh(), rows)}

    table = np.random.default_rng(0).normal(size=(9, 4))
    model = ReferenceModel(forward, {"E": table}, ["once", "also_once", "body"])
    recording = LiveSide(model, embgrad.TokenBatch(IDS)).record()
    assert recording.of_module("once", "output") is recording.of_module("also_once", "output") is None
    body = recording.of_module("body", "output")
    assert body is not None
    np.testing.assert_allclose(body.values, np.tanh(table[np.array(IDS)]))


@pytest.mark.parametrize("inner", [(), (1,)])
def test_states_whose_positions_are_the_last_axis_are_points(inner: tuple[int, ...]) -> None:
    """Convolutions take and return them so; what is put in there is turned back."""

    def forward(m: Any, input_ids: np.ndarray) -> Any:
        rows = lookup(m["E"], input_ids).swap(1, 2).reshape(2, 4, *inner, 3)
        return {"last_hidden_state": m.module("body", lambda x: x.tanh(), rows).reshape(2, 4, 3).swap(1, 2)}

    table = np.random.default_rng(0).normal(size=(9, 4))
    side = LiveSide(ReferenceModel(forward, {"E": table}, ["body"]), embgrad.TokenBatch(IDS))
    body = side.record().of_module("body", "output")
    assert body is not None
    np.testing.assert_allclose(body.values, np.tanh(table[np.array(IDS)]))
    wanted = np.arange(24.0).reshape(2, 3, 4)
    np.testing.assert_array_equal(side.led({body.key: lambda arrived: wanted}, {})[FINAL], wanted)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 1)])
def test_a_module_that_is_called_for_some_positions_at_a_time_is_one_point(sizes: tuple[int, ...]) -> None:
    """A decoder with a cache computes one token after another; each is given what is put in at the positions before it."""

    def forward(m: Any, input_ids: np.ndarray) -> Any:
        total, start = None, 0
        for size in sizes:
            rows = lookup(m["E"], input_ids[:, start : start + size]).reshape(2, size, 4)
            body = m.module("body", lambda x: x.tanh(), rows)
            last = m.module("head", lambda x: x * 2.0, body if total is None else body + total)
            own = body.sum(1).reshape(2, 1, 4)
            total, start = own if total is None else own + total, start + size
        return {"last_hidden_state": last}

    table = np.random.default_rng(0).normal(size=(9, 4))
    side = LiveSide(ReferenceModel(forward, {"E": table}, ["body", "head"]), embgrad.TokenBatch(IDS))
    recording = side.record()
    body, head, word = (recording.tensors[key] for key in ("body:output#0", "head:input#0", "E#0"))
    np.testing.assert_allclose(body.values, np.tanh(table[np.array(IDS)]))
    np.testing.assert_array_equal(word.ids, IDS)
    assert not any("#1" in key for key in recording.tensors)
    arrived: list[np.ndarray] = []

    def read(values: np.ndarray) -> np.ndarray:
        arrived.append(values)
        return values

    wanted = np.arange(24.0).reshape(2, 3, 4)
    side.led({body.key: lambda values: wanted, head.key: read}, {})
    sums = np.concatenate([np.zeros((2, 1, 4)), wanted.cumsum(1)], 1)[:, np.cumsum([0, *sizes[:-1]])]
    earlier = np.repeat(sums, sizes, 1)
    np.testing.assert_allclose(arrived[-1], wanted + earlier)

    arrived.clear()
    asked = LiveSide(side.bound.model, embgrad.TokenBatch(IDS), embgrad.Sum())
    asked.led({body.key: lambda values: values}, {body.key: read})  # in the order of the backward pass
    np.testing.assert_allclose(arrived[-1], asked.record().tensors[body.key].gradient)


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("unpadded", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_a_model_that_takes_each_text_in_turn_has_points_of_the_whole_batch(
    unpadded: bool, left: bool, alone: bool
) -> None:
    """A text may be an example by itself, or have no axis of examples."""
    mask = np.array([[0, 1, 1], [1, 1, 1]]) if left else np.array([[1, 1, 0], [1, 1, 1]])
    texts = [slice(None, None)] * 2
    if unpadded:
        texts = [slice(1, None) if left else slice(None, 2), slice(None)]

    def forward(m: Any, input_ids: np.ndarray, attention_mask: np.ndarray) -> Any:
        for number, text in enumerate(texts):
            rows = lookup(m["E"], input_ids[number, text] if alone else input_ids[number : number + 1, text])
            last = m.module("head", lambda x: x * 2.0, m.module("body", lambda x: x.tanh(), rows))
        return last.sum(0 if alone else 1)

    table = np.random.default_rng(0).normal(size=(9, 4))
    side = LiveSide(ReferenceModel(forward, {"E": table}, ["body", "head"]), embgrad.TokenBatch(IDS, mask))
    body, word = (side.record().tensors[key] for key in ("body:output#0", "E#0"))
    seen = np.ones((2, 3), bool)
    if unpadded:
        seen = mask.astype(bool)
    np.testing.assert_allclose(body.values[seen], np.tanh(table[np.array(IDS)])[seen])
    np.testing.assert_array_equal(word.ids[seen], np.array(IDS)[seen])
    assert not body.values[~seen].any()
    arrived: list[np.ndarray] = []

    def read(values: np.ndarray) -> np.ndarray:
        arrived.append(values)
        return values

    wanted = np.arange(24.0).reshape(2, 3, 4)
    side.led({body.key: lambda values: wanted, "head:input#0": read}, {})
    np.testing.assert_allclose(arrived[-1][seen], wanted[seen])


def test_calls_for_other_lengths_are_not_those_of_texts() -> None:
    def forward(m: Any, input_ids: np.ndarray) -> Any:
        for number, stop in ((0, 2), (1, 3)):
            last = m.module("body", lambda x: x.tanh(), lookup(m["E"], input_ids[number : number + 1, :stop]))
        return last.sum(1)

    model = ReferenceModel(forward, {"E": np.ones((9, 4))}, ["body"])
    assert "body:output#0" not in LiveSide(model, embgrad.TokenBatch(IDS)).record().tensors


def test_lookups_of_a_decoder_are_points_of_its_own_length() -> None:
    def forward(m: Any, input_ids: np.ndarray, decoder_input_ids: np.ndarray) -> Any:
        lookup(m["E"], input_ids)
        rows = lookup(m["E"], decoder_input_ids) + lookup(m["P"], np.arange(4))
        return {"last_hidden_state": m.module("body", lambda x: x.tanh(), rows)}

    random = np.random.default_rng(0)
    weights = {"E": random.normal(size=(9, 4)), "P": random.normal(size=(5, 4))}
    model = ReferenceModel(forward, weights, ["body"])
    later = np.array([[1, 2, 5, 6], [3, 4, 0, 7]])
    recording = LiveSide(model, embgrad.TokenBatch(IDS, extras={"decoder_input_ids": later})).record()
    at_tables = {tensor.key: tensor for tensor in recording.tensors.values() if tensor.side is None}
    ids, positions = (next(t for t in at_tables.values() if t.values.shape == (2, 4, 4) and t.path == p) for p in "EP")
    np.testing.assert_array_equal(ids.values, weights["E"][later])
    np.testing.assert_array_equal(positions.values, np.broadcast_to(weights["P"][:4], (2, 4, 4)))
    np.testing.assert_array_equal(positions.ids, [[0, 1, 2, 3]] * 2)


@pytest.mark.parametrize("objective", [None, embgrad.Sum(output="pooled")])
def test_a_model_is_called_by_the_function_with_gradients_and_without(objective: Any) -> None:
    def twice(model: Any, inputs: Any) -> Any:
        return {name: output * 2 for name, output in model(**inputs).items()}

    plain, called = (LiveSide(encoder(), embgrad.TokenBatch(IDS), objective, call).record() for call in (None, twice))
    np.testing.assert_array_equal(called.tensors[FINAL].values, 2 * plain.tensors[FINAL].values)
    assert plain.size > 0 if objective else (plain.size, plain.objective) == (0, None)


@pytest.mark.parametrize("examples", [1, 2, 3])
def test_examples_on_the_second_axis_are_known_of_as_many_positions(examples: int) -> None:
    def forward(m: Any, input_ids: np.ndarray) -> Any:
        states = m.module("body", lambda x: x.tanh(), lookup(m["E"], input_ids).swap(0, 1))
        return {"last_hidden_state": states.swap(0, 1)}

    ids = np.arange(examples**2).reshape(examples, examples)
    table = np.random.default_rng(0).normal(size=(9, 4))
    recording = LiveSide(ReferenceModel(forward, {"E": table}, ["body"]), embgrad.TokenBatch(ids)).record()
    body = recording.of_module("body", "output")
    assert body is not None
    np.testing.assert_allclose(body.values, np.tanh(table[ids]))


def test_weights_belong_to_modules_and_lookups() -> None:
    recording = LiveSide(encoder(), embgrad.TokenBatch(IDS)).record()
    assert [(weight.name, weight.module) for weight in recording.weights] == [("E", "E"), ("body.W", "body")]


def test_an_objective_of_an_output_that_is_not_there_is_refused() -> None:
    with pytest.raises(OutputError, match=r"expected output=.* in the objective"):
        check_port(encoder(), encoder(), IDS, embgrad.Sum())


def test_what_calls_either_model_is_a_function() -> None:
    for call in (3, (None, 3)):
        with pytest.raises(EmbgradError, match="call is 3: expected a function"):
            check_port(encoder(), encoder(), IDS, call=call)  # type: ignore[arg-type]


def test_an_output_with_a_number_for_each_example_has_no_features() -> None:
    def read(returned: Callable[[Tensor], Tensor]) -> Any:
        def forward(m: Any, input_ids: np.ndarray) -> Any:
            return returned(lookup(m["E"], input_ids).sum(1))

        return LiveSide(
            ReferenceModel(forward, {"E": np.arange(21.0).reshape(7, 3)}), embgrad.TokenBatch(IDS)
        ).read_output()

    assert read(lambda rows: rows.sum(1)) is None
    assert read(lambda rows: rows[:1]) is None
    output = read(lambda rows: rows)
    np.testing.assert_array_equal(output.values, [[[18, 21, 24]], [[45, 48, 51]]])


@pytest.mark.parametrize(("size", "reads"), [(65536, 1), (65537, 2)])
def test_a_small_weight_is_read_once_and_cannot_be_changed(size: int, reads: int) -> None:
    read: list[int] = []

    def get() -> np.ndarray:
        read.append(1)
        return np.arange(size, dtype=np.float32)

    once = read_once(get, (size,))
    assert not read
    for _ in range(2):
        np.testing.assert_array_equal(once(), np.arange(size))
    assert len(read) == reads
    assert once().flags.writeable == (reads == 2)
