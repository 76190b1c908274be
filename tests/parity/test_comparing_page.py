"""The page on comparing runs as it stands, and prints what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from embgrad.demo import minilm_folder

PAGE = Path(__file__).parents[2] / "docs" / "comparing.md"


def test_the_page_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"folder": minilm_folder()}
    printed = []
    for number, snippet in enumerate(
        re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    ):
        exec(compile(snippet, f"{PAGE.name}, snippet {number}", "exec"), names)
        printed.append(capsys.readouterr().out)
    _, numbers_alone, with_a_model, parted, pinned = printed
    assert re.match(
        r"99\.\d+ % of the difference is a factor .* b took the mean over the batch of 2 examples", numbers_alone
    )
    assert "100 % of the difference is the activation: b computes GELU by the tanh approximation" in with_a_model
    assert "encoder.layer.0.intermediate activation" in parted
    assert "The values part at 'layer.0'" in parted
    assert "is the activation: a computes GELU by the error function and b GELU by the tanh approximation" in pinned
    assert re.search(r"the golden file was made with .*tensorflow \d.*, and this is .*torch \d", pinned)
