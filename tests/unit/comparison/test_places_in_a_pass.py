"""The names, times and layers of points and weights in a recorded pass."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from embgrad import TokenBatch
from embgrad.comparison.live_side import _as_addition, _as_features, _class_names, _is_of_batch, _without_word
from embgrad.comparison.recording import FINAL, caller_of, ends_of, layer_spans
from embgrad.model_points.points import Point
from tests.unit.comparison.recorded import BATCH, recording, tensor

X = np.zeros((2, 4, 3))


@pytest.mark.parametrize(
    ("path", "ended", "wanted"),
    [
        ("layers.0.up", {"layers.0.up": 1, "layers.0": 2}, "layers.0.up"),
        ("layers.0.up.inner", {"layers.0.up": 1, "layers.0": 2}, "layers.0.up"),
        ("layers.0.up_proj", {"layers.0.up": 1, "layers.0": 2}, "layers.0"),
        ("net/layer/up", {"net/layer": 1, "net": 2}, "net/layer"),
        ("net.layer/up", {"net": 1}, "net"),
        ("other.up", {"layers.0": 1}, ""),
        ("up", {"layers.0": 1}, ""),
        ("", {"layers.0": 1}, ""),
        ("up", {"model/long/up": 1, "model/up": 2}, "model/up"),  # a saved model's scopes have a prefix
        ("layer/up", {"model/layer/up": 1, "layer": 2}, "model/layer/up"),
        ("up", {"model/up": 1, "up": 2}, "up"),
        ("up", {"model/grownup": 1}, ""),
    ],
)
def test_a_weight_belongs_to_the_innermost_module_that_was_called(
    path: str, ended: dict[str, float], wanted: str
) -> None:
    assert caller_of(path, ended) == wanted


def test_a_module_has_ended_where_its_first_output_is() -> None:
    tensors = [
        tensor("up:input#0", X, 1.0),
        tensor("up:output#0", X, 2.0),
        tensor("up:output#1", X, 5.0),
        tensor("table", X, 0.5),
        tensor(FINAL, X),
    ]
    assert ends_of(tensors) == {"up": 2.0, "table": 0.5}


def test_a_layer_lies_between_its_input_and_its_output() -> None:
    side = recording(
        [tensor("layers.0:input#0", X, 2.0), tensor("layers.0:output#0", X, 4.0, ["layer.0"]),
            tensor("layers.1:output#0", X, 7.0, ["embeddings", "layer.1", "layer.-1"]),
            tensor("table", X, 8.0, ["layer.2"]), tensor("layers.3:output#0", X, 9.0, ["layer.5"])],
    )  # fmt: skip
    assert layer_spans(side.tensors) == {0: (2.0, 4.0), 1: (4.0, 7.0), 2: (7.0, 8.0), 5: (np.inf, 9.0)}


def test_values_that_are_those_of_the_batch_are_no_states() -> None:
    ids = np.asarray(BATCH.ids, np.float32)
    types = TokenBatch(BATCH.ids, BATCH.mask, np.array([[0, 1, 1, 0], [0, 0, 1, 1]]))
    assert _is_of_batch(ids, BATCH)
    assert _is_of_batch(ids.T[..., None], BATCH)
    assert _is_of_batch(np.asarray(BATCH.mask, np.float32)[:, None, None], BATCH)
    assert _is_of_batch(np.asarray(types.types, np.float32), types)
    assert not _is_of_batch(ids + 1, BATCH)
    assert not _is_of_batch(np.tile(ids, 2), BATCH)


def test_states_have_three_axes() -> None:
    assert _as_features(np.zeros((2, 4, 3))).shape == (2, 4, 3)
    assert _as_features(np.zeros((2, 4, 3, 5))).shape == (2, 4, 15)
    assert _as_features(np.zeros((2, 6))).shape == (2, 1, 6)


def test_a_model_of_several_parts_has_the_names_of_all() -> None:
    assert _class_names(3) == "int"
    assert _class_names([3, "x"]) == _class_names((3, "x")) == "int + str"


def test_a_replacement_is_an_addition_of_the_difference() -> None:
    np.testing.assert_array_equal(_as_addition(lambda value: value * 3)(np.array([1.0, 2.0])), [2.0, 4.0])


def test_the_role_of_the_ids_rows_is_left_out() -> None:
    point = Point("table", ("word", "embeddings"), (2, 4, 3))
    assert _without_word(point).roles == ("embeddings",)


def test_a_gradient_at_an_input_is_that_of_one_use() -> None:
    entry, output = tensor("up:input#0", X, gradient=X), tensor("up:output#0", X, gradient=X)
    assert entry.whole_gradient is None
    assert output.whole_gradient is X
    assert replace(output, gradient=None).whole_gradient is None
    assert output.features == 3
