"""Inputs of a check of a port that cannot be used, each with its own words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embgrad.comparison.port import check_port
from embgrad.errors import BackendError, BatchError, EmbgradError
from embgrad.testing.reference import ReferenceModel, lookup
from tests.unit.comparison.test_bisect import IDS, model


def split(text: str) -> list[int]:
    return [1 + len(word) for word in text.split()]


def with_start(text: str) -> list[int]:
    return [9, *split(text)]


def test_an_unknown_floor_names_the_known_ones() -> None:
    with pytest.raises(EmbgradError, match="floor is 'int8': expected one of 'float64', 'float32'"):
        check_port(model(), model(), IDS, floor="int8")


def test_tokenizers_that_differ_are_named_with_the_first_token() -> None:
    texts = ["a bc", "def a"]
    with pytest.raises(BatchError, match="the tokenizers differ at text 0, token 0: a has the id 2, and b the id 9"):
        check_port(model(), model(), texts, tokenizer=(split, with_start))
    with pytest.raises(BatchError, match="tokenizer is a tuple of 3: expected a tokenizer, or one for a and one for b"):
        check_port(model(), model(), texts, tokenizer=(split, split, split))
    assert check_port(model(), model(), texts, tokenizer=(split, split)).agrees


def test_models_without_anything_in_common_are_refused() -> None:
    def forward(m: Any, input_ids: np.ndarray) -> Any:
        return lookup(m["other"], input_ids).mean(1).mean(1)

    other = ReferenceModel(forward, {"other": np.random.default_rng(9).normal(size=(30, 2))})
    said = (
        "nothing in common that can be compared: a is reference ReferenceModel with 19 weights, .* Pass a port with the"
    )
    with pytest.raises(EmbgradError, match=said):
        check_port(model(), other, IDS)


def test_a_port_that_shows_its_output_alone_is_checked_by_it() -> None:
    """A traced module holds no weights that can be read."""
    table = np.random.default_rng(9).normal(size=(30, 4))

    def forward(m: Any, input_ids: np.ndarray) -> Any:
        return lookup(m["table"], input_ids).mean(1)

    def traced(factor: float) -> ReferenceModel:
        def forward(m: Any, input_ids: np.ndarray) -> Any:
            lookup(m["other"], input_ids)
            ones = lookup(m["ones"], np.zeros(input_ids.shape, int)) * np.eye(30)[input_ids]
            return (ones @ m["kept"]).mean(1)

        return ReferenceModel(forward, {"kept": factor * table, "other": np.ones((30, 3)), "ones": np.ones((1, 30))})

    report = check_port(ReferenceModel(forward, {"table": table}), traced(1.0), IDS)
    assert report.agrees
    assert report.verdict.startswith("the port agrees: at output, the only point that both have, up to rounding")
    report = check_port(ReferenceModel(forward, {"table": table}), traced(1.0005), IDS)
    assert (report.agrees, report.first) == (False, "output")
    with pytest.raises(EmbgradError, match="nothing in common"):
        check_port(ReferenceModel(forward, {"table": table}), traced(1.1), IDS)


def test_texts_are_missing_where_neither_side_is_a_dump() -> None:
    with pytest.raises(BatchError, match="batch"):
        check_port(model(), model())


def test_an_onnx_file_needs_its_backend(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"")
    with pytest.raises(BackendError, match="onnx"):
        check_port(model(), tmp_path / "model.onnx", IDS)
