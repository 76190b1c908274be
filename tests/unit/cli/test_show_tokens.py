"""Saved attributions of output tokens in the commands `show`, `report` and `compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.results.token_attribution import TokenAttribution
from tests.unit.cli.commands import refused
from tests.unit.results.attributed import token_attribution_of

TOKENS = ["The", "Ġdou", "gh", "Ġro", "se"]
SCORES = [[[4, -2, 0, 0, 0], [0, 1, 1, 8, 0]]]


@pytest.fixture
def saved(directory: Path) -> TokenAttribution:
    batch = embgrad.TokenBatch(np.arange(5)[None], tokens=[TOKENS])
    attribution = token_attribution_of(batch, [[2, 4]], SCORES)
    attribution.save(directory / "t.safetensors")
    token_attribution_of(embgrad.TokenBatch([[7, 8]]), [[1]], 1.0).save(directory / "ids.safetensors")
    return attribution


def test_show_prints_a_line_for_each_output(command: Any, saved: TokenAttribution) -> None:
    assert command("show", "t.safetensors").out.splitlines() == [
        "at word, Model (reference)",
        "gh  The(+9) dou(-4)",
        "se  The(0) dou(+1)gh(+1) ro(+9)",
        "",
        "contribution, -9 to +9; 9 is the example's largest",
    ]
    assert "se  The(0) dough(+2) rose(+9)" in command("show", "t.safetensors", "--words").out


def test_show_refuses_what_there_is_not(command: Any, saved: TokenAttribution) -> None:
    assert "--kind dot is for gradients" in refused(command("show", "t.safetensors", "--kind", "dot"))
    assert "the tokens of this attribution are not known" in refused(command("show", "ids.safetensors", "--words"))


def test_report_writes_the_page_to_step_through(command: Any, saved: TokenAttribution) -> None:
    done = command("report", "t.safetensors", "-o", "page.html")
    assert done.code == 0, done.err
    assert Path("page.html").read_text(encoding="utf-8") == saved.to_html()


def test_several_files_are_not_for_one_page(command: Any, saved: TokenAttribution) -> None:
    message = "results holds 2 results, and one of embgrad.attribute_tokens among them, which has a page by itself"
    assert message in refused(command("report", "t.safetensors", "ids.safetensors", "-o", "page.html"))
    assert "a is of type TokenAttribution: expected" in refused(command("compare", "t.safetensors", "ids.safetensors"))
