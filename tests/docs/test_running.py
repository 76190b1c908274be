"""The runner of the pages fails where a page shows something else, and raises other errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs import pages, test_snippets

Write = Callable[[str], None]


@pytest.fixture
def write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Write:
    monkeypatch.setattr(pages, "DOCS", tmp_path)

    def put(text: str, name: str = "page.md") -> None:
        (tmp_path / name).write_text(text, encoding="utf-8")

    return put


def printed() -> list[str]:
    return [text for _, text in pages.run("page.md")]


def test_another_error_is_raised(write: Write) -> None:
    write("```python\n1 / 0\n```\n\n```text\nZeroDivision\n```\n")
    with pytest.raises(ZeroDivisionError):
        printed()


@pytest.mark.parametrize(
    "snippet",
    [
        "```python\nprint(1)\n```\n",  # printed, and not shown
        "```python\nprint(1)\n```\n\n```text\n2\n```\n",
        "```python\nx = 1\n```\n\n```text\n1\n```\n",  # shown, and not printed
        "```python\nx = 1\n```\n\n```text\nembgrad.errors.BatchError: ...\n```\n",  # an error that is not raised
        "```python\nimport warnings, embgrad\nwarnings.warn('w', embgrad.EmbgradWarning)\n```\n",  # a warning not shown
    ],
)
def test_a_page_that_prints_something_else_fails(write: Write, snippet: str) -> None:
    write(snippet)
    with pytest.raises(AssertionError, match=r"page\.md, line 2"):
        test_snippets.expect_as_said("page.md")
