"""Every error has a test that raises it; the list that says so is as the code and the tests are."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

from tests.raised.ledger import PAGE, page, read
from tests.raised.sites import ERRORS, ROOT, sites

KEYS = {site.key for site in sites()}
ANEW = "make the list anew, as python -m tests.raised says"


def test_every_error_has_a_test_that_raises_it() -> None:
    assert not KEYS - read().keys(), f"errors that no listed test raises: write one for each, and {ANEW}"


def test_no_error_is_listed_that_is_not_there() -> None:
    assert not read().keys() - KEYS, f"errors that are not there any more, or are worded otherwise now: {ANEW}"


def test_the_listed_tests_exist() -> None:
    missing = [row.test for row in read().values() if not _is_there(row.test)]
    assert not missing, f"tests that are not there any more: {ANEW}"


def test_the_page_is_that_of_the_list() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(read()), ANEW


@pytest.mark.parametrize("module", sorted({site.module for site in sites()}))
def test_a_message_has_words_of_its_own(module: str) -> None:
    """One that is all filled in would say nothing in the list; its parts are made elsewhere, and named there."""
    assert all(site.message for site in sites() if site.module == module)


def _is_there(test: str) -> bool:
    file, _, name = test.partition("::")
    return (ROOT / file).is_file() and name.partition("[")[0] in _tests_in(ROOT / file)


@functools.cache
def _tests_in(path: Path) -> set[str]:
    """The tests of a module as pytest names them; of a class that gathers checks, those of its bases are taken on trust."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}::{name}" for name in _checks()}
            found |= {f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return found


@functools.cache
def _checks() -> set[str]:
    """The names of the conformance suite's checks."""
    found = set()
    for path in (ROOT / "embgrad" / "testing").glob("c*.py"):
        found |= {
            node.name
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.FunctionDef)
        }
    return found


def test_all_classes_of_errors_are_looked_for() -> None:
    """One that derives from an error of the library's, defined anywhere in it, is among those that are listed."""
    defined = set()
    for path in [*(ROOT / "embgrad").rglob("*.py"), *(ROOT / "backends").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and any(
                ast.unparse(base).rpartition(".")[2] in ERRORS for base in node.bases
            ):
                defined.add(node.name)
    assert defined | {"EmbgradError"} == ERRORS
