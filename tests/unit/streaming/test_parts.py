"""The parts of a stream by themselves: sums of tables, digests, what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import embgrad
from embgrad.common.safetensors import read_tensors, write_tensors
from embgrad.errors import EmbgradError, FileFormatError, UnsupportedError
from embgrad.results.row_sparse import RowSparse
from embgrad.streaming.digest import digest_of
from embgrad.streaming.manifest import _SHARD
from embgrad.streaming.totals import Total, load_tables, save_tables
from embgrad.streaming.writer import _lock, _Pending, _text_bytes, _unlock, changes_between
from tests.unit.refusals import refused
from tests.unit.streams import model, texts, tokenizer


@given(st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=6, unique=True), min_size=1, max_size=6))
def test_a_total_is_the_sum_of_its_tables(rows: list[list[int]]) -> None:
    random, total = np.random.default_rng(0), Total()
    assert total.table() is None
    expected = np.zeros((12, 3))
    for own in map(sorted, rows):
        values = random.normal(size=(len(own), 3)).astype(np.float32)
        total.add(RowSparse(np.array(own), values, (12, 3)))
        expected[own] += values
    table, wide = total.table(), total.table(wide=True)
    assert table is not None
    assert wide is not None
    assert (table.values.dtype, wide.values.dtype) == (np.float32, np.float64)
    assert wide.rows.tolist() == sorted({row for own in rows for row in own})
    np.testing.assert_allclose(wide.to_dense(), expected, atol=1e-14)
    np.testing.assert_array_equal(table.values, wide.values.astype(np.float32))


def test_a_total_goes_on_from_a_former_one_in_the_wider_dtype_and_of_one_table_alone() -> None:
    former = RowSparse(np.array([1, 4]), np.array([[1.0], [2.0]]), (6, 1))
    total = Total(former, np.dtype(np.float32))
    total.add(RowSparse(np.array([0, 4]), np.array([[0.5], [0.25]], np.float32), (6, 1)))
    table = total.table()
    assert table is not None
    assert (table.rows.tolist(), table.values.ravel().tolist(), table.values.dtype) == (
        [0, 1, 4],
        [0.5, 1, 2.25],
        np.float32,
    )
    total.add(RowSparse(np.array([5]), np.array([[1.0]]), (6, 1)))
    assert total.dtype == np.float64
    with refused(
        FileFormatError, "the sum so far is of a table of shape (6, 1), and the next gradient of one of (7, 1)"
    ):
        total.add(RowSparse(np.array([0]), np.array([[1.0]]), (7, 1)))


def saved(path: Path) -> Path:
    total = Total()
    total.add(RowSparse(np.array([1, 4]), np.array([[1.0], [2.0]], np.float32), (6, 1)))
    save_tables({"word": total, "other": total}, path)
    return path


def test_saved_tables_are_read_back(tmp_path: Path) -> None:
    found = load_tables(saved(tmp_path / "a"))
    assert [*found] == ["word", "other"]
    table, dtype = found["word"]
    assert (table.rows.tolist(), table.values.tolist(), table.shape, dtype) == (
        [1, 4],
        [[1.0], [2.0]],
        (6, 1),
        np.float32,
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays, header: header.update(format=2), "it is of another format"),
        (
            lambda arrays, header: header["tables"][1].update(name="word"),
            "it holds arrays of no table, or a name twice",
        ),
        (lambda arrays, header: arrays.update(more=np.zeros(1)), "it holds arrays of no table, or a name twice"),
        (lambda arrays, header: header["tables"][0].update(dtype="float16"), "a sum is of dtype 'float16'"),
        (lambda arrays, header: arrays.pop("1.rows"), "'1.rows'; write it again"),
        (lambda arrays, header: arrays.update({"0.rows": np.array([1, 6])}), "or rows out of order"),
        (lambda arrays, header: arrays.update({"0.rows": np.array([-1, 4])}), "or rows out of order"),
        (lambda arrays, header: arrays.update({"0.rows": np.array([4, 4])}), "or rows out of order"),
        (lambda arrays, header: arrays.update({"0.rows": np.array([1, 2, 4])}), "has values of shape (2, 1)"),
        (lambda arrays, header: arrays.update({"0.rows": np.array([[1, 4]])}), "has rows of shape (1, 2)"),
        (lambda arrays, header: arrays.update({"0.rows": np.array([1.0, 4.0])}), "has rows of shape (2,)"),
        (lambda arrays, header: arrays.update({"0.values": np.ones((2, 1), np.int64)}), "has rows of shape (2,)"),
        (lambda arrays, header: header["tables"][0].update(shape=[6]), "a table of shape (6,)"),
        (lambda arrays, header: header["tables"][0].update(shape=[True, 1]), "a table of shape (True, 1)"),
        (lambda arrays, header: header["tables"][0].update(shape=[6, 0]), "a table of shape (6, 0)"),
        (lambda arrays, header: header["tables"][0].update(shape=[2**48, 1]), "a table of shape (281474976710656, 1)"),
    ],
)
def test_tables_that_were_changed_are_refused(tmp_path: Path, change: Any, message: str) -> None:
    arrays, metadata = read_tensors(saved(tmp_path / "a"))
    header = json.loads(metadata["embgrad-tables"])
    change(arrays, header)
    write_tensors(tmp_path / "a", arrays, {"embgrad-tables": json.dumps(header)})
    with refused(FileFormatError, "holds no tables as embgrad writes them", message):
        load_tables(tmp_path / "a")


def test_values_that_differ_have_digests_that_differ() -> None:
    values: list[Any] = [
        *(None, True, False, 0, 1, 1.0, -1, 1j, "", "1", b"", b"1", [], [1], [[1]], [1, 1], [[], 1], [1, []]),
        *({}, {1: 2}, {2: 1}, {"1": 2}, {"a": 1, "b": 2}, {"a": 2, "b": 1}, set(), {1}, {1, 2}, {frozenset({1}), 2}),
        *(np.zeros(2), np.zeros(2, np.float32), np.zeros((2, 1)), np.zeros(2, int), np.array([0.0, -0.0]), np.zeros(0)),
        *(np.array([1, "a"], object), np.array(["1", "a"], object), np.array(["1", "a"])),
        *(np.datetime64(1, "s"), np.datetime64(1, "D"), embgrad.TokenBatch([[1]]), embgrad.TokenBatch([[1]], [[1]])),
        *(embgrad.TokenBatch([[1]], extras={"a": 1}), 10**5000, len, abs),
    ]
    digests = [digest_of(value) for value in values]
    assert len({*digests}) == len(values)
    assert {len(digest) for digest in digests} == {16}
    assert digests == [digest_of(value) for value in values]
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    assert digest_of((1, 2)) == digest_of([1, 2])
    assert digest_of(np.arange(6).reshape(2, 3).T) == digest_of(np.arange(6).reshape(2, 3).T.copy())
    assert digest_of(np.float64(1.5)) == digest_of(1.5)


def test_arrays_with_an_axis_of_examples_do_not_apply_to_many_batches() -> None:
    from embgrad.streaming.broadcast import for_all_batches

    with refused(UnsupportedError, "add['word'] has the shape (2, 1, 3), which seems to have an example axis"):
        for_all_batches(SimpleNamespace(changes={"add": {"word": np.zeros((2, 1, 3))}}))  # type: ignore[arg-type]


def test_a_batch_has_32_examples_unless_another_size_is_named() -> None:
    found = embgrad.stream(model(), texts(40), embgrad.Logit(0), tokenizer=tokenizer)
    assert [len(result.ids) for result in found] == [32, 8]


@pytest.mark.parametrize(
    "source",
    [np.ones((2, 3), int), SimpleNamespace(shape=(2, 3)), SimpleNamespace(asnumpy=None), {"input_ids": [[1]]}],
    ids=["array", "with a shape", "of MXNet", "dict"],
)
def test_one_batch_is_no_source(source: Any) -> None:
    with refused(embgrad.errors.BatchError, "the source is one batch, a ", "embgrad.gradients takes one batch"):
        list(embgrad.stream(model(), source, embgrad.Logit(0)))


def test_a_shard_holds_a_countable_number_of_results() -> None:
    rules = (_SHARD["results"], _SHARD["first"], _SHARD["examples"])
    for number, expected in (
        (-1, [False] * 3),
        (0, [False, True, True]),
        (2**53, [True] * 3),
        (2**53 + 1, [False] * 3),
    ):
        assert [rule.accepts(number) for rule in rules] == expected


def test_the_text_of_a_part_is_counted_with_what_its_provenance_holds() -> None:
    part = SimpleNamespace(tokens=[["a", "é"]], provenance={"size": np.float32(1.5)})
    text = len('[["a", "\\u00e9"]]') + len('{"size": "1.5"}')
    assert _text_bytes(part) == text
    arrays = {"values": np.zeros(3), "activations": None, "before": None, "tables": None}
    whole = SimpleNamespace(**vars(part), **arrays)
    pending = _Pending().with_stored({"word": whole}).with_stored({"word": whole, "layer.1": whole})
    assert (pending.text, pending.bytes) == (3 * text, 3 * 24)


def test_changes_of_what_a_run_was_made_of_are_named_inside_of_one_class() -> None:
    own, other = {"class": "A", "n": 1, "deep": {"class": "B", "m": 2}}, {"class": "C", "n": 1}
    for former, current, changes in (
        ({"a": own, "b": 1}, {"a": own, "b": 1}, []),
        ({"a": own}, {"a": {**own, "n": 3}}, ["a.n was 1 and is 3"]),
        ({"a": own}, {"a": {**own, "deep": {"class": "B", "m": 4}}}, ["a.deep.m was 2 and is 4"]),
        ({"a": {"class": "A"}}, {"a": other}, ["a was {'class': 'A'} and is {'class': 'C', 'n': 1}"]),
        ({"a": {"class": "A"}, "b": 1}, {"a": 3}, ["a was {'class': 'A'} and is 3", "b was 1 and is None"]),
        ({}, {"a": {"n": 1}}, ["a was None and is {'n': 1}"]),
    ):
        assert list(changes_between(former, current)) == changes


def test_a_lock_is_released_by_its_owner_alone(tmp_path: Path) -> None:
    held = _lock(tmp_path)
    of_a_copy = os.dup(held.fileno())  # as a forked process has it
    _unlock(held, os.getpid() + 1)
    with pytest.raises(EmbgradError, match="another"):
        _lock(tmp_path)
    os.close(of_a_copy)
    again = _lock(tmp_path)
    of_a_copy = os.dup(again.fileno())
    _unlock(again, os.getpid())
    _lock(tmp_path).close()
    _unlock(again, os.getpid())  # it is closed already
    os.close(of_a_copy)
