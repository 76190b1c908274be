"""Small random decoders in float32 and bfloat16, against PyTorch's own gradients with respect to one-hot inputs."""

from __future__ import annotations

from pathlib import Path

import pytest

import embgrad
from tests.decoders.architectures import DECODERS
from tests.decoders.cells import measure
from tests.decoders.inputs import alone, padded, relative
from tests.decoders.page import DOCS, EXACT, ROUNDED, recorded, with_table

#: The decoders whose positions count padding on the left.
BY_COLUMN = ("GPT-2", "BART")


@pytest.mark.parametrize("name", DECODERS)
def test_gradients_are_pytorchs_own_and_padding_changes_nothing(name: str, tmp_path: Path) -> None:
    cell = measure(name, "float32", tmp_path)
    assert cell.error == ""
    assert cell.changed == ()
    assert max(cell.own, cell.one_hot, cell.right) < EXACT
    assert cell.warned is (name in BY_COLUMN)
    assert cell.left > 0.01 if name in BY_COLUMN else cell.left < EXACT
    assert cell.positions is None or cell.positions < EXACT
    assert (cell.positions is None) == (recorded()["torch"]["cells"][name]["float32"]["positions"] is None)


@pytest.mark.parametrize("name", DECODERS)
def test_gradients_in_bfloat16_are_pytorchs_own(name: str, tmp_path: Path) -> None:
    cell = measure(name, "bfloat16", tmp_path)
    assert cell.error == ""
    assert cell.changed == ()
    assert cell.own < 1e-2  # a cotangent may round to the neighbouring number
    assert cell.one_hot < ROUNDED
    assert cell.right < ROUNDED
    assert cell.from_float32 < 0.2


def test_a_wrong_gradient_would_be_seen() -> None:
    """The differences of the cells are those of numbers that differ: another objective gives others."""
    model, inputs = DECODERS["Llama"].build(), padded("right")
    values = embgrad.gradients(model, inputs.batch, embgrad.CrossEntropy(inputs.labels)).values
    labels = inputs.labels.copy()
    labels[0, 0] += 1
    assert relative(embgrad.gradients(model, inputs.batch, embgrad.CrossEntropy(labels)).values, values) > 0.01


def test_texts_alone_have_no_padding() -> None:
    assert [inputs.mask.min() for inputs in alone()] == [1, 1, 1]


def test_the_page_has_the_table_of_the_recorded_cells() -> None:
    text = (DOCS / "decoders.md").read_text(encoding="utf-8")
    assert with_table(text, recorded()) == text, "run python -m tests.decoders --write docs/decoders.md"
