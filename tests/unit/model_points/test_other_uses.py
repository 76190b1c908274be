"""Uses of the ids that are no lookup: which of them keep another lookup from being `word`, and what the messages say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.model_points.names import point_of
from embgrad.model_points.recorder import PassRecorder
from tests.unit.refusals import refused

IDS = np.array([[3, 5, 8, 1], [2, 2, 7, 1]])
BATCH = embgrad.TokenBatch(IDS)

#: Uses beside a lookup in a table of 2 numbers a row: the shape and dtype of the array, options, the message.
RIVALS: dict[str, tuple[tuple[int, ...], str, dict[str, Any], str]] = {
    "whole numbers": ((10, 4), "int8", {},
        "look up rows of 'other', of shape (10, 4) and dtype int8, which is not float"),
    "columns": (
        (4, 10),
        "float32",
        {"axis": 1},
        "entries along axis 1 of 'other', of shape (4, 10) and dtype float32, where embgrad expects rows, along axis 0 (op)",
    ),
    "columns from the end": ((4, 10), "float32", {"axis": -1}, "entries along axis 1 of 'other'"),
    "three axes": ((10, 2, 2), "float32", {},
        ", of shape (10, 2, 2) and dtype float32, where embgrad expects rows of a matrix (op)"),
    "half numbers": ((10, 2, 1), "bfloat16", {}, "look up entries of 'other'"),
    "a product": ((10, 4), "float32", {"way": "product"},
        "one-hot rows of a product (op) with 'other', of shape (10, 4)"),
    "a function": ((10, 4), "float32", {"way": "function"}, "they are used inside op with 'other', of shape (10, 4)"),
}  # fmt: skip

#: Uses that are none: features of the tokens in whole numbers, and one number for each id.
FEATURES: dict[str, tuple[tuple[int, ...], str, dict[str, Any]]] = {
    "a bias": ((10, 1), "float32", {"way": "product"}),
    "a remapping": ((10,), "int64", {}),
    "characters": ((10, 2), "int64", {}),
    "a mask": ((10, 2), "bool", {}),
}


def recorder(names: Any = ("word",), batch: Any = BATCH, dim: int = 2) -> PassRecorder:
    watch = PassRecorder(batch, names)
    watch.see("scale", batch.ids, 10, dim)
    return watch


@pytest.mark.parametrize("case", RIVALS)
@pytest.mark.parametrize("transposed", [False, True])
def test_a_lookup_beside_another_use_of_the_ids_is_not_word(case: str, transposed: bool) -> None:
    shape, dtype, options, message = RIVALS[case]
    watch = recorder()
    watch.see_other("op", "other", IDS.T if transposed else IDS.ravel(), shape, dtype, **options)
    with refused(
        embgrad.errors.PointNotReachedError,
        "the lookup scale#0 (10 rows × 2, indices of shape (2, 4)) may not be the model's embedding of the ids, which were ",
        message,
        "Pass a model that looks the ids up as rows of a floating-point matrix",
        "as in at='scale'",
    ):
        watch.resolve()


@pytest.mark.parametrize("case", FEATURES)
def test_features_of_the_tokens_are_no_lookup_of_the_ids(case: str) -> None:
    shape, dtype, options = FEATURES[case]
    watch = recorder()
    watch.see_other("op", "other", IDS, shape, dtype, **options)
    assert watch.resolve() == {"word": "scale#0"}


@pytest.mark.parametrize("indices", [IDS + 1, IDS[:1], IDS[:, ::-1]])
def test_other_indices_are_no_use_of_the_ids(indices: np.ndarray) -> None:
    watch = recorder()
    watch.see_other("op", "other", indices, (10, 4), "int8")
    assert watch.resolve() == {"word": "scale#0"}


def test_indices_may_be_repeated_for_each_entry_of_a_row() -> None:
    for indices in (np.repeat(IDS.reshape(-1, 1), 4, axis=1), np.repeat(IDS[None], 4, axis=0)):
        watch = recorder()
        watch.see_other("gather", "other", indices, (10, 4), "float32")
        with refused(
            embgrad.errors.PointNotReachedError, "look up entries of 'other', of shape (10, 4)", "rows of a matrix"
        ):
            watch.resolve()
    watch = recorder()
    watch.see_other("gather", "other", np.arange(32).reshape(8, 4), (10, 4), "float32")
    assert watch.resolve() == {"word": "scale#0"}


def test_a_table_of_positions_is_no_use_of_ids_that_could_be_positions() -> None:
    batch = embgrad.TokenBatch([[0, 1, 2, 3]])
    watch = recorder(batch=batch)
    watch.see_other("op", "positions", np.arange(4), (10, 2, 2), "float32")
    assert watch.resolve() == {"word": "scale#0"}
    watch.see_other("op", "other", np.arange(4), (10, 2, 2), "float32")
    with pytest.raises(embgrad.errors.PointNotReachedError, match="may not be the model's embedding"):
        watch.resolve()


def test_rows_looked_up_once_for_each_distinct_id() -> None:
    watch = recorder()
    watch.see("rows", np.unique(IDS), 10, 4)
    with refused(
        embgrad.errors.PointNotReachedError,
        "the rows of the ids in 'rows', of shape (10, 4), are looked up in another order or",
    ):
        watch.resolve()
    smaller = recorder(dim=4)
    smaller.see("rows", np.unique(IDS), 10, 4)
    assert smaller.resolve() == {"word": "scale#0"}


def test_uses_are_named_where_there_is_no_lookup() -> None:
    watch = PassRecorder(BATCH, ["word"])
    watch.see_other("op", "other", IDS, (10, 4), "int8")
    watch.see_other("op", "third", IDS, (4, 10), "float32", axis=1)
    with refused(
        embgrad.errors.PointNotReachedError,
        "made no lookup",
        "The hint. The ids were used otherwise: they look up rows of 'other'",
        "; they look up entries along axis 1 of 'third'",
    ):
        watch.resolve("The hint.")


def test_the_lookup_has_no_role_and_can_be_named() -> None:
    watch = recorder(None)
    watch.see_other("op", "other", IDS, (10, 4), "int8")
    points = watch.points()
    assert [(point.key, point.roles) for point in points] == [("scale#0", ())]
    with refused(embgrad.errors.PointNotReachedError, "the lookup scale#0", "look up rows of 'other'"):
        point_of("word", points, [], BATCH)
    assert point_of("scale", points, [], BATCH) == (points[0], False)
    named = recorder(("scale#0",))
    named.see_other("op", "other", IDS, (10, 4), "int8")
    assert named.resolve() == {"scale#0": "scale#0"}
