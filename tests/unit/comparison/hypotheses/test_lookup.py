"""Other rows of a table, another table, and rows times a number are found by their values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from embgrad import TokenBatch
from embgrad.comparison.hypotheses.lookup import Rows
from embgrad.comparison.hypotheses.site import Explanation, Site
from embgrad.comparison.recording import Tensor
from embgrad.comparison.sites import Pair
from embgrad.comparison.weight_values import rounded
from tests.unit.comparison.hypotheses.modules import IDS, REAL, best, module_site

RANDOM = np.random.default_rng(0)
TABLE = RANDOM.normal(size=(12, 4)).astype(np.float32).astype(np.float64)
PLACES = np.tile(np.arange(5), (2, 1))
TYPES = np.array([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]])


def site(a: np.ndarray, b: np.ndarray, **further: Any) -> Site:
    return module_site(a, b, {}, **{"key": "table", "held_a": {"table.W": TABLE}, **further})


def explained(at: Site) -> Explanation:
    return best(at, Rows().explain(at))


A = TABLE[IDS]
#: The ids of a text that the batch does not have as its own, such as a decoder's.
FURTHER = np.array([[9, 4, 8, 1, 7], [2, 9, 5, 0, 0]])
ROWS = {
    "scaled": (A, A * 3.5, "scaled-lookup", "table is multiplied by 1 in a and 3.5 in b"),
    "doubled": (A, A * 2, "scaled-lookup", "table is multiplied by 1 in a and 2 in b"),
    "shifted ids": (A, TABLE[IDS + 1], "other-ids", "the rows of table are the ids in a and the ids + 1 in b"),
    "other ids": (A, TABLE[(5 * IDS) % 12], "other-ids", "the rows of table are the ids in a and others in b"),
    "ids of two steps": (A, TABLE[IDS + (IDS > 3)], "other-ids", "the rows of table are the ids in a and others in b"),
    "shifted ids in a": (TABLE[IDS + 2], A, "other-ids", "the rows of table are the ids + 2 in a and the ids in b"),
    "ids before": (TABLE[IDS + 1], TABLE[IDS], "other-ids", "the rows of table are the ids + 1 in a and the ids in b"),
    "earlier ids": (A, TABLE[IDS - 1], "other-ids", "the rows of table are the ids in a and the ids - 1 in b"),
    "the id before": (A, TABLE[np.array([[0, 3, 1, 4, 2], [0, 6, 2, 7, 0]])], "other-ids",
        "the rows of table are the ids in a and those of the position before in b"),
    "the ids from the end": (A, TABLE[np.array([[5, 2, 4, 1, 3], [7, 2, 6, 0, 0]])], "other-ids",
        "the rows of table are the ids in a and those of the text from its end in b"),
    "ids of the position before": (TABLE[FURTHER], TABLE[np.roll(FURTHER, 1, 1)], "other-ids",
        "the rows of table are a's own in a and those of the position before in b"),
    "ids of the position behind": (TABLE[FURTHER], TABLE[np.roll(FURTHER, -1, 1)], "other-ids",
        "the rows of table are a's own in a and those of the position behind in b"),
    "others of further ids": (TABLE[FURTHER], TABLE[(5 * FURTHER + 1) % 12], "other-ids",
        "the rows of table are a's own in a and others in b"),
    "later positions": (TABLE[PLACES], TABLE[PLACES + 2], "position-ids-offset",
        "the rows of table start at 0 in a and 2 in b"),
    "earlier positions": (TABLE[PLACES + 3], TABLE[PLACES + 1], "position-ids-offset",
        "the rows of table start at 3 in a and 1 in b"),
    "other positions": (TABLE[PLACES], TABLE[PLACES[:, ::-1]], "position-ids-offset",
        "the rows of table are those of other positions in b"),
}  # fmt: skip


@pytest.mark.parametrize("turned", [False, True])
def test_types_that_either_model_ignores_are_named_by_the_batch(turned: bool) -> None:
    types = np.array([[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]])
    sides = [TABLE[types], TABLE[0 * types]]
    at = site(*sides[::-1] if turned else sides)
    batch = TokenBatch(IDS, REAL.astype(int), types)
    at = replace(at, recordings=(replace(at.recordings[0], batch=batch), at.recordings[1]))
    found = explained(at)
    first, second, values = ("a", "b", ("0", "the types")) if turned else ("b", "a", ("the types", "0"))
    text = f"{first} looks up row 0 of table everywhere, where {second} takes the batch's types"
    assert (found.cause, found.text, found.values) == ("types-ignored", text, values)


@pytest.mark.parametrize(("a", "b", "cause", "text"), ROWS.values(), ids=ROWS)
def test_other_rows_are_named(a: np.ndarray, b: np.ndarray, cause: str, text: str) -> None:
    found = explained(site(a, b))
    assert (found.cause, found.text) == (cause, text)


def test_types_that_are_ignored_are_named() -> None:
    at = site(TABLE[TYPES], TABLE[0 * TYPES], roles={"table": ["type"]})
    found = explained(at)
    assert found.cause == "types-ignored"
    assert found.text == "b looks up row 0 of table everywhere, where a takes the batch's types"
    assert explained(site(TABLE[TYPES], TABLE[0 * TYPES])).cause == "position-ids-offset"
    other = site(TABLE[TYPES], TABLE[0 * TYPES + 1], roles={"table": ["type"]})
    assert explained(other).cause != "types-ignored"


MOVED = {
    "seven of eight": ([0, 2, 3, 4, 5, 6, 7, 1], "other-ids"),
    "six of eight": ([0, 2, 3, 4, 5, 6, 1, 7], "permuted-weight"),
}


@pytest.mark.parametrize(("rows", "cause"), MOVED.values(), ids=MOVED)
def test_ids_are_moved_where_most_rows_are_by_one_number(rows: list[int], cause: str) -> None:
    order = [*rows, *range(8, 12)]
    at = site(A, TABLE[order][IDS], held_b={"table.W": TABLE[order]})
    found = explained(at)
    assert found.cause == cause
    if cause == "permuted-weight":
        assert found.text == "b has the rows of table.W in another order"


def test_rows_of_zeros_are_left_out_where_b_has_nothing() -> None:
    for roles, cause in (("type", "types-ignored"), ("position", "missing-positions"), ("word", "scaled-lookup")):
        found = explained(site(A, 0 * A, roles={"table": [roles]}))
        assert (found.cause, found.values) == (cause, ("1", "0"))
    zeros = module_site(0 * A, A, {}, key="table", held_a={"table.W": 0 * TABLE})
    assert "table is multiplied by 1 in a and 0 in b" in [item.text for item in Rows().explain(zeros)]


def changed(row: int, values: Any) -> np.ndarray:
    table = TABLE.copy()
    table[row] = values
    return table


TABLES = {
    "a row of zeros": (changed(2, 0), "padding-row", "b has zeros in row 2 of table.W"),
    "another row": (changed(2, [1, 2, 3, 4]), "padding-row", "b has other values in row 2 of table.W"),
    "rounded": (rounded(TABLE, "float16").astype(np.float64), "half-weights", "b has table.W rounded to float16"),
    "another table": (RANDOM.normal(size=(12, 4)), "different-table", "b has other rows in table.W"),
}


@pytest.mark.parametrize(("table", "cause", "text"), TABLES.values(), ids=TABLES)
def test_another_table_is_named(table: np.ndarray, cause: str, text: str) -> None:
    found = explained(site(A, table[IDS], held_b={"table.W": table}))
    assert (found.cause, found.text) == (cause, text)


@pytest.mark.parametrize("size", [1e-6, 1.0])
def test_a_table_may_be_stored_as_its_transpose(size: float) -> None:
    table, own = size * changed(2, 0), size * TABLE
    found = explained(site(own[IDS], table[IDS], held_a={"table.W": own}, held_b={"table.W": table.T.copy()}))
    assert found.text == "b has zeros in row 2 of table.W"


def test_two_rows_are_another_table() -> None:
    table = changed(2, 0)
    table[4] = 1
    assert explained(site(A, table[IDS], held_b={"table.W": table})).cause == "different-table"


def test_a_table_without_a_partner_is_not_explained() -> None:
    other = RANDOM.normal(size=(12, 4))
    at = site(A, other[IDS], held_b={"words.W": RANDOM.normal(size=(3, 4))})
    assert all(at.off(item.predicted) > 0.1 for item in Rows().explain(at))


@pytest.mark.parametrize("turned", [False, True])
def test_positions_that_count_padding_are_named(turned: bool) -> None:
    real = REAL[:, ::-1]  # the second text follows two positions of padding
    own = np.maximum(real.cumsum(1) - 1, 0) + 2
    sides = [TABLE[own], TABLE[PLACES + 2]]
    found = explained(replace(site(*sides[::-1] if turned else sides), real=real))
    first, second = "ab" if turned else "ba"
    assert found.cause == "position-ids-offset"
    assert found.text == f"the positions of table count the padding before a text in {first}, and not in {second}"
    assert found.values == (("with padding", "as they are") if turned else ("as they are", "with padding"))
    other = explained(replace(site(TABLE[own], TABLE[own + np.array([[0], [3]])]), real=real))
    assert other.text == "the rows of table are those of other positions in b"


@pytest.mark.parametrize("length", [3, 5])
def test_rows_of_further_ids_that_a_module_is_given_are_named(length: int) -> None:
    """Such as those of a decoder, whose texts have another length than the batch's."""
    ids = FURTHER[:, :length]
    a, b = TABLE[ids], TABLE[np.roll(ids, 1, 1)]
    lookup = Tensor("table#1", "table", None, 1, (), 0.0, a, ids=ids)
    real = np.ones(ids.shape, bool)
    given = {"key": "norm:input#0", "held_a": {"table.W": TABLE}, "others": [lookup], "real": real}
    found = explained(module_site(a, b, {}, **given))
    assert found.cause == "other-ids"
    assert found.text == "the rows of table#1 are a's own in a and those of the position before in b"
    assert not Rows().explain(module_site(a, b, {"table#1": a}, **given)), (
        "a lookup of both models has a site of its own"
    )
    assert Rows().explain(module_site(a, b, {"table#1": a}, alone=["table#1"], **given))
    assert not Rows().explain(module_site(a + 1, b, {}, **given))


