"""The heads of files, classes and functions are in the imperative or are noun phrases, as in NumPy's documentation."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FILES = sorted(file for folder in ("embgrad", "backends") for file in (ROOT / folder).rglob("*.py"))

#: A verb in the third person, by what follows it: an article, or another word that no noun in the plural stands before.
THIRD_PERSON = re.compile(
    r"([A-Z][a-z]*[^s]s) (a|an|the|its|it|what|which|whether|one|all|each|every|how|back|through)\b"
)


def heads(file: Path) -> Iterator[tuple[str, str]]:
    """Yield names with the first lines of their docstrings."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    kinds = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield getattr(node, "name", "the file"), text.partition("\n")[0]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_no_head_is_in_the_third_person(file: Path) -> None:
    wrong = [f"{name}: {head}" for name, head in heads(file) if THIRD_PERSON.match(head)]
    assert wrong == []
