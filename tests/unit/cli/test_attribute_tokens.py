"""The command `attribute-tokens`: the numbers of `embgrad.attribute_tokens`, and messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.cli.attribute_tokens import _target
from tests.unit.attribution.language_models import causal
from tests.unit.cli.commands import refused

#: A file with a causal language model.
MODEL = "from tests.unit.attribution.language_models import causal as build\n"


def test_the_file_holds_the_attribution(command: Any, directory: Path) -> None:
    (directory / "language.py").write_text(MODEL, encoding="utf-8")
    (directory / "three.json").write_text("[[5, 7, 3]]", encoding="utf-8")
    done = command(
        "attribute-tokens", "-m", "language.py:build", "--ids", "three.json", "-o", "a.safetensors", "--json"
    )
    assert done.code == 0, done.err
    read = embgrad.load("a.safetensors")
    assert isinstance(read, embgrad.results.TokenAttribution)
    np.testing.assert_array_equal(read.scores, embgrad.attribute_tokens(causal(), [[5, 7, 3]]).scores)
    assert json.loads(done.out)["result"]["shape"] == [1, 2, 3]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "--model is missing: expected a folder, or your own model as path/to/file.py:name"),
        (
            ("-m", "x", "--by", "turns"),
            "--by is 'turns': expected one of 'tokens', 'words', 'spans', 'sentences', 'segments'",
        ),
        (("-m", "x", "-o", "-"), "--output is '-', but the tokens are printed on stdout: expected the name of a file"),
    ],
)
def test_missing_models_other_units_and_output_to_stdout_are_refused(
    command: Any, words: tuple[str, ...], message: str
) -> None:
    assert message in refused(command("attribute-tokens", "--ids", "ids.json", *words))


def test_targets_are_positions_slices_and_texts(command: Any, directory: Path) -> None:
    assert [_target(text) for text in ("-1", "3", "4:", "-3:-1", ":", "1:2:3", "the 3")] == [
        *(-1, 3, slice(4, None), slice(-3, -1), slice(None), "1:2:3", "the 3")
    ]
    (directory / "language.py").write_text(MODEL, encoding="utf-8")
    (directory / "five.json").write_text("[[5, 7, 3, 4, 6]]", encoding="utf-8")
    words = ("attribute-tokens", "-m", "language.py:build", "--ids", "five.json", "-o", "a.safetensors")
    assert command(*words, "--target", "2:", "--target", "1").code == 0
    direct = embgrad.attribute_tokens(causal(), [[5, 7, 3, 4, 6]], [slice(2, None), 1])
    np.testing.assert_array_equal(embgrad.load("a.safetensors").scores, direct.scores)
    assert command(*words, "--target", "-1", "--through", "1:4", "--hops", "3").code == 0
    hopped = embgrad.attribute_tokens(causal(), [[5, 7, 3, 4, 6]], [-1], hops=3, through=slice(1, 4))
    np.testing.assert_array_equal(embgrad.load("a.safetensors").scores, hopped.scores)
    assert "the text 'the' names tokens of a batch of ids" in refused(command(*words, "--target", "the"))


@pytest.mark.parametrize(
    ("unit", "lines"),
    [("tokens", ["a", "grip", "ping", "film", "[SEP]"]), ("words", ["a", "gripping", "film", "[SEP]"])],
)
def test_each_unit_that_is_asked_for_has_a_line(command: Any, directory: Path, unit: str, lines: list[str]) -> None:
    (directory / "language.py").write_text(MODEL, encoding="utf-8")
    ask = ("attribute-tokens", "-m", "language.py:build", "--tokenizer", "vocab.txt", "--text", "a gripping film")
    _, *printed, _ = command(*ask, "--by", unit).out.splitlines()
    assert [line.split()[0] for line in printed] == lines
