"""The snippets of the page on the five systems run as they stand, each section from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "seeds.md"
DATA = ROOT / "tests" / "data"


def sections() -> dict[str, str]:
    text = PAGE.read_text(encoding="utf-8")
    headings = re.findall(r"^## (.*)$", text, flags=re.MULTILINE)
    return dict(zip(headings, re.split(r"^## .*$", text, flags=re.MULTILINE)[1:], strict=True))


def test_there_are_five_and_each_names_its_test() -> None:
    assert len(sections()) == 5
    named = re.findall(r"`tests/cross/seeds/(test_seed_\w+\.py)`", PAGE.read_text(encoding="utf-8"))
    assert sorted(named) == sorted(path.name for path in Path(__file__).parent.glob("test_seed_*.py"))


@pytest.mark.parametrize("heading", list(sections()))
def test_snippets_run(heading: str) -> None:
    names: dict[str, Any] = {
        "encoder_folder": str(DATA / "tfhub_bert_tiny"),
        "preprocessing_folder": str(DATA / "tfhub_bert_tiny_preprocess"),
    }
    snippets = re.findall(r"```python\n(.*?)```", sections()[heading], flags=re.DOTALL)
    assert len(snippets) >= 3
    for number, snippet in enumerate(snippets):
        exec(compile(snippet, f"{PAGE.name}, {heading}, snippet {number}", "exec"), names)
