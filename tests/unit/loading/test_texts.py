"""Texts of options, files and pipes, and ids of JSON files, as batches."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.loading import texts as texts_module
from embgrad.loading.errors import UsageError
from embgrad.loading.texts import MOST_INPUT, ids_from, read_bytes, read_texts
from tests.unit.refusals import refused


def ids_of(directory: Path, content: Any) -> tuple[embgrad.TokenBatch, list[str]]:
    """Return the batch of a JSON file, with the notes on it."""
    notes: list[str] = []
    (directory / "own.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return ids_from("own.json", notes.append), notes


@pytest.mark.parametrize(
    ("content", "mask", "types", "convention"),
    [
        ([[1, 2], [3, 4]], None, None, "ids"),
        ({"ids": [[1, 2], [3, 4]]}, None, None, "ids"),
        ({"ids": [[1, 2], [3, 4]], "mask": [[1, 1], [1, 0]]}, [[1, 1], [1, 0]], None, "huggingface"),
        ({"ids": [[1, 2], [3, 4]], "types": [[0, 1], [0, 0]]}, None, [[0, 1], [0, 0]], "huggingface"),
        ({"input_ids": [[1, 2], [3, 4]]}, None, None, "huggingface"),
    ],
)
def test_ids_of_a_file(directory: Path, content: Any, mask: Any, types: Any, convention: str) -> None:
    batch, notes = ids_of(directory, content)
    assert (np.asarray(batch.ids).tolist(), notes) == ([[1, 2], [3, 4]], [])
    for own, expected in ((batch.mask, mask), (batch.types, types)):
        assert (own is None) == (expected is None)
        assert own is None or np.asarray(own).tolist() == expected
    assert batch.convention == convention


def test_tokens_of_a_file_are_those_of_its_ids(directory: Path) -> None:
    batch, _ = ids_of(directory, {"ids": [[1, 2]], "tokens": [["a", "b"]]})
    assert batch.tokens == (("a", "b"),)


def test_examples_of_different_lengths_are_padded_where_ids_are_all_there_is(directory: Path) -> None:
    batch, notes = ids_of(directory, [[1, 2, 3], [4]])
    assert np.asarray(batch.ids).tolist() == [[1, 2, 3], [4, 0, 0]]
    assert np.asarray(batch.mask).tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch.convention == "huggingface"
    assert notes == [
        "own.json: the examples have different lengths; shorter ones are padded with zeros on the right and masked there"
    ]
    for content in ({"ids": [[1, 2, 3], [4]], "types": [[0, 0, 0], [0, 0, 0]]}, [[1, 2], 3], [], 3):
        with pytest.raises(embgrad.EmbgradError):
            ids_of(directory, content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[[1, 2", "own.json is not valid JSON: "),
        ('{"ids": [[1]], "ids": [[2]]}', "own.json is not valid JSON: "),
        ("3", "own.json holds int: expected a list of lists of ids, or an object with 'ids'"),
        (
            '{"id": [[1]]}',
            "own.json holds 'id': expected 'ids', and optionally 'mask', 'types' and 'tokens'. Did you mean",
        ),
        (
            '{"ids": [[1]], "masks": [[1]]}',
            "own.json holds 'masks': expected 'ids', 'mask', 'types' and 'tokens'. Did you",
        ),
    ],
)
def test_other_files_of_ids_are_refused(directory: Path, content: str, message: str) -> None:
    with refused(UsageError, message):
        ids_of(directory, content)


def test_texts_come_in_the_order_of_their_options(directory: Path) -> None:
    notes: list[str] = []
    (directory / "lines.txt").write_text("c\n\nd\n")
    assert read_texts(["a"], [("b", "B")], "lines.txt", False, notes.append) == ["a", ("b", "B"), "c", "d"]
    assert notes == ["lines.txt: 1 blank line skipped"]
    (directory / "lines.txt").write_text("\nc\tC\n\nd\tD\n")
    assert read_texts([], [], "lines.txt", True, notes.append) == [("c", "C"), ("d", "D")]
    assert notes[1:] == ["lines.txt: 2 blank lines skipped"]


def test_texts_are_read_from_a_pipe_where_no_other_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for texts, file, expected in (([], None, ["x", "y"]), (["a"], None, ["a"]), (["a"], "-", ["a", "x", "y"])):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"x\ny\n")))
        assert read_texts(texts, [], file, False, print) == expected
    monkeypatch.setattr(sys, "stdin", io.StringIO("x"))
    assert read_bytes("-") == b"x"
    monkeypatch.setattr(sys, "stdin", None)
    with refused(UsageError, "there is no text: give --text TEXT"):
        read_texts([], [], None, False, print)
    with refused(UsageError, "'-' stands for stdin, and nothing is piped in"):
        read_bytes("-")


def test_other_texts_are_refused(directory: Path) -> None:
    (directory / "lines.txt").write_text("a\tb\n\nc\n")
    with refused(UsageError, "lines.txt, line 3 has 0 TABs: with --pairs, expected one per line"):
        read_texts([], [], "lines.txt", True, print)
    with refused(UsageError, "--pairs applies to the lines of a file, and there is no --file"):
        read_texts(["a"], [], None, True, print)
    (directory / "lines.txt").write_text("\n")
    with refused(UsageError, "lines.txt holds no text: expected one per line"):
        read_texts(["a"], [], "lines.txt", False, print)
    for options in ((["\udc80"], []), ([], [("a", "\udc80")])):
        with refused(UsageError, "holds bytes that are not text in this locale: expected UTF-8"):
            read_texts(*options, None, False, print)


def test_files_are_read_up_to_a_size(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_INPUT == 64 * 1024 * 1024
    (directory / "lines.txt").write_text("abc")
    assert read_bytes("lines.txt", 3) == b"abc"
    with refused(UsageError, "lines.txt is longer than 2 bytes, the largest permitted size"):
        read_bytes("lines.txt", 2)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"abc")))
    with refused(UsageError, "<stdin> is longer than 2 bytes"):
        texts_module.read_bytes("-", 2)
