"""The watch of a forward pass: what it keeps hold of, which lookup is `word`, and what indices it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.errors import BatchError, PointNotReachedError
from embgrad.model_points.recorder import PassRecorder
from tests.unit.model_points.test_layouts import arrangements
from tests.unit.refusals import refused

IDS = np.array([[1, 2, 3], [4, 5, 6]])
BATCH = embgrad.TokenBatch(IDS)
POSITIONS = np.arange(3)[None]


class Value:
    """A stand-in for a tensor."""


def run_modules(watch: PassRecorder, *calls: tuple[str, str]) -> list[tuple[str | None, str | None]]:
    """Call modules in a chain, and return the keys of their inputs and outputs."""
    value, keys = Value(), []
    for path, kind in calls:
        entered = watch.enter(path, kind, value, (2, 3, 4))
        value = Value()
        keys.append((entered, watch.leave(value, (2, 3, 4))))
    return keys


def test_nothing_looked_up() -> None:
    with refused(
        PointNotReachedError,
        "no lookup whose indices are the batch's ids, of shape (2, 3)",
        "seen: none",
        "at=... The hint.",
    ):
        PassRecorder(BATCH, ["word"]).resolve("The hint.")


def test_a_lookup_belongs_to_the_innermost_call_that_is_open() -> None:
    watch = PassRecorder(BATCH, None)
    watch.see("none", IDS, 10, 4)
    for path in ("outer", "inner"):
        watch.enter(path, "Block", None, ())
    watch.see("inner", IDS, 10, 4)
    watch.leave(None, ())
    watch.see("outer", IDS, 10, 4)
    watch.enter("broken", "Block", None, ())
    watch.exit_on_error()
    watch.see("after", IDS, 10, 4)
    assert [lookup.parent for lookup in watch.lookups] == [None, 1, 0, 0]


def test_other_indices_looked_up() -> None:
    watch = PassRecorder(BATCH, ["word"])
    watch.see("table", IDS + 1, 10, 4)
    with pytest.raises(PointNotReachedError, match=r"seen: table#0 \(10 rows.*changed ones, or name a point"):
        watch.resolve()


@pytest.mark.parametrize("arrange", range(7))
@pytest.mark.parametrize("wrong", [10, -1, 2**40])
def test_an_id_outside_the_table_is_named(arrange: int, wrong: int) -> None:
    ids = IDS.copy()
    ids[1, 2] = wrong
    batch = embgrad.TokenBatch(np.abs(ids)) if wrong > 0 else BATCH
    indices, _ = arrangements(ids)[arrange]
    if wrong < 0:
        with pytest.raises(BatchError, match=r"index -1.* is outside the table: .* 10 rows: expected 0 to 9"):
            PassRecorder(batch, ["word"]).see("table", indices, 10, 4)
        return
    expected = float(np.float32(wrong)) if indices.dtype.kind == "f" else wrong
    message = rf"id {expected} at example 1, position 2 is outside the table: .* 10 rows: expected 0 to 9"
    with pytest.raises(BatchError, match=message):
        PassRecorder(batch, ["word"]).see("table", indices, 10, 4)


def test_several_ids_outside_the_table_are_counted() -> None:
    message = r"id 4 at example 1, position 0 .*\(3 such in all\).* belongs to this"
    for names in (["word"], [], None):  # whoever asks, and whatever for
        with pytest.raises(BatchError, match=message):
            PassRecorder(BATCH, names).see("small", IDS, 4, 2)


def test_an_index_of_the_models_own_outside_the_table() -> None:
    message = r"index 2 \(at \(0, 2\) of indices of shape \(1, 3\)\).*'positions' has 2 rows.*longer than the model"
    with pytest.raises(BatchError, match=message):
        PassRecorder(BATCH, ["word"]).see("positions", POSITIONS, 2, 4)
    with pytest.raises(BatchError, match="index nan"):
        PassRecorder(BATCH, ["word"]).see("table", np.array([0.0, np.nan]), 2, 4)


def test_a_pass_with_another_number_of_calls_is_an_error() -> None:
    same = PassRecorder(BATCH, ("layer:output#0",), {"layer:": 2})
    run_modules(same, ("layer", "Layer"), ("layer", "Layer"))
    assert same.resolve() == {"layer:output#0": "layer:output#0"}
    other = PassRecorder(BATCH, ("layer:output#0",), {"layer:": 2})
    run_modules(other, ("layer", "Layer"))
    message = (
        r"the forward pass reached 'layer' 1 time\(s\), but an earlier pass reached it 2 time\(s\): expected a model that "
        "makes the same calls each time"
    )
    with pytest.raises(PointNotReachedError, match=message):
        other.resolve()


def test_a_pass_that_calls_modules_in_another_order_is_an_error() -> None:
    def resolved(*called: str, in_order: bool = True) -> dict[str, str]:
        watch = PassRecorder(BATCH, ("a:output#0",), {"a:": 1, "b:": 1}, order=["b", "a"])
        for path in called:
            if path == "a":
                run_modules(watch, ("a", "Layer"))
            else:
                watch.count(path, in_order=in_order)
        return watch.resolve()

    assert resolved("b", "a") == {"a:output#0": "a:output#0"}
    message = (
        "the forward pass called the model's modules in another order than an earlier pass: expected a model that makes"
    )
    with pytest.raises(PointNotReachedError, match=message):
        resolved("a", "b")
    assert resolved("a", "b", in_order=False), "the order of the calls is not known"


def test_a_pass_that_records_everything_need_not_reach_what_is_requested() -> None:
    watch = PassRecorder(BATCH, ("word", "a:output#0", "absent:output#0"), record=True)
    assert watch.see("table", IDS, 10, 4) == "table#0"
    rows, new = Value(), Value()
    watch.record_output(rows)
    watch.replace_tensor(rows, new)
    watch.enter("a", "Layer", new, (2, 3, 4))
    watch.leave(new, (2, 3, 4))
    assert watch.resolve() == {"table#0": "table#0", "a:output#0": "a:output#0"}
    assert watch.calls[0].source == watch.lookups[0].token, "what goes on in place of the rows is the same tensor"


def test_a_table_of_a_float_array_is_looked_up_by_whole_numbers() -> None:
    watch = PassRecorder(BATCH, ["word"])
    indices: Any = IDS.astype(np.float32)
    assert watch.see("table", indices, 10, 4) == "table#0"
    assert watch.lookups[0].indices.dtype == np.int64


def test_a_pass_that_broke_off_before_any_lookup_of_a_model_without_embeddings() -> None:
    batch = embgrad.TokenBatch([[1, 2]])
    failure = RuntimeError("of the framework's")
    message = "the model raised RuntimeError before any lookup, and none of its modules, 'Net', 'Linear', is an"
    with pytest.raises(PointNotReachedError, match=message) as caught:
        PassRecorder(batch, ("word",)).expect_some(["Net", "Linear", "Linear"], failure)
    assert caught.value.__cause__ is failure
    PassRecorder(batch, ("word",)).expect_some(["Net", "ScaledWordEmbedding"], failure)
    PassRecorder(batch, ("word",)).expect_some(["Net", "Linear"], BatchError("embgrad's own"))
    watch = PassRecorder(batch, ("word",))
    watch.see("table", np.array([[1, 2]]), 3, 4)
    watch.expect_some(["Net", "Linear"], failure)


def test_the_record_of_a_key_is_of_its_path_and_its_occurrence() -> None:
    watch = PassRecorder(BATCH, None)
    for path in ("table", "other", "table"):
        watch.see(path, IDS, 10, 4)
    run_modules(watch, ("a", "Layer"), ("b", "Layer"), ("a", "Layer"))
    keys = [record.key for record in watch.lookups] + [call.key("output") for call in watch.calls]
    assert keys == ["table#0", "other#0", "table#1", "a:output#0", "b:output#0", "a:output#1"]
    assert [watch.record_of(key) for key in keys] == [*watch.lookups, *watch.calls]
