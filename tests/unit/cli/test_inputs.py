"""Inputs of a command: texts, pairs, ids and vocabularies from files and pipes."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.commands import TEXTS, child, refused


def tokens(done: Any) -> list[list[str]]:
    assert done.code == 0, done.err
    table = json.loads(done.out)["results"]["word"]["tables"]["tokens"]
    rows: dict[int, list[str]] = {}
    for example, token in zip(table["example"], table["token"], strict=True):
        rows.setdefault(example, []).append(token)
    return list(rows.values())


def test_texts_pairs_and_a_file_in_order(command: Any, directory: Path) -> None:
    (directory / "texts.txt").write_text("Never again.\n")
    done = command(
        "gradients", *TEXTS, "--file", "texts.txt", "--pair", "a", "film", "--text", "A gripping film", "--json"
    )
    assert tokens(done) == [
        ["[CLS]", "a", "grip", "##ping", "film", "[SEP]"],
        ["[CLS]", "a", "[SEP]", "film", "[SEP]"],
        ["[CLS]", "never", "again", ".", "[SEP]"],
    ]


@pytest.mark.parametrize("named", [(), ("--file", "-")])
def test_texts_from_stdin(named: tuple[str, ...]) -> None:
    done = child("gradients", *TEXTS, *named, "--json", stdin=b"never\r\nagain .")
    assert tokens(done) == [["[CLS]", "never", "[SEP]"], ["[CLS]", "again", ".", "[SEP]"]]


def test_lines_of_a_file_of_texts(command: Any, directory: Path) -> None:
    (directory / "t.txt").write_bytes("\ufefffilm\r\n\r\n   \r\nfilm\u2028a film\rnever".encode())
    done = command("gradients", *TEXTS, "--file", "t.txt", "--json")
    assert tokens(done) == [
        ["[CLS]", "film", "[SEP]"],
        ["[CLS]", "film", "a", "film", "[SEP]"],
        ["[CLS]", "never", "[SEP]"],
    ]
    assert "note: t.txt: 2 blank lines skipped" in done.err


@pytest.mark.parametrize(
    ("content", "options", "said"),
    [
        (b"film\nfi\xfflm\n", (), r"t.txt, line 2: byte 0xff at position 3 is not UTF-8.*save the file as UTF-8"),
        ("film".encode("utf-16"), (), "t.txt is UTF-16: expected UTF-8.*iconv"),
        (b"a\tfilm\nfilm\n", ("--pairs",), "t.txt, line 2 has 0 TABs: with --pairs, expected one"),
        (b"a\tb\tc\n", ("--pairs",), "has 2 TABs"),
    ],
)
def test_other_files_of_texts_are_refused(
    command: Any, directory: Path, content: bytes, options: Any, said: str
) -> None:
    (directory / "t.txt").write_bytes(content)
    done = command("gradients", *TEXTS, "--file", "t.txt", *options)
    assert done.code == 2
    assert re.search(said, done.err)


def test_truncation_is_a_warning(command: Any) -> None:
    done = command("gradients", *TEXTS, "-t", "a gripping film", "--max-length", "4", "--json")
    assert tokens(done) == [["[CLS]", "a", "grip", "[SEP]"]]
    assert "warning: 2 tokens were cut off from 1 of 1 examples" in done.err


def test_a_tokenizer_from_a_python_file(command: Any) -> None:
    done = command(
        "gradients", "-m", "models.py:build", "--tokenizer", "models.py:tokenizer", "-t", "a bb ccc", "--json"
    )
    assert json.loads(done.out)["results"]["word"]["tables"]["tokens"]["id"] == [2, 3, 4]


def test_a_missing_package_tokenizers(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tokenizers" else find(name))
    assert "texts need the package 'tokenizers': pip install 'embgrad[cli]'; or give ids with --ids" in refused(
        command("gradients", *TEXTS, "-t", "a film")
    )


def test_pairs_in_both_spellings(command: Any) -> None:
    done = command("gradients", *TEXTS, "--pair=a", "film", "--pair", "never", "--json", "--json")
    assert tokens(done) == [
        ["[CLS]", "a", "[SEP]", "film", "[SEP]"],
        ["[CLS]", "never", "[SEP]", "[UNK]", "[UNK]", "[UNK]", "[SEP]"],
    ]
