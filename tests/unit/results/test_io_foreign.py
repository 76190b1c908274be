"""Files that are not whole, or that embgrad has not written: reading them is refused, or gives a sound result."""

from __future__ import annotations

import json
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

import embgrad
from embgrad.results.file_format import FORMAT
from embgrad.results.row_sparse import RowSparse
from tests.unit.results.test_io_hostile import memory_of_a_refusal
from tests.unit.stored import IDS, TABLES, everything, expect_refused_or_sound, expect_same_bits, result, saved_bytes

Change = Callable[[dict[str, Any], dict[str, Any]], "dict[str, str] | None"]


def rewritten(folder: Path, change: Change, results: Any) -> Path:
    """Save results, change the arrays and the description of the file, and return its path."""
    path = folder / "g.safetensors"
    embgrad.save(results, path)
    arrays = safetensors.numpy.load_file(path)
    with safetensors.safe_open(str(path), "numpy") as file:
        description = json.loads(file.metadata()["embgrad"])
    metadata = change(arrays, description)
    path.write_bytes(packed(arrays, metadata or {"embgrad": json.dumps(description)}))
    return path


def setting(which: str, name: str, value: Any) -> Change:
    def change(arrays: dict[str, Any], description: dict[str, Any]) -> None:
        {"arrays": arrays, "description": description}[which][name] = value

    return change


def removing(which: str, name: str) -> Change:
    def change(arrays: dict[str, Any], description: dict[str, Any]) -> None:
        del {"arrays": arrays, "description": description}[which][name]

    return change


def metadata(text: str) -> Change:
    return lambda arrays, description: {"embgrad": text}


def array(name: str, value: Any) -> Change:
    return setting("arrays", name, np.asarray(value))


def field(name: str, value: Any) -> Change:
    return setting("description", name, value)


#: What safetensors calls NumPy's types.
NAMES = {"float32": "F32", "float64": "F64", "int64": "I64", "int32": "I32", "float16": "F16"}
NAMES |= {"bool": "BOOL", "uint8": "U8", "complex64": "C64"}

SLOPE = {"direction": "gradient", "expected": 1.0, "found": 1.0, "uncertainty": 0.0, "tolerance": 1.0}
NOTHING: dict[str, Any] = {
    "slopes": [],
    **dict.fromkeys(("scatter", "independence", "neighbours", "order", "padding")),
    "untested": [],
    "unrun": {},
}
FOREIGN = "not one of embgrad's: expected what embgrad.save writes"
DEEP = '{"format": 1, "provenance": ' + '{"a":' * 100_000 + "1" + "}" * 100_001


