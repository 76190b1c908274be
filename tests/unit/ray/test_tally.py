"""The tally of the rows that a sum covers, and the sum, in this process."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import embgrad
import embgrad.ray
from embgrad.errors import EmbgradError
from embgrad.ray.settings import settings
from embgrad.ray.tally import Tally, Total, expect_same_rows, tally_of
from embgrad.ray.worker import TableWorker
from tests.unit.ray import models
from tests.unit.ray.models import labelled

Items = Callable[..., list[dict[str, Any]]]


def test_sums_are_those_of_all_rows(items: Items) -> None:
    rows = items(13)
    asked, _ = settings(models.reference, labelled, {"ids": "ids_", "batch_size": 4})
    worker = TableWorker(asked)
    blocks = [worker(pa.Table.from_pylist(rows[start : start + 5])) for start in range(0, 13, 5)]
    whole, twice = Total(), Total()
    for block in blocks:
        whole.add_arrow(block)
    whole.add_arrow(TableWorker(asked)(pa.Table.from_pylist(rows).slice(0, 0)))
    batches = ((embgrad.TokenBatch([row["ids_"]]), embgrad.CrossEntropy([row["label"]])) for row in rows)
    expected = sum(embgrad.gradients(models.reference(), *each).table().to_dense() for each in batches)
    table = whole.table(wide=True)
    assert table is not None
    assert table.shape == (models.VOCAB, models.DIM)
    np.testing.assert_allclose(table.to_dense(), expected, rtol=1e-12, atol=1e-14)
    assert whole.tally == tally_of(pa.Table.from_pylist(rows), ["ids_"])
    assert (whole.dtype, Total().table()) == (np.float64, None)
    single, sent, each = Total(), Total(), 1 + 2.0**-40
    for dtype, expected_dtype in (("float16", "float16"), ("float32", "float32"), ("float16", "float32")):
        single.add(embgrad.results.RowSparse(np.array([2]), np.full((1, 5), each), (40, 5)), dtype)
        assert single.dtype == expected_dtype
    sent.add_arrow(single.to_arrow())
    three = sent.table(wide=True)
    assert three is not None
    assert (three.rows.tolist(), three.values.tolist(), three.values.dtype) == ([2], [[3 * each] * 5], np.float64)
    twice.add_arrow(pa.concat_tables([*blocks, blocks[0]]))
    with pytest.raises(EmbgradError, match=r"13 rows went in and 18 came out"):
        expect_same_rows(whole.tally, twice.tally, "the sum")
    with pytest.raises(EmbgradError, match=r"a table of shape \(40, 5\), and the next gradient of one of \(3, 5\)"):
        whole.add(embgrad.results.RowSparse(np.arange(3), np.ones((3, 5)), (3, 5)), "float64")


def test_exchanged_rows_are_found(items: Items) -> None:
    rows = items(6)
    given = tally_of(pa.Table.from_pylist(rows), ["key", "ids_"])
    shuffled = tally_of(pa.Table.from_pylist(rows[::-1]), ["key", "ids_"])
    assert given == shuffled
    expect_same_rows(given, shuffled, "the sum")
    exchanged = tally_of(pa.Table.from_pylist([*rows[:5], rows[0]]), ["key", "ids_"])
    with pytest.raises(EmbgradError, match=r"as many came out, but they are not the same"):
        expect_same_rows(given, exchanged, "the sum")
    assert tally_of(pa.Table.from_pylist(rows[:0] or [{"a": 1}]).slice(0, 0), ["a"]) == Tally()


def test_equal_values_of_different_types_are_one_row() -> None:
    def tally(values: Any, kind: pa.DataType) -> Any:
        return tally_of(pa.table({"key": pa.array(values, kind)}), ["key"])

    struct = pa.struct([("a", pa.int64())])
    wider = pa.struct([("b", pa.string()), ("a", pa.float64())])
    same = [
        [(pa.int64(), [1, 0, 2**53]), (pa.float64(), [1.0, -0.0, 2.0**53]), (pa.decimal128(20, 2), [1, 0, 2**53])],
        [(pa.string(), ["a"]), (pa.large_string(), ["a"]), (pa.dictionary(pa.int8(), pa.string()), ["a"])],
        [(pa.list_(pa.int32()), [[1, 2]]), (pa.large_list(pa.float32()), [[1, 2]]), (pa.list_(pa.int8(), 2), [[1, 2]])],
        [(struct, [{"a": 1}, None]), (wider, [{"a": 1}, None])],
        [(pa.decimal128(5, 2), [Decimal("1.50")]), (pa.decimal128(5, 1), [Decimal("1.5")])],
    ]
    for kinds in same:
        assert len({tally(values, kind) for kind, values in kinds}) == 1
    assert tally([2**53 + 1], pa.int64()) != tally([2.0**53], pa.float64())
    assert tally([1], pa.int64()) != tally([True], pa.bool_()) != tally(["1"], pa.string())
    assert tally([1.5], pa.float64()) != tally([1], pa.int64())
    assert tally([{"a": None}], struct) != tally([None], struct)
    assert tally([float("nan"), float("inf")], pa.float64()) == tally([float("inf"), float("nan")], pa.float32())
