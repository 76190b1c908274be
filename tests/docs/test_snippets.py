"""Every snippet of every page runs, and prints what the page shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import REFERENCE
from tests.docs import pages as pages_module
from tests.docs.conftest import ELSEWHERE, PARTS, WEIGHTS, pages_here
from tests.docs.pages import DOCS, ROOT, difference, needs, pages, run

#: What Ray says in passing of its own processes, where a machine is slow.
RAYLET = re.compile(r"^\S*\(raylet\).*\n\s*", flags=re.MULTILINE)


@pytest.mark.parametrize("page", [page for page in pages_here() if "ray" not in needs(page)])
def test_the_page_runs_and_prints_what_it_says(page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    expect_as_said(page)


def expect_as_said(page: str) -> None:
    for snippet, reported in run(page):
        printed = RAYLET.sub("", reported)
        where = f"{page}, line {snippet.line + 1}"
        if snippet.printed is None:
            assert not printed, f"{where}: the page does not show what is printed:\n{printed}"
        else:
            assert (wrong := difference(snippet.printed, printed)) is None, f"{where}: {wrong}"


@pytest.mark.framework(REFERENCE)
@pytest.mark.parametrize("page", pages())
def test_the_needs_of_pages_are_known(page: str) -> None:
    assert {*needs(page)} <= {"torch", "tensorflow", "gluon", "jax", "ray", *PARTS, *WEIGHTS}


@pytest.mark.framework(REFERENCE)
@pytest.mark.parametrize(("page", "test"), ELSEWHERE.items())
def test_other_pages_are_run_by_other_tests(page: str, test: str) -> None:
    assert page in pages()
    assert Path(page).name in (ROOT / test).read_text(encoding="utf-8")


@pytest.mark.framework(REFERENCE)
@pytest.mark.parametrize("page", pages())
def test_fences_name_a_known_language(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    opened = re.findall(r"^\s*```(.*)$", text, flags=re.MULTILINE)[::2]
    assert {*opened} <= {"py", "python", "text", "console", "toml", "{toctree}", "{eval-rst}", "{image}"}


@pytest.mark.framework(REFERENCE)
def test_differences_are_found() -> None:
    assert difference("a 0.50 b\n", "a  0.51 b") is None
    assert difference("a 1.4e-06", "a 1.5e-06") is None
    assert difference("from ... to 3", "from here\nand there to 3\n") is None
    for expected, printed in (
        ("a 0.50 b", "a 0.53 b"),
        ("a 0.50 b", "a 0.50 c"),
        ("3 rows", "4 rows"),
        ("one", "one\ntwo"),
        ("at=... is", "at='word' is"),
        ("a 1.4e-06", "a 1.7e-06"),
    ):
        assert difference(expected, printed) is not None


@pytest.mark.framework(REFERENCE)
@pytest.mark.parametrize(
    "snippet",
    [
        "```python\n1 / 0\n```\n\n```text\nZeroDivision\n```\n",  # an error that is not shown
        "```python\nprint(1)\n```\n",  # printed, and not shown
        "```python\nprint(1)\n```\n\n```text\n2\n```\n",
        "```python\nx = 1\n```\n\n```text\n1\n```\n",  # shown, and not printed
        "```python\nx = 1\n```\n\n```text\nembgrad.errors.BatchError: ...\n```\n",  # an error that is not raised
        "```python\nimport warnings, embgrad\nwarnings.warn('w', embgrad.EmbgradWarning)\n```\n",  # a warning not shown
    ],
)
def test_a_page_that_prints_something_else_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, snippet: str) -> None:
    monkeypatch.setattr(pages_module, "DOCS", tmp_path)
    (tmp_path / "page.md").write_text(snippet, encoding="utf-8")
    error, message = (ZeroDivisionError, "division") if "1 / 0" in snippet else (AssertionError, r"page\.md, line 2")
    with pytest.raises(error, match=message):
        expect_as_said("page.md")
