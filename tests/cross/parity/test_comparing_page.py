"""The page on comparing runs as it stands, and prints what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cross.parity.pages import printed_by


def test_the_page_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    printed = printed_by("comparing.md", capsys)
    _, numbers_alone, with_a_model, parted, pinned = printed
    assert re.match(
        r"99\.\d+ % of the difference is a factor .* b took the mean over the batch of 2 examples", numbers_alone
    )
    assert "100 % of the difference is the activation: GELU by the tanh approximation in b and GELU by" in with_a_model
    assert "encoder.layer.0.intermediate activation" in parted
    assert "The values diverge at 'layer.0'" in parted
    assert "is the activation: GELU by the error function in a and GELU by the tanh approximation in b" in pinned
    assert re.search(r"the golden file was made with .*tensorflow \d.*, and these results with .*torch \d", pinned)
