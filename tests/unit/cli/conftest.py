"""Fixtures that run commands in a temporary folder."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from embgrad.cli import main
from tests.unit.cli.commands import MODELS, WORDS


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with models, a tokenizer and ids, and clear the settings of the terminal."""
    (tmp_path / "models.py").write_text(MODELS)
    (tmp_path / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    (tmp_path / "ids.json").write_text('{"ids": [[4, 5, 6], [7, 8, 0]], "mask": [[1, 1, 1], [1, 1, 0]]}')
    monkeypatch.chdir(tmp_path)
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR", "TERM", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., SimpleNamespace]:
    """Return a function that runs a command in this process."""

    def run(*arguments: str, stdin: bytes | None = None) -> SimpleNamespace:
        before = sys.stdin
        sys.stdin = Terminal() if stdin is None else io.TextIOWrapper(io.BytesIO(stdin))
        try:
            code = main(arguments)
        finally:
            sys.stdin = before
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return run


class Terminal(io.StringIO):
    """A stdin without piped input."""

    def isatty(self) -> bool:
        return True
