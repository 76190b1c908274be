"""The page on streams runs as it stands, and prints what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cross.parity.pages import printed_by


def test_the_page_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    printed = printed_by("streaming.md", capsys)
    longest, labels, agree, interrupted, attributions, total, tables = printed
    assert re.fullmatch(r"the longest gradient: \d+\.\d+\n", longest)
    assert labels == "[0, 1, 0, 1, 0, 1, 0, 1]\n"
    assert agree == "True\n"
    assert interrupted == "StreamFolder('run', 8 results of 60 examples, keep='all', complete)\n8\n"
    assert re.fullmatch(r"\(8, \d+\) \d\.\d+\n", attributions)
    assert re.fullmatch(r"RowSparse\(\d\d of 30522 rows × 384, float32\)\n", total)
    assert re.fullmatch(r"\(32,\)\n\(32, 28\)\nRowSparse\(\d\d of 30522 rows × 384, float32\)\n", tables)