RESULT: list[tuple[Change, str]] = [
    (lambda arrays, description: {"other": "x"}, FOREIGN),
    *(
        (metadata(text), FOREIGN)
        for text in (
            *("{", "[1]", '{"format": "x"}', '{"format": Infinity}', '{"format": true}', '{"format": 0}'),
            *('{"format": ' + "9" * 5000 + "}", '{"format": 1, "format": 1}', DEEP, "[" * 100_000),
        )
    ),
    (field("format", FORMAT + 1), f"has format {FORMAT + 1}, and this embgrad reads up to {FORMAT}: install"),
    (removing("arrays", "activations"), r"lacks the arrays \['activations'\]; write or"),
    (removing("arrays", "objective"), r"lacks the arrays \['objective'\]"),
    (removing("description", "class"), "holds a result of the class None: expected 'EmbeddingGradients'"),
    (removing("description", "certificate"), r"lacks the fields \['certificate'\]"),
    (removing("description", "tokens"), r"lacks the fields \['tokens'\]"),
    (removing("description", "provenance"), r"lacks the fields \['provenance'\]"),
    (field("further", 1), r"holds the fields \['further'\]: expected 'tokens', 'vocab'"),
    (array("maks", IDS), r"holds the arrays \['maks'\]"),
    (array("values", np.zeros((2, 3), np.float32)), r"activations of shape \(2, 3, 4\): expected \(2, 3\)"),
    (array("values", np.zeros((2, 3, 4), np.float16)), "'values' of the type F16: expected F32 or F64 or I64"),
    (array("values", np.zeros((2, 3, 4), np.complex64)), "'values' of the type C64"),
    (array("values", np.zeros((2, 3, 4), np.int64)), "values of dtype int64: expected float32 or float64"),
    (array("ids", IDS.astype(np.int32)), "'ids' of the type I32"),
    (array("ids", IDS.astype(np.float32)), "ids of dtype float32: expected int64"),
    (array("ids", -IDS), "holds -7 in ids: expected no number below 0"),
    (array("ids", IDS + 7), "holds the id 14: expected rows of its table of 10"),
    (array("ids", IDS.ravel()), r"mask of shape \(2, 3\): expected \(6,\);"),
    (array("mask", np.zeros((3, 2), np.int64)), r"mask of shape \(3, 2\): expected \(2, 3\);"),
    (array("mask", np.full((2, 3), 2)), "holds 2 in mask: expected no number above 1"),
    (array("mask", np.ones((2, 3), bool)), "'mask' of the type BOOL"),
    (array("types", np.full((2, 3), -1)), "holds -1 in types: expected no number below 0"),
    (array("words", np.full((2, 3), -2)), "holds -2 in words: expected no number below -1"),
    (
        array("activations", np.float32(np.ones((2, 3, 5)))),
        r"activations of shape \(2, 3, 5\): expected \(2, 3, 4\)",
    ),
    (array("activations", np.zeros((2, 3, 4))), "activations of dtype float64: expected float32"),
    (array("before", np.zeros((2, 3), np.float32)), r"before of shape \(2, 3\)"),
    (array("objective", np.zeros((2, 3))), r"an objective of shape \(2, 3\): expected \(example,\)"),
    (array("objective", np.zeros(2, np.float32)), "objective of dtype float32: expected float64"),
    *((field("vocab", vocab), f"a vocab of {vocab!r}") for vocab in ("many", float("inf"), 10.0, True, 0)),
    (field("vocab", 10**30), "a vocab of 10+: expected the number of the table's rows"),
    *(
        (field("pad_leak", leak), f"says pad_leak {leak!r}: expected a finite")
        for leak in (None, "0", -1.0, np.nan, np.inf)
    ),
    (field("pad_leak", 10**400), "says pad_leak 1"),
    (field("tokens", [["a"], ["b"]]), r"tokens that are not one for each of the ids, whose shape is \(2, 3\)"),
    *(
        (field("tokens", tokens), "tokens that are not one")
        for tokens in (["abc", "abc"], [["a", "b", "c"], "abc"], {"a": 1, "b": 2}, 3)
    ),
    (field("tokens", [["a", "b", "c"], ["a", "b", 3]]), "holds the token 3: expected text"),
    (field("provenance", 3), "holds 3 as provenance: expected an object"),
    (field("provenance", None), "holds None as provenance"),
    (field("provenance", {"point": 3}), r"3 as provenance\['point'\]: expected text"),
    (field("provenance", {"objective": "Sum"}), r"'Sum' as provenance\['objective'\]"),
    (field("provenance", {"objective": {"class": ["Sum"]}}), r"as provenance\['objective'\]"),
    (field("provenance", {"versions": {"torch": 2}}), r"as provenance\['versions'\]: expected text by library"),
    *(
        (field("certificate", certificate), "an invalid certificate")
        for certificate in (
            3,
            *(NOTHING | {"slopes": [slope]} for slope in (3, {**SLOPE, "found": "1"}, {**SLOPE, "more": 1})),
            *(NOTHING | {"slopes": [SLOPE], name: "1"} for name in ("scatter", "independence", "padding")),
            *(NOTHING | {"untested": untested} for untested in (3, [True], [-1])),
            *(NOTHING | {"unrun": unrun} for unrun in ([], {"order": 3})),
            {name: value for name, value in NOTHING.items() if name != "untested"},
        )
    ),
]
SPLIT: list[tuple[Change, str]] = [
    (removing("arrays", "table.1.rows"), "expected rows and values of each table from 0 on"),
    (array("table.2.rows", [1]), "expected rows and values of each table from 0 on"),
    (array("table.x.rows", [1]), "expected rows and values of each table from 0 on"),
    (array("table.0.rows", [5, 3]), r"\[5, 3\] as table\.0\.rows: expected rows of a table of 10, ascending"),
    (array("table.0.rows", [3, 3]), "ascending"),
    (array("table.0.rows", [3, 10]), "expected rows of a table of 10"),
    (array("table.0.rows", [-3, 1]), "expected rows of a table of 10"),
    (array("table.0.rows", [[3, 5]]), r"table 0 of int64 \(1, 2\) and float32 \(2, 4\): expected int64 \(row,\)"),
    (array("table.0.rows", [3.0, 5.0]), r"table 0 of float64 \(2,\) and .*: expected int64 \(row,\)"),
    (
        array("table.0.values", np.float32([[1, 1, 1]] * 2)),
        r"and float32 \(2, 3\): expected int64 \(row,\) and float32 \(row, 4\)",
    ),
    (array("table.0.values", np.ones((2, 4))), r"and float64 \(2, 4\): expected .* float32 \(row, 4\)"),
    (array("objective", np.zeros(3)), "holds 2 tables, of 10 rows, for 3 examples"),
    (field("vocab", None), "holds 2 tables, of None rows"),
]


def entries(change: Callable[[list[Any]], Any]) -> Change:
    def changed(arrays: dict[str, Any], description: dict[str, Any]) -> None:
        change(description["results"])

    return changed


