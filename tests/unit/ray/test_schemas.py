"""Columns of different types in files or blocks are unified, or refused before a model is built."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import ray.data

import embgrad
import embgrad.ray
from embgrad.errors import FileFormatError
from embgrad.ray.source import conform, expect_parquet, unify
from tests.unit.ray import models
from tests.unit.ray.models import labelled
from tests.unit.ray.test_runs import of_one_process

pytestmark = pytest.mark.usefixtures("cluster")

Items = Callable[..., list[dict[str, Any]]]


def unbuilt() -> Any:
    raise AssertionError("a model was built")


def blocks(*tables: list[dict[str, Any]]) -> Any:
    """Return a dataset with a block for each list of rows."""
    return ray.data.from_arrow([pa.Table.from_pylist(rows) for rows in tables])


def written(dataset: Any, folder: Path, **options: Any) -> tuple[dict[int, dict[str, Any]], pa.Schema]:
    report = embgrad.ray.write(
        dataset, models.reference, labelled, folder, ids="ids_", key="key", batch_size=4, **options
    )
    actual = pa.parquet.read_table(folder)
    assert all(pa.parquet.read_schema(item).equals(actual.schema) for item in folder.glob("*.parquet"))
    if report.rows_in is not None:
        assert report.rows_in == report.rows_out == actual.num_rows
    return {int(row["key"]): row for row in actual.to_pylist()}, actual.schema


def test_blocks_of_different_columns_and_types_are_unified(items: Items, tmp_path: Path) -> None:
    rows = items(40)
    for row in rows[:10]:
        row |= {"note": "x", "number": 1, "later": None, "more": {"a": 3}, "deep": [{"a": 1}]}
    for row in rows[20:30]:
        row |= {"number": 1.5, "later": "y", "more": {"b": 2}, "deep": [{"b": [0.5]}]}
    tables = [
        pa.Table.from_pylist(rows[:10]),
        pa.Table.from_pylist(rows[10:20]).append_column("number", pa.array([2**53] * 10)),
        pa.Table.from_pylist(rows[20:30]),
        pa.Table.from_pylist(rows[30:]).append_column("note", pa.array(["y"] * 10, pa.large_string())),
    ]
    actual, schema = written(ray.data.from_arrow(tables), tmp_path / "out")
    assert sorted(actual) == list(range(40))
    assert [actual[key]["note"] for key in (5, 15, 25, 35)] == ["x", None, None, "y"]
    assert [actual[key]["number"] for key in (5, 15, 25, 35)] == [1.0, 2.0**53, 1.5, None]
    assert [actual[key]["later"] for key in (5, 25)] == [None, "y"]
    assert [actual[key]["more"] for key in (5, 15, 25)] == [{"a": 3, "b": None}, None, {"a": None, "b": 2}]
    assert [actual[key]["deep"] for key in (5, 25)] == [[{"a": 1, "b": None}], [{"a": None, "b": [0.5]}]]
    assert schema.field("number").type == pa.float64()
    for row in rows:
        np.testing.assert_array_equal(actual[row["key"]]["ids"], row["ids_"])


def test_tensors_of_different_shapes_are_lists(items: Items, tmp_path: Path) -> None:
    rows = [{**row, "image": np.full((2, 1 + row["key"] // 10), 0.5, np.float32)} for row in items(40)]
    for row in rows:
        if row["key"] >= 10:
            row["maybe"] = np.ones(2)
        row["ids_"] = np.array([2, 5, 3] if row["key"] < 10 else [2, 5, 6, 3] if row["key"] < 20 else row["ids_"])
    actual, schema = written(ray.data.from_items(rows, override_num_blocks=4), tmp_path / "out")
    assert schema.field("ids_").type.value_type == pa.int64()
    for row in rows:
        assert actual[row["key"]]["ids_"] == row["ids_"].tolist()
        assert actual[row["key"]]["image"] == row["image"].tolist()
        assert actual[row["key"]]["maybe"] == ([1, 1] if row["key"] >= 10 else None)


def test_keys_may_have_two_types(items: Items) -> None:
    rows = items(20)
    other = [{**row, "key": row["key"] + 0.5} for row in rows]
    mean = embgrad.ray.table(blocks(rows, other), models.reference, labelled, ids="ids_", key="key", reduce="mean")
    expected = of_one_process(models.reference(), rows).table().to_dense() / len(rows)
    np.testing.assert_allclose(mean.to_dense(), expected, rtol=0, atol=1e-12 * np.abs(expected).max())


def test_incompatible_types_are_refused(items: Items, tmp_path: Path) -> None:
    rows = items(6)
    given = blocks(*([{**row, "mark": mark} for row in rows] for mark in (1, "x")))
    message = r"^the columns of the blocks do not fit together \(.*Field mark .*: expected values of one type"
    with pytest.raises(FileFormatError, match=message):
        embgrad.ray.write(given, unbuilt, labelled, tmp_path / "out", ids="ids_")


def test_whole_numbers_beyond_floats_are_refused(items: Items, tmp_path: Path) -> None:
    (row,) = items(1)
    given = blocks(*([{**row, "n": n}] for n in (2**53 + 1, 1.5)))
    message = r"^a column's type in other blocks cannot hold a value \(Integer value 9007199254740993 not in range"
    with pytest.raises(FileFormatError, match=message):
        embgrad.ray.write(given, unbuilt, labelled, tmp_path / "out", ids="ids_")


def test_types_are_widened_where_no_value_changes() -> None:
    def together(*kinds: pa.DataType) -> pa.DataType:
        return unify([pa.schema([("n", kind)]) for kind in kinds]).field(0).type

    assert together(pa.int32(), pa.int64(), pa.int8()) == pa.int64()
    assert together(pa.null(), pa.list_(pa.null()), pa.list_(pa.int8())) == pa.list_(pa.int8())
    for kinds in ((pa.binary(), pa.string()), (pa.decimal128(30, 2), pa.float64()), (pa.bool_(), pa.int8())):
        for nested in (kinds, [pa.struct([("a", pa.list_(kind))]) for kind in kinds]):
            for order in (nested, nested[::-1]):
                with pytest.raises(
                    FileFormatError,
                    match=r"^the columns of the blocks do not fit together \(.*\bn\b.*\): expected",
                ):
                    together(*order)
    assert unify([]) == pa.schema([])
    tensors = [pa.fixed_shape_tensor(pa.int8(), [2, size]) for size in (2, 3)]
    assert together(tensors[0], tensors[0]) == tensors[0]
    assert together(tensors[0], pa.null()) == pa.list_(pa.list_(pa.int8()))
    assert together(*tensors, pa.list_(pa.list_(pa.int16()))) == pa.list_(pa.list_(pa.int16()))
    values = np.arange(12, dtype=np.int8).reshape(2, 2, 3)
    rows = pa.table({"n": pa.FixedShapeTensorArray.from_numpy_ndarray(values)})
    assert conform(rows, rows.schema).equals(rows)
    with pytest.raises(FileFormatError, match=r"^a column's type in other blocks cannot hold"):
        conform(pa.table({"n": [2**53 + 1]}), pa.schema([("n", pa.float64())]))
    lists = conform(rows, pa.schema([("n", pa.list_(pa.list_(pa.float32())))]))
    assert lists.to_pylist() == [{"n": item.tolist()} for item in values]


def test_types_that_parquet_lacks_are_refused(items: Items, tmp_path: Path) -> None:
    given = blocks([{**row, "meta": {}} for row in items(6)])
    with pytest.raises(
        FileFormatError, match=r"^Parquet files cannot hold the columns of the dataset \(.*'meta'.*\): remove"
    ):
        embgrad.ray.write(given, unbuilt, labelled, tmp_path / "out", ids="ids_")
    expect_parquet(pa.Table.from_pylist([{"a": [{"b": [1, None]}], "c": None, "d": "x"}]).schema)
    expect_parquet(pa.schema([("t", pa.FixedShapeTensorArray.from_numpy_ndarray(np.ones((2, 3), "f4")).type)]))


def test_gradients_may_be_the_input_of_another_run(items: Items, tmp_path: Path) -> None:
    first = embgrad.ray.gradients(
        ray.data.from_items(items(6)), models.reference, labelled, ids="ids_", output="values", length=9, prefix="g_"
    )
    actual, schema = written(first.materialize(), tmp_path / "out")
    assert sorted(actual) == list(range(6))
    assert schema.field("g_values").type.shape == [9, models.DIM]


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(FileFormatError, match=r"do not fit together \(.*duplicate"):
        unify([pa.schema([("a", pa.int8()), ("a", pa.int8())])])
