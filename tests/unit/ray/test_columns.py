"""A table's columns as arrays, and as ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import embgrad
from embgrad.errors import BatchError
from embgrad.ray.columns import Columns, block_of
from embgrad.ray.settings import settings
from tests.unit.ray import models


def test_tensors_of_different_shapes_are_rows() -> None:
    def ids(rows: np.ndarray) -> pa.Table:
        return pa.table({"ids": pa.chunked_array([pa.FixedShapeTensorArray.from_numpy_ndarray(item) for item in rows])})

    asked, _ = settings(models.reference, embgrad.Sum(), {"ids": "ids"})
    of_ids = block_of(ids(np.arange(1, 13).reshape(2, 2, 3)), asked.inputs, None).batch.ids
    np.testing.assert_array_equal(of_ids, np.arange(1, 13).reshape(4, 3))
    with pytest.raises(BatchError, match=r"example 0 holds \[\[1, 2\], \[3, 4\]\]: expected a list of at least"):
        block_of(ids(np.arange(1, 9).reshape(1, 2, 2, 2)), asked.inputs, None)
    missing = pa.ExtensionArray.from_storage(
        pa.fixed_shape_tensor(pa.int64(), [2]), pa.array([[1, 2], None], pa.list_(pa.int64(), 2))
    )
    with pytest.raises(BatchError, match="example 1 holds None"):
        block_of(pa.table({"ids": missing}), asked.inputs, None)


@pytest.mark.parametrize(("options", "padding"), [({}, 0), ({"pad_id": 7}, 7)])
def test_shorter_rows_are_padded(options: dict[str, Any], padding: int) -> None:
    asked, _ = settings(models.reference, embgrad.Sum(), {"ids": "ids", **options})
    batch = block_of(pa.table({"ids": [[3, 4], [5]]}), asked.inputs, None).batch
    assert batch.ids.tolist() == [[3, 4], [5, padding]]
    assert batch.mask.tolist() == [[1, 1], [1, 0]]


def test_columns_are_a_mapping() -> None:
    columns = Columns(pa.table({"label": [1, 0]}))
    assert "label" in columns
    assert "gold" not in columns
    assert columns.get("gold") is None
    np.testing.assert_array_equal(columns.get("label"), [1, 0])
    assert (len(columns), list(columns)) == (1, ["label"])
    with pytest.raises(
        KeyError, match=r"^the dataset has no column 'lable': expected one of 'label'\. Did you mean 'label'\?"
    ):
        columns["lable"]
    with pytest.raises(BatchError, match=r"\nsee docs/errors/batcherror.md"):
        columns["gold"]


@pytest.mark.parametrize(
    "rows", [[[[1, 2], [3]], [[4], [5, 6]]], [[[1], [2, 3]], None], [[[[1], []]], [[[1], []]]], [[None, 1], [2, 3]]]
)
def test_nested_lists_of_different_lengths_are_objects(rows: list[Any]) -> None:
    def lists(value: Any) -> Any:
        return [lists(item) for item in value] if isinstance(value, np.ndarray) else value

    actual = Columns(pa.table({"spans": rows}))["spans"]
    assert (actual.dtype, actual.shape, lists(actual)) == (object, (2,), rows)


def test_bytes_keep_trailing_zeros() -> None:
    assert list(Columns(pa.table({"image": [b"a\0", b"bc\0\0"]}))["image"]) == [b"a\0", b"bc\0\0"]


def test_a_missing_tensor_is_none() -> None:
    kind = pa.fixed_shape_tensor(pa.float32(), [2])
    held = pa.ExtensionArray.from_storage(kind, pa.array([[1, 2], None, [3, 4]], kind.storage_type))
    actual = Columns(pa.table({"near": held}))["near"]
    assert actual.dtype == object
    assert actual[1] is None
    assert actual[2].dtype == np.float32
    np.testing.assert_array_equal(actual[2], [3, 4])
    whole = Columns(pa.table({"near": pa.chunked_array([held[:1], held[2:]])}))["near"]
    assert whole.dtype == np.float32
    np.testing.assert_array_equal(whole, [[1, 2], [3, 4]])
