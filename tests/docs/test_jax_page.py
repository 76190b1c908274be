"""The page that walks through the backend shows its code as it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1]
PAGE = (EXAMPLE.parents[1] / "backend.md").read_text(encoding="utf-8")
EXCERPTS = re.findall(r"^```py\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
SOURCES = [_.read_text(encoding="utf-8") for _ in [*EXAMPLE.glob("embgrad_jax/*.py"), *EXAMPLE.glob("tests/*.py")]]


def flush(code: str) -> str:
    """The lines without what they are set in by, and without empty ones."""
    return "\n".join(line.strip() for line in code.splitlines() if line.strip())


@pytest.mark.parametrize("excerpt", EXCERPTS, ids=lambda one: one.strip().splitlines()[0])
def test_each_excerpt_stands_in_the_example(excerpt: str) -> None:
    """Line for line."""
    assert any(f"\n{flush(excerpt)}\n" in f"\n{flush(source)}\n" for source in SOURCES)


def test_modules_that_are_named_are_there() -> None:
    """And none is left out of the table."""
    named = set(re.findall(r"^\| `(embgrad_jax/\w+\.py)`", PAGE, flags=re.MULTILINE))
    assert named == {path.relative_to(EXAMPLE).as_posix() for path in EXAMPLE.glob("embgrad_jax/*.py")}
    assert len(EXCERPTS) > 3
