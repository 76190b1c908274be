"""The heads of files, classes and functions are in the imperative or are noun phrases, as in NumPy's documentation."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import embgrad

ROOT = Path(embgrad.__file__).parent
BACKENDS = ROOT.parent / "backends"
FILES = sorted([*ROOT.rglob("*.py"), *BACKENDS.rglob("*.py")])

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


@pytest.mark.skipif(not BACKENDS.is_dir(), reason="the sources of the backends are not beside the package")
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT.parent).as_posix())
def test_no_head_is_in_the_third_person(file: Path) -> None:
    wrong = [f"{name}: {head}" for name, head in heads(file) if THIRD_PERSON.match(head)]
    assert wrong == []
