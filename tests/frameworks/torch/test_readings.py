"""How single values are read: inputs of any form as tensors, whole numbers among arguments, and indices of arrays."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch
import transformers  # noqa: F401  # whose cache is taken
from embgrad_torch.capture import _whole_numbers
from embgrad_torch.inputs import parameters, to_tensors
from embgrad_torch.prefix import prefix
from embgrad_torch.readers import (
    Read,
    _aten_index,
    _gather,
    _index_select,
    _indexing,
    _take_along_dim,
    ones_of,
)
from embgrad_torch.state import _find_written
from embgrad_torch.walk import Structure

ARRAY = torch.arange(24.0).reshape(2, 3, 4)
INDEX = torch.tensor([1, 0])


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("other", torch.tensor([3, 4]), [3, 4]),
        ("other", torch.tensor([3, 4], dtype=torch.uint8), [3, 4]),
        ("attention_mask", torch.tensor([True, False]), [True, False]),
        ("other", torch.tensor([True, False]), None),
        ("other", torch.tensor([1.0]), None),
        ("other", torch.tensor([1j]), None),
        ("other", torch.tensor([0, 3]).to_sparse(), None),
        ("other", torch.quantize_per_tensor(torch.ones(2), 1.0, 0, torch.qint8), None),
        ("other", np.array([3, 4]), None),
        ("other", 3, None),
    ],
)
def test_arguments_of_whole_numbers(name: str, value: Any, read: list[Any] | None) -> None:
    found = _whole_numbers(name, value)
    assert (None if found is None else found.tolist()) == read


def test_nests_become_nests_of_tensors_that_share_nothing() -> None:
    array, tensor = np.array([1.5, 2.5]), torch.tensor([3, 4])
    given = {
        "a": array,
        "b": [array, "x"],
        "c": (tensor, {"d": tensor}),
        "e": [[1, 2], [3, 4]],
        "f": [[[1, 2], [3, 4]]],
    }
    made = to_tensors(given, "cpu", 2)
    assert type(made["b"]) is list
    assert type(made["c"]) is tuple
    for of_array in (made["a"], made["b"][0]):
        assert of_array.dtype == torch.float64
        assert of_array.tolist() == [1.5, 2.5]
    assert made["b"][1] == "x"
    for of_tensor in (made["c"][0], made["c"][1]["d"]):
        assert of_tensor.data_ptr() != tensor.data_ptr()
        assert of_tensor.tolist() == [3, 4]
    assert isinstance(made["e"], torch.Tensor), "a list with an entry for each example is an array"
    assert made["e"].tolist() == [[1, 2], [3, 4]]
    assert made["f"] == [[[1, 2], [3, 4]]], "a list in a list is not one"
    made["a"][:] = 0
    assert array.tolist() == [1.5, 2.5]


@pytest.mark.parametrize(
    ("table", "index", "read"),
    [(ARRAY[0], INDEX, "rows"), (ARRAY[0].long(), INDEX, 0), (ARRAY, INDEX.int(), 0), (ARRAY[0, 0], INDEX, None),
        (ARRAY[0], INDEX > 0, None), (ARRAY[0].numpy(), INDEX, None)],
)  # fmt: skip
def test_rows_of_a_matrix_are_looked_up_and_others_selected(table: Any, index: Any, read: Any) -> None:
    for found in (_indexing(table, index), *([_aten_index(table, [index, None])] if read is not None else [])):
        assert (None if found is None else "rows" if isinstance(found, Read) else found.axis) == read


@pytest.mark.parametrize(
    ("function", "arguments", "axis"),
    [
        (_aten_index, (ARRAY, [None, INDEX]), 1),
        (_aten_index, (ARRAY, [None, None, INDEX]), 2),
        (_index_select, (ARRAY[0], 1, INDEX), 1),
        (_index_select, (ARRAY, -1, INDEX), 2),
        (_index_select, (ARRAY, -3, INDEX), 0),
        (_gather, (ARRAY, -2, INDEX), 1),
        (_gather, (ARRAY[0, 0], 0, INDEX), None),
        (_take_along_dim, (ARRAY, INDEX, 0), 0),
        (_take_along_dim, (ARRAY, INDEX), None),
    ],
)
def test_the_axis_that_a_function_selects_along(function: Any, arguments: Any, axis: int | None) -> None:
    read = function(*arguments)
    assert not isinstance(read, Read)
    assert (None if read is None else read.axis) == axis
    assert all(isinstance(_index_select(ARRAY[0], dim, INDEX), Read) for dim in (0, -2)), "rows are looked up"


HOT = torch.tensor([[0.0, 1, 0], [1, 0, 0]])


@pytest.mark.parametrize(
    ("rows", "first", "places"),
    [
        (HOT, 1, [1, 0]),
        (HOT.long(), 1, [1, 0]),
        (HOT[None], 1, [1, 0]),
        (HOT, 0, None),
        (HOT, 3, None),
        (HOT * 2, 1, None),
        (HOT + torch.tensor([[0, 0, 0], [0, -1, 1]]), 1, None),
        (torch.tensor([[0.0, 1, 0], [2, -1, 0]]), 1, None),
        (torch.tensor([[0.0, 1, 0], [2, 0, 0]]), 1, None),
        (HOT.to_sparse(), 1, [1, 0]),
        ((HOT * 2).to_sparse(), 1, None),
        (torch.tensor([[1.0, 1, 0], [0, 0, 0]]).to_sparse(), 1, None),
        (torch.ones(2, 3).to_sparse(), 1, None),
        (HOT.to_sparse_csr(), 1, [1, 0]),
        ((HOT * 2).to_sparse_csr(), 1, None),
        (torch.tensor([[1.0, 1, 0], [0, 0, 0]]).to_sparse_csr(), 1, None),
        (HOT.to_sparse_csc(), 1, None),
    ],
)
def test_the_ones_of_rows_of_which_each_has_one(rows: Any, first: int, places: list[int] | None) -> None:
    found = ones_of(rows, first)
    assert (None if found is None else found.tolist()) == places


class Inner(torch.nn.Linear):
    def forward(self, ids: Any, mask: Any = None, *, scale: float = 1.0) -> Any:
        return ids


class Everything(torch.nn.Module):
    """A wrapper that passes on all that it is given."""

    def __init__(self, *children: torch.nn.Module) -> None:
        super().__init__()
        self.inside = torch.nn.ModuleList(children) if len(children) > 1 else children[0]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return args


class ByName(Everything):
    def forward(self, **kwargs: Any) -> Any:  # type: ignore[override]
        return kwargs


class InOrder(Everything):
    def forward(self, *args: Any) -> Any:  # type: ignore[override]
        return args


class Two(Everything):
    def __init__(self) -> None:
        super().__init__(Inner(2, 2))
        self.further = Inner(2, 2)


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (Inner(2, 2), "ids mask *scale"),
        (Everything(Inner(2, 2)), "ids mask *scale"),
        (ByName(Inner(2, 2)), "*ids *mask *scale"),
        (InOrder(Inner(2, 2)), "/ids /mask"),
        (InOrder(ByName(Inner(2, 2))), ""),
        (torch.nn.Sequential(Inner(2, 2), torch.nn.Linear(2, 2)), "/ids"),
        (torch.nn.Sequential(), "input"),
        (Two(), "args kwargs"),
    ],
)
def test_the_parameters_of_a_wrapper_are_those_inside(module: Any, names: str) -> None:
    marks = {inspect.Parameter.KEYWORD_ONLY: "*", inspect.Parameter.POSITIONAL_ONLY: "/"}
    assert " ".join(f"{marks.get(each.kind, '')}{each.name}" for each in parameters(module)) == names


@pytest.mark.parametrize(
    ("names", "taken"),
    [
        ("input_ids, use_cache, past_key_values", ("past_key_values", False)),
        ("input_ids, use_cache, past_key_values, cache, logits_to_keep", ("cache", True)),
        ("input_ids, use_cache", None),
        ("input_ids, past_key_values", None),
        ("inputs, use_cache, past_key_values", None),
        ("input_ids, use_cache, past_key_values, decoder_input_ids", None),
    ],
)
def test_what_a_model_must_take_to_keep_a_prefix(names: str, taken: Any) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def forward(self, {names}): pass", namespace)
    made = prefix(type("Model", (torch.nn.Module,), {"forward": namespace["forward"]})())
    assert (None if made is None else (made._name, made._limits)) == taken


@pytest.mark.parametrize("own", [False, True])
def test_weights_are_copied_for_training_where_train_is_overridden(own: bool) -> None:
    class Own(torch.nn.Linear):
        def train(self, mode: bool = True) -> Own:
            return super().train(mode)

    model = torch.nn.Sequential(torch.nn.Embedding(5, 2), (Own if own else torch.nn.Linear)(2, 2))
    structure = Structure((model,))
    assert len(_find_written(structure, structure.parameters(), True)) == (3 if own else 0)
    assert _find_written(structure, structure.parameters(), False) == []
