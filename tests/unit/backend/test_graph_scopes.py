"""Values that cross the borders of a saved graph's scopes: which version each user is given, and what a watch is told."""

from __future__ import annotations

from typing import Any

import numpy as np

import embgrad
from embgrad.backend.graph_scopes import Crossings, Scope, entering, leaving, users_of
from embgrad.forward.recorder import PassRecorder

#: Node 0 is outside; 1 and 2 are in "a", of which 2 is in "a/b"; 3 takes what all give.
INPUTS = [[], [(0, 0)], [(1, 0), (0, 0)], [(0, 0), (1, 0), (2, 0)]]
BATCH = embgrad.TokenBatch([[1]])


def scopes() -> list[Scope]:
    users = users_of(INPUTS, [(3, 0)])
    always = lambda entry: True  # noqa: E731
    found = []
    for path, nodes in (("a", [1, 2]), ("a/b", [2])):
        leaves = leaving(nodes, users, always)
        assert leaves is not None
        found.append(Scope(path, path, frozenset(nodes), entering(nodes, INPUTS, always), leaves))
    return found


def test_what_enters_and_leaves() -> None:
    outer, inner = scopes()
    assert (outer.entering, outer.leaving) == ((0, 0), (2, 0))
    assert (inner.entering, inner.leaving) == ((1, 0), (2, 0))


def passing(names: list[str]) -> tuple[Crossings, PassRecorder]:
    watch = PassRecorder(BATCH, names)
    return Crossings(watch, lambda key, value: value + 10, scopes()), watch


def test_what_enters_is_replaced_for_the_scope_alone() -> None:
    crossings, _ = passing(["a:input#0"])
    versions = crossings.versions((0, 0), np.zeros(1))
    given = {user: versions[crossings.version((0, 0), user)].item() for user in (1, 2, 3)}
    assert given == {1: 10, 2: 10, 3: 0}


def test_what_leaves_is_replaced_for_all_outside() -> None:
    crossings, watch = passing(["a:output#0"])
    crossings.versions((0, 0), np.zeros(1))
    versions = crossings.versions((2, 0), np.ones(1))
    assert versions[crossings.version((2, 0), 3)].item() == 11
    assert versions[crossings.version((2, 0), 1)].item() == 1
    assert watch.resolve() == {"a:output#0": "a:output#0"}


def test_where_all_is_recorded_each_scope_is_told_around_those_inside() -> None:
    watch = PassRecorder(BATCH, None)
    crossings = Crossings(watch, lambda key, value: value, scopes())
    tensors: list[Any] = [np.zeros(1) + number for number in range(4)]
    for number, tensor in enumerate(tensors):
        assert all(version is tensor for version in crossings.versions((number, 0), tensor))
    crossings.report_calls()
    assert [(call.path, call.parent) for call in watch.calls] == [("a", None), ("a/b", 0)]
