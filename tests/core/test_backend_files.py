"""The backends' source: no module imports itself through others, and no more private names of a framework come in."""

from __future__ import annotations

import pytest

from tests.core.backend_files import circles, imports_of, private_names

#: How many private names of other packages each backend uses. A number here only falls.
MOST_PRIVATE = {"embgrad_torch": 59, "embgrad_tensorflow": 78, "embgrad_gluon": 56}


@pytest.mark.parametrize("backend", MOST_PRIVATE)
def test_no_import_leads_back(backend: str) -> None:
    assert circles(imports_of(backend)) == []


@pytest.mark.parametrize("backend", MOST_PRIVATE)
def test_private_names_do_not_grow(backend: str) -> None:
    found = private_names(backend)
    assert len(found) <= MOST_PRIVATE[backend], sorted(found)


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}) == ["a", "b", "c"]
