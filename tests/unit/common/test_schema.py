"""Checks of JSON objects, and what is read of JSON and safetensors files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embgrad.common.files import check_path, read_bounded, read_json, write_whole
from embgrad.common.safetensors import MOST_AXES, read_shapes, read_tensors, write_tensors
from embgrad.common.schema import FLAG, OBJECT, TEXT, Array, Rule, SchemaError, expect_object, list_of, number, whole
from embgrad.common.text import visible
from embgrad.errors import EmbgradError, FileFormatError
from tests.unit.refusals import refused


@pytest.mark.parametrize(
    ("axes", "shape", "lengths"),
    [
        ("row column", (2, 3), {"row": (2,), "column": (3,)}),
        ("row column", (2,), None),
        ("row column", (2, 3, 4), None),
        ("row 3", (2, 3), {"row": (2,), "3": (3,)}),
        ("row 3", (2, 4), None),
        ("row *rest column", (2, 3, 4, 5), {"row": (2,), "*rest": (3, 4), "column": (5,)}),
        ("row *rest column", (2, 5), {"row": (2,), "*rest": (), "column": (5,)}),
        ("row *rest column", (2,), None),
        ("*rest", (), {"*rest": ()}),
    ],
)
def test_the_axes_of_an_array_have_names(
    axes: str, shape: tuple[int, ...], lengths: dict[str, tuple[int, ...]] | None
) -> None:
    known: dict[str, tuple[int, ...]] = {}
    if lengths is None:
        with refused(SchemaError, f"holds a of shape {shape}: expected ("):
            Array(axes).check("a", {"a": np.ones(shape)}, known)
    else:
        Array(axes).check("a", {"a": np.ones(shape)}, known)
        assert known == lengths


@pytest.mark.parametrize(
    ("rule", "right", "wrong", "expected"),
    [
        (TEXT, ["", "a"], [None, 1, b"a"], "text"),
        (FLAG, [True, False], [0, 1, None], "true or false"),
        (OBJECT, [{}], [[], None], "an object"),
        (whole(2), [2, 3, 10**30], [1, 2.0, True, "2"], "a whole number of at least 2"),
        (whole(0, 4), [0, 4], [5, -1], "a whole number of at least 0"),
        (number(0.5), [0.5, 1, 1e300], [0.4, float("inf"), float("nan"), True, 2**1023], "a finite number of at least 0.5"),
        (number(0, 1), [0, 1, 0.5], [1.1, -0.1], "a number from 0 to 1"),
        (list_of(TEXT), [[], ["a"], ["a", "b"]], [["a", 1], [1, "a"], "a", ("a",)], "a list, of which each is text"),
    ],
)  # fmt: skip
def test_the_rules_of_fields(rule: Rule, right: list[Any], wrong: list[Any], expected: str) -> None:
    for value in right:
        rule.check("field", value)
    for value in wrong:
        with refused(SchemaError, "says field ", f": expected {expected}"):
            rule.check("field", value)


def test_objects_have_exactly_their_fields() -> None:
    rules = {"name": TEXT, "count": whole(1)}
    expect_object("entry", {"name": "a", "count": 1}, rules)
    expect_object("entry", {"count": 1}, rules, optional=["name"])
    for value, message in (
        ([1], "says entry [1]: expected an object"),
        ({"name": "a"}, "lacks the fields ['count']"),
        ({"name": "a", "count": 1, "z": 1, "more": 2}, "holds the fields ['more', 'z']: expected"),
        ({"name": "a", "count": 0}, "says count 0: expected a whole number of at least 1"),
    ):
        with refused(SchemaError, message):
            expect_object("entry", value, rules)


def test_json_that_says_a_thing_twice_is_too_long_or_too_deep_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": [1, {"b": "é"}]}', encoding="utf-8")
    assert read_json(path) == {"a": [1, {"b": "é"}]}
    size = path.stat().st_size
    assert read_json(path, size) == read_json(path)
    assert len(read_bounded(path, size)) == size
    with refused(ValueError, f"it is {size} bytes long, more than the limit of {size - 1}"):
        read_json(path, size - 1)
    path.write_text('{"a": 1, "b": {"c": 1, "c": 2}}')
    with pytest.raises(ValueError, match="a key is repeated"):
        read_json(path)
    path.write_text("[" * 100_000)
    with refused(ValueError, "it is nested too deeply"):
        read_json(path)


def test_a_durable_file_is_written_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.readlink(f"/proc/self/fd/{handle}")))
    write_whole(tmp_path / "a", b"1")
    assert synced == []
    write_whole(tmp_path / "a", b"2", durable=True)
    assert synced[1:] == [str(tmp_path)]
    assert synced[0].endswith(".part")
    assert (tmp_path / "a").read_bytes() == b"2"
    assert os.listdir(tmp_path) == ["a"]


def test_a_temporary_file_that_exists_is_not_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embgrad.common.files.secrets.token_hex", lambda count: "0" * 2 * count)
    (tmp_path / f".a.{'0' * 16}.part").write_bytes(b"another's")
    with pytest.raises(FileExistsError):
        write_whole(tmp_path / "a", b"1")
    assert not (tmp_path / "a").exists()


def test_paths_that_are_refused() -> None:
    assert check_path("a/b") == check_path(Path("a") / "b")
    for value, message in (
        (3, "path is 3: expected the path"),
        ("", "path is empty"),
        ("a\0", "without the character NUL"),
    ):
        with refused(EmbgradError, message):
            check_path(value)


def written(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(shape: Any = (2,), offsets: Any = (0, 8), kind: str = "F32") -> dict[str, Any]:
    return {"dtype": kind, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ([1], "its header is [1], which is not an object"),
        ({"a": entry(), "__metadata__": {"b": 1}}, "its __metadata__ is {'b': 1}, and not a dict of texts"),
        ({"a": {**entry(), "more": 1}}, "expected dtype, shape and data_offsets"),
        ({"a": entry(kind="F8")}, "'a' is of the type 'F8': expected one of"),
        ({"a": entry(shape=[2, -1])}, "'a' has the shape [2, -1]: expected up to 32 whole numbers"),
        ({"a": entry(shape=[True, 2])}, "'a' has the shape [True, 2]"),
        ({"a": entry(shape=[2, 2**63])}, "'a' has the shape"),
        ({"a": entry(shape=[1] * (MOST_AXES + 1))}, "expected up to 32 whole numbers"),
        ({"a": entry(offsets=[0, 4, 8])}, "'a' has the data_offsets [0, 4, 8]: expected its begin and its end"),
        ({"a": entry(offsets=[-8, 0])}, "'a' has the data_offsets [-8, 0]"),
        ({"a": entry(offsets=[0, 4])}, "'a' of the shape [2] and type F32 needs 8 bytes, but has 4"),
        ({"a": entry(offsets=[4, 12])}, "'a' begins at byte "),
        ({"a": entry([1], [0, 4]), "b": entry([2], [0, 8])}, "arrays overlap, or leave gaps"),
        ({"a": entry([1], [0, 4])}, "its arrays end at byte "),
    ],
)
def test_files_of_tensors_that_are_refused(tmp_path: Path, header: Any, message: str) -> None:
    with refused(FileFormatError, "is not a complete safetensors file: ", message):
        read_tensors(written(tmp_path / "a", header, bytes(8)))


def test_files_that_end_before_their_header_are_refused(tmp_path: Path) -> None:
    for size in (0, 7):
        (tmp_path / "a").write_bytes(bytes(size))
        with refused(FileFormatError, f"its header should be 0 bytes long, but the file has only {size}"):
            read_tensors(tmp_path / "a")


def test_tensors_are_written_durably_where_that_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    write_tensors(tmp_path / "a", {"a": np.zeros(2)}, {})
    assert not synced
    write_tensors(tmp_path / "a", {"a": np.zeros(2)}, {}, durable=True)
    assert synced


def test_tensors_of_every_type_are_read_as_they_were_written(tmp_path: Path) -> None:
    kinds = ["?", "u1", "i1", "u2", "i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8", "c8"]
    arrays = {kind: np.arange(6).reshape(2, 3).astype(kind) for kind in kinds} | {"empty": np.zeros((0, 3), "f4")}
    write_tensors(tmp_path / "a", {**arrays, "turned": arrays["f4"].T}, {"note": "é"})
    found, metadata = read_tensors(tmp_path / "a")
    assert metadata == {"note": "é"}
    for name, array in {**arrays, "turned": arrays["f4"].T}.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype
    assert read_shapes(tmp_path / "a")["turned"] == (3, 2)
    with refused(FileFormatError, "of the type ", ": expected F32 or F64"):
        read_tensors(tmp_path / "a", ["F32", "F64"])
    many = written(tmp_path / "b", {"a": entry([1] * MOST_AXES, [0, 4])}, bytes(4))
    assert read_shapes(many)["a"] == (1,) * MOST_AXES


def test_bfloat16_is_the_upper_half_of_float32(tmp_path: Path) -> None:
    halves = (np.array([[1.5, -2.0]], np.float32).view(np.uint32) >> 16).astype("<u2")
    found, _ = read_tensors(written(tmp_path / "a", {"a": entry([1, 2], [0, 4], "BF16")}, halves.tobytes()))
    np.testing.assert_array_equal(found["a"], np.array([[1.5, -2.0]], np.float32))
    assert found["a"].dtype == np.float32


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x00\x7f", "\\x00\\x7f"),
        ("\u00ad", "\\xad"),
        ("\u0600", "\\u0600"),
        ("\ufeff", "\\ufeff"),
        ("\U000e0001", "\\U000e0001"),
        ("\U00010000", "\U00010000"),
        ("\U000f0000", "\\U000f0000"),
        ("a\u200db", "a\u200db"),
        ("\u200dab", "\\u200dab"),
        ("ab\u200d", "ab\\u200d"),
        ("a" + "\u0301" * 8, "a" + "\u0301" * 8),
        ("a" + "\u0301" * 9, "a" + "\u0301" * 8 + "\\u0301"),
        ("\u3164", "\\u3164"),
    ],
)
def test_what_is_invisible_is_written_as_its_number(text: str, shown: str) -> None:
    assert visible(text) == shown
