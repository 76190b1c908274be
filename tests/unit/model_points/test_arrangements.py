"""How indices hold the ids, by brute force over small batches; which arrays users see of them; and the record's details."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.model_points.axes import Arrangement, of_lookup
from embgrad.model_points.layers import Calls, ListItem, _list_item
from embgrad.model_points.points import (
    Layout,
    Lookup,
    ModuleCall,
    Point,
    could_be_positions,
    layout_is_open,
    reads_both_ways,
)
from embgrad.model_points.recorder import PassRecorder
from tests.unit.refusals import refused
from tests.unit.tracing import Trace, encoder_layer, stack

IDS = np.array([[7, 9, 8, 5, 2], [3, 11, 4, 6, 0]])
BATCH = embgrad.TokenBatch(IDS)
SHAPES = [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (2, 3), (3, 2)]


def small_batches(shape: tuple[int, int], most: int) -> Any:
    return (np.array(numbers).reshape(shape) for numbers in itertools.product(range(most), repeat=shape[0] * shape[1]))


@pytest.mark.parametrize("shape", SHAPES)
def test_which_ids_read_the_same_both_ways(shape: tuple[int, int]) -> None:
    lengths = [np.array(row) for row in itertools.product(range(1, shape[1] + 1), repeat=shape[0])]
    reals = [np.arange(shape[1]) < row[:, None] for row in lengths]
    for ids, real in itertools.product(small_batches(shape, 2), reals):
        rows = [row[own] for row, own in zip(ids, real, strict=True)]
        expected = (
            (shape[0] > 1 and (ids == ids[::-1]).all())
            or (shape[1] > 1 and (ids == ids[:, ::-1]).all())
            or (max(map(len, rows)) > 1 and all((row == row[::-1]).all() for row in rows))
        )
        assert reads_both_ways(ids, real) == expected, (ids, real)


@pytest.mark.parametrize("shape", SHAPES)
def test_which_ids_leave_open_what_their_axes_are(shape: tuple[int, int]) -> None:
    for ids in small_batches(shape, 2):
        is_symmetric = np.array_equal(ids.ravel(), ids.T.ravel())
        for indices in (ids.ravel(), ids, ids.T.copy()):
            is_decided = 1 in shape or (shape[0] != shape[1] and indices.ndim == 2)
            assert layout_is_open(indices, ids) == (is_symmetric and not is_decided), (indices, ids)
        assert not layout_is_open(ids[:1, :0], ids)


@pytest.mark.parametrize("shape", SHAPES)
def test_which_ids_could_be_positions(shape: tuple[int, int]) -> None:
    for ids in small_batches(shape, 3):
        assert could_be_positions(ids) == np.isin(np.diff(ids, axis=1), [0, 1]).all()
    first, last = np.full((1, 4), 4 + 7), np.full((1, 4), 4 + 8)
    assert could_be_positions(first)
    assert not could_be_positions(last)
    assert not could_be_positions(np.array([[10, 11, 12]]))


LAYOUTS = {
    "as the ids": Layout((2, 3), transposed=False),
    "transposed": Layout((2, 3), transposed=True),
    "gathered": Layout((2, 3), transposed=False, gather=np.array([[4, 0, 2], [1, -1, 3]])),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_native_axes_are_the_inverse_of_the_users(name: str) -> None:
    layout = LAYOUTS[name]
    native = {"as the ids": (2, 3, 4), "transposed": (3, 2, 4), "gathered": (5, 4)}[name]
    tensor = np.arange(1.0, np.prod(native) + 1).reshape(native)
    arrangement = Arrangement(native, (2, 3, 4), np.zeros((2, 3), int), is_batch=True, layout=layout)
    seen = arrangement.to_user_axes(tensor)
    assert seen.shape == (2, 3, 4)
    np.testing.assert_array_equal(arrangement.to_native_axes(seen), tensor)
    assert arrangement.is_whole == (name != "gathered")
    if name == "gathered":
        np.testing.assert_array_equal(seen[1], [tensor[1], np.zeros(4), tensor[3]])
        kept = arrangement.to_native_axes(seen[:, :, :] * 0, np.concatenate([tensor, tensor]).reshape(10, 4)[:5])
        np.testing.assert_array_equal(kept, tensor * 0)
    for count in (2, 4):
        batch = embgrad.TokenBatch(np.ones((count, 3), int))
        more = arrangement.for_batch(2, batch)
        assert (more is None) == (name == "gathered")
        if more is not None:
            assert more.native == ((count, 3, 4) if name == "as the ids" else (3, count, 4))
            assert more.shape == (count, 3, 4)
            assert more.is_batch
            assert arrangement.is_like(more) == (count == 2)
    assert arrangement != LAYOUTS
    assert layout == Layout(layout.shape, layout.transposed, None if layout.gather is None else layout.gather.copy())


def lookup_of(indices: Any, **more: Any) -> Lookup:
    return Lookup(path="places", occurrence=0, indices=np.asarray(indices), rows=30, dim=4, **{"layout": None, **more})


@pytest.mark.parametrize(
    ("indices", "native", "shared", "transposed"),
    [
        (np.arange(5), (5, 4), True, None),
        (np.arange(5)[None], (1, 5, 4), True, None),
        (np.arange(10).reshape(2, 5), (2, 5, 4), False, None),
        (np.arange(10).reshape(5, 2), (5, 2, 4), False, True),
        (np.arange(10), (10, 4), False, False),
    ],
)
def test_users_see_a_role_with_an_entry_for_each_example_and_position(
    indices: np.ndarray, native: tuple[int, ...], shared: bool, transposed: bool | None
) -> None:
    arrangement = of_lookup("position", lookup_of(indices), BATCH, None, by_role=True)
    assert (arrangement.native, arrangement.shape, arrangement.shared) == (native, (2, 5, 4), shared)
    assert arrangement.is_batch
    assert (None if arrangement.layout is None else arrangement.layout.transposed) == transposed
    by_example = indices.T if transposed else np.broadcast_to(indices.reshape(-1, 5), (2, 5))
    np.testing.assert_array_equal(arrangement.ids, by_example)
    tensor = np.arange(np.prod(native)).reshape(native)
    np.testing.assert_array_equal(
        arrangement.to_user_axes(tensor)[1, 3],
        tensor.swapaxes(0, 1)[1, 3] if transposed else tensor.reshape(-1, 5, 4)[-1, 3],
    )


def test_what_a_point_prints_is_short() -> None:
    (point,) = [point for point in looked_up(IDS).points() if point.roles]
    assert repr(point).startswith("Point(")
    assert "Lookup(" not in repr(point)
    assert "listed" not in repr(point)
    assert isinstance(point, Point)


def looked_up(
    *indices: np.ndarray, names: Any = None, batch: Any = BATCH, dims: Any = (4, 4, 4), rows: int = 30
) -> Any:
    watch = PassRecorder(batch, names)
    for number, own in enumerate(indices):
        watch.see(f"table{number}", own, rows, dims[number])
        watch.record_output(np.zeros(1))
    return watch


def test_ids_in_another_order_are_an_open_layout_until_the_ids_themselves_are_looked_up() -> None:
    watch = looked_up(IDS[:, ::-1].copy())
    (layout,) = [lookup.layout for lookup in watch.lookups]
    assert layout is not None
    assert not layout.determined
    assert not layout.is_in_order
    watch.see("other", IDS, 30, 4)
    assert [lookup.layout is None for lookup in watch.lookups] == [True, False]
    assert watch.lookups[1].layout.determined
    watch.see("third", IDS[:, ::-1].copy(), 30, 4)
    assert watch.lookups[2].layout is None


def test_two_lookups_of_the_ids_are_ambiguous_and_positions_beside_small_ids_are_no_rivals() -> None:
    with pytest.raises(embgrad.errors.AmbiguousPointError, match="'word' fits 2 lookups: word#0 = table0#0"):
        looked_up(IDS, IDS, names=["word"]).resolve()
    counting = embgrad.TokenBatch([[0, 0, 1, 2]])
    assert looked_up(counting.ids, np.arange(3), names=["word"], batch=counting, dims=(2, 4)).resolve() == {
        "word": "table0#0"
    }


def test_the_table_with_the_most_indices_is_named_where_none_is_word() -> None:
    with refused(
        embgrad.errors.PointNotReachedError, "name a point with at=...: 'table1' for the rows, or 'table1:output' where"
    ):
        looked_up(IDS[:, :3] + 1, IDS + 1, IDS[:1] + 1, names=["word"]).resolve()
    unnamed = PassRecorder(BATCH, ["word"])
    unnamed.see("lookup", IDS + 1, 30, 4)
    with pytest.raises(embgrad.errors.PointNotReachedError, match=r"or name a point with at=\.\.\."):
        unnamed.resolve()


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.float32])
@pytest.mark.parametrize("size", [4, 100])
def test_indices_of_any_dtype_reach_from_the_first_row_to_the_last(dtype: Any, size: int) -> None:
    inside = np.resize(np.array([0, 29], dtype), size)
    assert len(looked_up(inside).lookups) == 1
    with pytest.raises(embgrad.errors.BatchError, match="outside the table"):
        looked_up(np.resize(np.array([0, 30], dtype), size))


def test_a_name_with_a_number_of_keras_is_no_item_of_a_list() -> None:
    assert _list_item("model/dense_3", "Dense") is None
    assert _list_item("layer_normalization_2", "LayerNormalization") is None
    assert _list_item("model/dense_3", "Block") == ListItem("model/dense", 3)
    assert _list_item("dense.3", "Dense") == ListItem("dense", 3)
    assert _list_item("dense", "Dense") is None


@pytest.mark.parametrize(
    ("paths", "items"),
    [
        ("m/layer_0_1 m/layer_1_1", [("m/layer_#_1", 0), ("m/layer_#_1", 1)]),
        ("m/layer_0_12 m/layer_1_12", [("m/layer_#_12", 0), ("m/layer_#_12", 1)]),
        ("m/layer_0_1 m/layer_0_2", [("m/layer_0", 1), ("m/layer_0", 2)]),
        ("m/layer_0_1 m/layer_1_2", [("m/layer_0", 1), ("m/layer_1", 2)]),
        ("m/layer_0_1 other", [("m/layer_0", 1), None]),
        ("layer_0.1 layer_1.1", [("layer_0", 1), ("layer_1", 1)]),
    ],
)
def test_a_list_that_tensorflow_traces_again_is_one_list(paths: str, items: list[tuple[str, int] | None]) -> None:
    assert Calls((2, 3), [ModuleCall(path, 0, "Block", None) for path in paths.split()]).items == items


def layers_of(trace: Trace) -> list[str]:
    return [point.path for point in trace.points if any(role.startswith("layer.") for role in point.roles)]


def test_blocks_of_another_kind_that_continue_the_layers_are_not_layers() -> None:
    trace = Trace(BATCH)
    stack(trace, "heads", stack(trace, "layers", trace.table("word", IDS), 3), 2, "Head")
    assert layers_of(trace) == ["layers.0", "layers.1", "layers.2"]
    same = Trace(BATCH)
    stack(same, "more", stack(same, "layers", same.table("word", IDS), 3), 2)
    assert len(layers_of(same)) == 5


def test_blocks_of_the_layers_kind_at_a_single_position_do_not_make_them_parts() -> None:
    trace = Trace(BATCH)
    stack(trace, "layers", trace.table("word", IDS), 2)
    stack(trace, "top", trace.hidden(2, 1, 8), 2)
    assert layers_of(trace) == ["layers.0", "layers.1"]
    for count, layers in ((1, ["layers.0", "layers.1"]), (2, [])):
        inside = Trace(BATCH)
        stack(inside, "layers", inside.table("word", IDS), 2)
        top = inside.hidden(2, 3, 8)
        inside.module("top", "Top", lambda x, inside=inside, count=count: stack(inside, "top.blocks", x, count), top)
        assert layers_of(inside) == layers
    fewer = Trace(BATCH)
    stack(fewer, "layers", fewer.table("word", IDS), 2)
    stack(fewer, "top", fewer.hidden(2, 3, 8), 2)
    assert layers_of(fewer) == []


def test_a_single_layer_is_one_and_one_that_is_called_twice_is_none() -> None:
    trace = Trace(BATCH)
    x = encoder_layer(trace, "layers.0", trace.table("word", IDS))
    assert layers_of(trace) == ["layers.0"]
    encoder_layer(trace, "layers.0", trace.hidden(*x.shape))
    assert layers_of(trace) == []


def test_a_module_that_looks_up_in_the_table_of_another_is_a_further_name_of_the_lookup() -> None:
    trace = Trace(BATCH)
    trace.module("encoder.embed", "Embedding", lambda _: trace.lookup("shared", IDS), None, also=("alias",))
    assert trace.points[0].also == ("encoder.embed", "alias")
    other = Trace(BATCH)
    other.module("encoder.embed", "Scaled", lambda _: other.lookup("shared", IDS), None)
    assert other.points[0].also == ()


def test_flat_positions_begin_alike_whatever_the_lengths() -> None:
    trace = Trace(embgrad.TokenBatch(IDS, [[1, 0, 0, 0, 0], [1, 1, 1, 1, 1]]))
    for path, indices in (("word", IDS), ("place", np.array([2, 1, 1, 1, 1, 2, 3, 4, 5, 6]))):
        trace.table(path, indices)
    assert trace.roles["position"] == "place#0"


def test_three_lists_of_blocks_that_are_no_layers_are_named() -> None:
    from embgrad.model_points.names import point_of

    trace = Trace(BATCH)
    trace.table("word", IDS)
    for number in range(2):
        for part in ("attentions", "ffns", "mixers", "others"):
            encoder_layer(trace, f"{part}.{number}", trace.hidden(), part)
    message = "'attentions.0' to 'attentions.1', 'ffns.0' to 'ffns.1', 'mixers.0' to 'mixers.1', but these"
    with refused(embgrad.errors.UnknownPointError, message):
        point_of("layer.0", trace.points, [], BATCH)


@pytest.mark.parametrize(("positions", "native"), [(2, (2, 3, 5, 4)), (3, (2, 3, 4, 5))])
def test_positions_behind_other_axes_become_the_second_axis(positions: int, native: tuple[int, ...]) -> None:
    arrangement = Arrangement(native, (2, 5, 3, 4), IDS, is_batch=True, positions=positions)
    tensor = np.random.default_rng(0).normal(size=native)
    seen = arrangement.to_user_axes(tensor)
    assert seen.shape == arrangement.shape
    np.testing.assert_array_equal(seen[1, 4], np.take(tensor[1], 4, positions - 1))
    np.testing.assert_array_equal(arrangement.to_native_axes(seen), tensor)


@pytest.mark.parametrize(("kind", "hidden"), [("Block", [0, 1]), ("TFOpLambda", []), ("SlicingOpLambda", [])])
def test_operations_of_a_functional_model_are_no_layers(kind: str, hidden: list[int]) -> None:
    shapes = {"source_shape": (*IDS.shape, 4), "token_shape": (*IDS.shape, 4)}
    calls = [ModuleCall(f"add_{n}", 0, kind, None, source=n, token=n + 1, **shapes) for n in range(2)]  # type: ignore[arg-type]
    assert Calls(IDS.shape, calls).hidden == hidden  # type: ignore[arg-type]
