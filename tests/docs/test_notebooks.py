"""The notebooks run, print what they show, and end their cells in results that notebooks show."""

from __future__ import annotations

import ast
import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import DOCS, difference

NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))


def run(cell: dict[str, Any], names: dict[str, Any]) -> tuple[str, Any]:
    """Run a cell; return what it prints, and the value of the expression in which it ends, or None."""
    lines = ast.parse("".join(cell["source"]))
    last = lines.body.pop() if isinstance(lines.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(lines, "notebook", "exec"), names)
        value = None if last is None else eval(compile(ast.Expression(last.value), "notebook", "eval"), names)
    return printed.getvalue(), value


@pytest.mark.framework("torch")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs_and_prints_what_it_shows(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == [*range(1, 1 + len(cells))], "it was run from top to bottom"
    for cell in cells:
        printed, value = run(cell, names)
        outputs = {output["output_type"]: output for output in cell["outputs"]}
        shown = "".join(outputs.get("stream", {}).get("text", ""))
        assert (wrong := difference(shown, printed)) is None, wrong
        assert ("execute_result" in outputs) == hasattr(value, "_repr_html_")


def test_there_is_a_notebook() -> None:
    assert NOTEBOOKS
