"""Runs the snippets of a page as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from embgrad.loading.minilm import minilm_folder

DOCS = Path(__file__).parents[3] / "docs"


def printed_by(page: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What each snippet of a page in `docs` prints, one after the other, with MiniLM's checkpoint as `folder`."""
    text = (DOCS / page).read_text(encoding="utf-8")
    names: dict[str, Any] = {"folder": minilm_folder()}
    printed = []
    for number, snippet in enumerate(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)):
        exec(compile(snippet, f"{page}, snippet {number}", "exec"), names)
        printed.append(capsys.readouterr().out)
    return printed
