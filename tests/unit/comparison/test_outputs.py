"""Of the outputs of two models those are compared that both return, whatever each calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.comparison.live_side import LiveSide
from embgrad.comparison.outputs import with_common_output
from embgrad.comparison.recording import FINAL
from embgrad.testing.reference import ReferenceModel, Tensor, lookup

RANDOM = np.random.default_rng(0)
WEIGHTS = {
    "table.W": RANDOM.normal(size=(30, 6)),
    "up.W": RANDOM.normal(size=(6, 6)),
    "pooler.W": RANDOM.normal(size=(6, 6)),
}
BATCH = embgrad.TokenBatch(np.arange(1, 13).reshape(3, 4))

Returned = Callable[[Tensor, Tensor], Any]


def model(returned: Returned, *, pooled: Callable[[Tensor], Tensor] = Tensor.tanh) -> ReferenceModel:
    """Return an encoder whose output is a function of its hidden states and of what it pools."""

    def forward(m: ReferenceModel, input_ids: np.ndarray) -> Any:
        rows = m.module("table", lambda ids: lookup(m["table.W"], ids), input_ids)
        hidden = m.module("up", lambda x: (x @ m["up.W"]).tanh(), rows)
        vector = m.module("pooler", lambda x: x @ m["pooler.W"], hidden.sum(1))
        return returned(hidden, pooled(vector))

    return ReferenceModel(forward, WEIGHTS)


def named(hidden: Tensor, vector: Tensor) -> Any:
    return {"last_hidden_state": hidden, "pooler_output": vector}


def unnamed(hidden: Tensor, vector: Tensor) -> Any:
    return hidden, vector


def called_otherwise(hidden: Tensor, vector: Tensor) -> Any:
    return {"states": hidden, "vector": vector}


def alone(hidden: Tensor, vector: Tensor) -> Any:
    return hidden


PAIRS = [(named, unnamed), (unnamed, named), (unnamed, unnamed), (called_otherwise, named), (unnamed, called_otherwise)]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_outputs_that_two_models_name_otherwise_are_compared(first: Returned, second: Returned) -> None:
    right = embgrad.check_port(model(first), model(second), BATCH)
    assert right.agrees
    assert (right.points[-1].name, right.notes) == ("output", ())
    wrong = embgrad.check_port(model(first), model(second, pooled=lambda x: x), BATCH)
    assert [cause.text for cause in wrong.causes] == ["the activation is tanh in a and missing in b, at output"]


def test_hidden_states_are_compared_where_one_model_returns_nothing_else() -> None:
    a, b = with_common_output(LiveSide(model(named), BATCH).record(), LiveSide(model(alone), BATCH).record())
    np.testing.assert_array_equal(a.tensors[FINAL].values, b.tensors[FINAL].values)
    assert a.tensors[FINAL].values.shape == (3, 4, 6)
    assert a.live is not None
    np.testing.assert_array_equal(a.live.led({}, {})[FINAL], a.tensors[FINAL].values)


def test_outputs_with_one_name_come_before_others_of_one_shape() -> None:
    def turned(hidden: Tensor, vector: Tensor) -> Any:
        return {"start": vector + vector, "end": vector}

    def other(hidden: Tensor, vector: Tensor) -> Any:
        return {"end": vector, "begin": vector + vector}

    a, b = with_common_output(LiveSide(model(turned), BATCH).record(), LiveSide(model(other), BATCH).record())
    np.testing.assert_array_equal(a.tensors[FINAL].values, b.tensors[FINAL].values)
    exchanged = embgrad.check_port(
        model(turned), model(lambda _, vector: {"start": vector, "end": vector + vector}), BATCH
    )
    assert not exchanged.agrees


def test_outputs_of_no_common_shape_are_not_compared_and_said_so() -> None:
    report = embgrad.check_port(
        model(lambda _, vector: vector), model(lambda hidden, _: hidden @ Tensor(np.ones((6, 7)))), BATCH
    )
    note = "the outputs are not compared, of which none have one shape: (3, 1, 6) in a and (3, 4, 7) in b"
    assert report.notes == (note,)
    assert "output" not in [point.name for point in report.points]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (
            lambda hidden, vector: {"logits": vector.sum(1), "pooler_output": vector, "last": vector + vector},
            lambda hidden, vector: {"sentence_embedding": vector, "more": vector + vector},
        ),
        (named, lambda hidden, vector: {"sequence_output": hidden, "more": hidden + hidden}),
    ],
)
def test_outputs_with_one_role_come_before_others(first: Returned, second: Returned) -> None:
    a, b = with_common_output(LiveSide(model(first), BATCH).record(), LiveSide(model(second), BATCH).record())
    np.testing.assert_array_equal(a.tensors[FINAL].values, b.tensors[FINAL].values)


def test_outputs_inside_of_others_come_last() -> None:
    """Decoders return the keys and values of each layer beside their logits."""

    def with_cache(hidden: Tensor, vector: Tensor) -> Any:
        return hidden, [(hidden + hidden, hidden + hidden)] * 6

    a, b = with_common_output(LiveSide(model(alone), BATCH).record(), LiveSide(model(with_cache), BATCH).record())
    np.testing.assert_array_equal(a.tensors[FINAL].values, b.tensors[FINAL].values)