SEVERAL: list[tuple[Change, str]] = [
    (field("results", []), "lists no results"),
    (field("results", {"a": {}}), "lists no results"),
    (field("results", [3, 4]), "names a result None: expected names that are text"),
    (field("more", 1), "lists no results"),
    (entries(lambda each: each.pop()), r"holds the array '1\.\w+', which belongs to none of its 1 results"),
    (entries(lambda each: each.append(dict(each[0], name="c"))), r"at 'c' lacks the arrays \['values'"),
    (entries(lambda each: each[1].update(name="word")), "names a result 'word': expected .* each once"),
    (entries(lambda each: each[1].update(name=3)), "names a result 3: expected names that are text"),
    (entries(lambda each: each[1].pop("name")), "names a result None"),
    (entries(lambda each: each[1].update(vocab=-1)), "at 'a/b' holds a vocab of -1"),
    (array("1.ids", -IDS), "at 'a/b' holds -7 in ids"),
    (array("x.ids", IDS), "the array 'x.ids', which belongs to none of its 2 results"),
    (array("ids", IDS), "the array 'ids', which belongs to none"),
    (removing("arrays", "0.values"), "at 'word' lacks"),
]
CHANGED = [
    *((result(), *change) for change in RESULT),
    *((result(tables=TABLES), *change) for change in SPLIT),
    *(({"word": result(), "a/b": result()}, *change) for change in SEVERAL),
]


@pytest.mark.parametrize(("results", "change", "message"), CHANGED)
def test_files_changed_by_hand(tmp_path: Path, results: Any, change: Change, message: str) -> None:
    path = rewritten(tmp_path, change, results)
    with pytest.raises(embgrad.errors.FileFormatError, match=message):
        embgrad.load(path)


def with_header(header: str, data: bytes = b"") -> bytes:
    encoded = header.encode()
    return struct.pack("<Q", len(encoded)) + encoded + data


def packed(arrays: dict[str, Any], metadata: dict[str, str]) -> bytes:
    """Return a safetensors file by hand, since the oldest safetensors cannot write complex numbers."""
    header: dict[str, Any] = {"__metadata__": metadata}
    data = b""
    for name, value in arrays.items():
        end = len(data) + value.nbytes
        header[name] = {"dtype": NAMES[value.dtype.name], "shape": value.shape, "data_offsets": [len(data), end]}
        data += value.tobytes()
    return with_header(json.dumps(header), data)


def test_empty_arrays_of_huge_shapes_take_no_memory(tmp_path: Path) -> None:
    shape, none = f"[{2**40},0]", '"data_offsets":[0,0]'
    arrays = {"values": ("F32", f"[{2**40},0,4]"), "activations": ("F32", f"[{2**40},0,4]"), "ids": ("I64", shape)}
    arrays["objective"] = ("F64", "[0]")
    described = {
        "format": 1,
        "class": "EmbeddingGradients",
        "tokens": [], "vocab": None, "pad_leak": 0.0, "provenance": {}, "certificate": None,
    }  # fmt: skip
    told = ",".join(f'"{name}":{{"dtype":"{kind}","shape":{one},{none}}}' for name, (kind, one) in arrays.items())
    header = f'{{"__metadata__":{{"embgrad":{json.dumps(json.dumps(described))}}},{told}}}'
    path = tmp_path / "g.safetensors"
    path.write_bytes(with_header(header))
    assert memory_of_a_refusal(lambda: embgrad.load(path), "with one of each at least") < 2**24


WHOLE = saved_bytes({"word": everything(), "layer.-1": result(vocab=None)})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(["format", "tokens", "vocab", "pad_leak", "provenance", "certificate"]), JSON)
@settings(max_examples=200)
def test_any_json_as_a_field_is_refused_or_sound(name: str, value: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = rewritten(Path(folder), field(name, value), everything())
        expect_refused_or_sound(path.read_bytes())


KINDS = (np.float32, np.float64, np.int64, np.int32, np.float16, np.bool_, np.uint8, np.complex64)


@given(
    st.sampled_from(
        ["values", "ids", "objective", "mask", "words", "before", "table.0.rows", "table.1.values", "other"]
    ),
    st.lists(st.integers(0, 4), max_size=4),
    st.sampled_from(KINDS),
    st.integers(-2, 12),
)
@settings(max_examples=200)
def test_any_array_as_a_field_is_refused_or_sound(name: str, shape: list[int], kind: Any, value: int) -> None:
    filled = np.full(shape, value % 3 if kind in (np.bool_, np.uint8) else value, kind)
    with tempfile.TemporaryDirectory() as folder:
        path = rewritten(Path(folder), array(name, filled), everything())
        expect_refused_or_sound(path.read_bytes())


def test_the_file_of_the_properties_is_sound_and_complete(tmp_path: Path) -> None:
    expect_refused_or_sound(WHOLE)
    path = tmp_path / "g.safetensors"
    path.write_bytes(WHOLE)
    actual = embgrad.load(path)
    assert isinstance(actual, dict)
    expect_same_bits(everything(), actual["word"])
    assert isinstance((actual["word"].tables or ())[0], RowSparse)
