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


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_no_head_is_a_riddle(file: Path) -> None:
    wrong = [
        f"{name}: {head}" for name, head in heads(file) if re.match(r"(What|Which|Whether|How|Where|That)\b", head)
    ]
    assert wrong == []


#: Participles that do not end in -ed.
IRREGULAR = re.compile(
    "bent|bound|broken|built|chosen|drawn|found|given|gone|held|hidden|hung|kept|known|laid|left|lost|made|meant|met|said|seen|sent|"
    "shown|stood|sworn|taken|told|worn|written"
)
#: Words of these forms that begin the names of functions as verbs.
VERBS = frozenset(["embed", "exceed", "feed", "need", "proceed", "seed"])
#: What follows a participle without a noun.
FOLLOWING = re.compile("again|alone|apart|as|at|back|before|by|for|from|in|into|natively|of|on|out|to|together|up|with")
#: A public name in the field's own sense: a pass that is perturbed, as a context manager.
PUBLIC = frozenset(["perturbed"])


def functions(body: list[ast.stmt]) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions and methods of a file; those inside functions are named like variables."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from functions(node.body)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def is_participle(word: str) -> bool:
    return IRREGULAR.fullmatch(word) is not None or (word.endswith("ed") and len(word) > 3 and word not in VERBS)


def is_named_like_a_value(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a function's name is a participle without a noun, such as `checked`, and it is no property."""
    first, *others = function.name.strip("_").split("_")
    is_property = any("property" in ast.dump(decorator) for decorator in function.decorator_list)
    return (
        is_participle(first)
        and all(map(FOLLOWING.fullmatch, others))
        and not is_property
        and function.name not in PUBLIC
    )


@pytest.mark.parametrize(
    "file",
    [file for file in FILES if "comparison" not in file.parts],
    ids=lambda file: file.relative_to(ROOT).as_posix(),
)
def test_functions_are_named_by_verbs(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    assert [function.name for function in functions(tree.body) if is_named_like_a_value(function)] == []


@pytest.mark.parametrize(
    ("code", "wrong"),
    [
        ("def checked(): ...", True),
        ("def _looked_up(): ...", True),
        ("class A:\n    def held_by(self): ...", True),
        ("class A:\n    @property\n    def held(self): ...", False),
        ("def check(): ...", False),
        ("def need(): ...", False),
        ("def masked_rows(): ...", False),
        ("def f():\n    def called(): ...", False),
    ],
)
def test_the_test_sees_participles(code: str, wrong: bool) -> None:
    assert any(map(is_named_like_a_value, functions(ast.parse(code).body))) is wrong
