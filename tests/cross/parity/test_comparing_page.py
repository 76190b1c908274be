"""The page on comparing runs as it stands, and prints what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cross.parity.pages import printed_by


def test_the_page_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    printed = printed_by("comparing.md", capsys)
    _, numbers_alone, with_the_models, parted, pinned = printed
    assert re.match(
        r"99\.\d+ % of the difference is a factor .* b took the mean over the batch of 2 examples", numbers_alone
    )
    activation = "that the activation is GELU by the error function in a and GELU by the tanh approximation in b"
    assert f"100 % of the difference is {activation}, layers 0–5, and a factor 0.5 = 1/2" in with_the_models
    assert "bert.encoder.layer.0.intermediate\n" in parted
    assert "The values diverge at 'layer.0'" in parted
    assert activation in pinned
    assert re.search(r"the golden file was made with .*tensorflow \d.*, and these results with .*torch \d", pinned)