def test_padding_does_not_count() -> None:
    a, b = A.copy(), TABLE[IDS + 1]
    a[~REAL], b[~REAL] = 99.0, -99.0
    at = site(a, b)
    (found,) = (item for item in Rows().explain(at) if at.off(item.predicted) < 1e-9)
    assert found.text == "the rows of table are the ids in a and the ids + 1 in b"


@pytest.mark.parametrize("a", [A + 1, np.tanh(A), A[..., ::-1]])
def test_what_is_no_row_is_not_explained(a: np.ndarray) -> None:
    assert not Rows().explain(site(a, TABLE[IDS + 1]))


def test_inputs_and_other_modules_and_shapes_are_no_lookups() -> None:
    b = TABLE[IDS + 1]
    assert not Rows().explain(site(A, b, key="table:input#0"))
    assert not Rows().explain(site(A, b, held_a={"other.W": TABLE}))
    assert not Rows().explain(site(A, b, held_a={"table.W": TABLE.reshape(12, 2, 2)}))
    assert not Rows().explain(site(A, b, held_a={"table.W": np.hstack([TABLE, TABLE])}))
    short = module_site(
        A[:, :3], b[:, :3], {}, key="table", held_a={"table.W": TABLE}, pair=Pair("table", "table", "table")
    )
    assert not Rows().explain(short)


def test_the_output_of_the_module_that_holds_the_table_is_a_lookup_as_well() -> None:
    assert explained(site(A, TABLE[IDS + 1], key="table:output#0")).cause == "other-ids"


def test_other_types_are_not_ignored_types() -> None:
    at = site(TABLE[TYPES], TABLE[1 - TYPES], roles={"table": ["type"]})
    assert explained(at).cause == "other-ids"
    assert explained(at).values == ("0 and 1", "1 for 0 and 0 for 1")


def test_each_row_must_be_in_the_table() -> None:
    a = A.copy()
    a[0, 1] *= 1 + 2e-4
    assert not Rows().explain(site(a, TABLE[IDS + 1]))
