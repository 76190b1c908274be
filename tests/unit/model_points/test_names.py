"""Which point a name means, and what is said where it means none or several."""

from __future__ import annotations

import re

import numpy as np
import pytest

import embgrad
from embgrad.errors import AmbiguousPointError, PointError, PointNotReachedError, UnknownPointError
from embgrad.model_points.names import _blocks_away, needs_added, needs_layers, point_of
from embgrad.model_points.points import Point
from tests.unit.refusals import refused
from tests.unit.tracing import Trace, Value, bert, encoder_layer, stack

IDS = np.array([[7, 9, 8, 5, 2], [3, 11, 4, 6, 0]])
BATCH = embgrad.TokenBatch(IDS)


def named(trace: Trace, name: str) -> tuple[Point, bool]:
    points = trace.points
    return point_of(name, points, [point for point in points if "word" in point.roles], trace.batch)


def simple(*paths: str) -> Trace:
    """Return a trace that looks up positions in `positions`, then the ids in each path."""
    trace = Trace(BATCH)
    trace.lookup("positions", np.arange(5)[None])
    for path in paths or ("table",):
        trace.lookup(path, IDS)
    return trace


@pytest.mark.parametrize(
    ("name", "key", "by_role"),
    [
        ("word", "embeddings.word_embeddings#0", True),
        ("word#0", "embeddings.word_embeddings#0", True),
        ("position", "embeddings.position_embeddings#0", True),
        ("type", "embeddings.token_type_embeddings#0", True),
        ("embeddings", "embeddings:output#0", True),
        ("layer.0", "encoder.layer.0:output#0", True),
        ("layer.0#0", "encoder.layer.0:output#0", True),
        ("layer.2", "encoder.layer.2:output#0", True),
        ("layer.-1", "encoder.layer.2:output#0", True),
        ("layer.-2", "encoder.layer.1:output#0", True),
        ("layer.-3", "encoder.layer.0:output#0", True),
        ("embeddings.word_embeddings", "embeddings.word_embeddings#0", False),
        ("embeddings.word_embeddings#0", "embeddings.word_embeddings#0", False),
        ("embeddings.word_embeddings:output", "embeddings.word_embeddings:output#0", False),
        ("embeddings#0", "embeddings:output#0", True),
        ("embeddings:output", "embeddings:output#0", False),
        ("encoder.layer.1", "encoder.layer.1:output#0", False),
        ("encoder.layer.1:input", "encoder.layer.1:input#0", False),
        ("encoder.layer.1:input#0", "encoder.layer.1:input#0", False),
        ("encoder.layer.1:output#0", "encoder.layer.1:output#0", False),
        ("pooler", "pooler:output#0", False),
    ],
)
def test_names_in_a_bert(name: str, key: str, by_role: bool) -> None:
    trace = bert(BATCH)
    point, role = named(trace, name)
    assert (point.key, role) == (key, by_role)


def test_every_point_is_found_by_its_name_and_by_its_key() -> None:
    trace = bert(BATCH)
    for point in trace.points:
        assert named(trace, point.key)[0] is not None
        assert named(trace, point.key)[0].key == point.key
        assert named(trace, point.name)[0].key == point.key
        for role in point.roles:
            assert named(trace, role)[0].key == point.key


def test_the_role_comes_before_a_table_of_its_name() -> None:
    trace = Trace(BATCH)
    trace.lookup("word", np.arange(5)[None])
    trace.lookup("table", IDS)
    assert named(trace, "word")[0].key == "table#0"
    without = Trace(BATCH)
    without.lookup("word", IDS + 1)
    assert named(without, "word") == (without.points[0], False)


def test_a_path_that_is_called_as_a_role_that_the_model_lacks() -> None:
    trace = simple()
    trace.new("layer.7", "Block", trace.hidden(2, 3))
    trace.new("embeddings", "Block", trace.hidden(2, 3))
    assert named(trace, "layer.7")[1] is False
    assert named(trace, "embeddings")[1] is False


def test_the_occurrences_of_a_module_called_repeatedly() -> None:
    trace = Trace(BATCH)
    x = trace.table("table", IDS)
    for _ in range(3):
        x = encoder_layer(trace, "shared", x)
    assert named(trace, "shared#1")[0].key == "shared:output#1"
    assert named(trace, "shared:input#2")[0].key == "shared:input#2"
    assert named(trace, "layer.1")[0].key == "shared:output#1"
    with pytest.raises(AmbiguousPointError, match=r"'shared' fits 3 points: shared#0 \(shape .* shared#2"):
        named(trace, "shared")
    with pytest.raises(UnknownPointError, match=r"'shared#3': 'shared' was reached 3 time\(s\).*from 0 to 2"):
        named(trace, "shared#3")


def test_a_tables_name_prefers_the_lookup_of_the_ids() -> None:
    trace = simple("table")
    trace.lookup("table", np.arange(5)[None])
    assert named(trace, "table")[0].key == "table#0"
    assert named(trace, "table#1")[0].key == "table#1"
    trace.lookup("table", IDS)
    with pytest.raises(AmbiguousPointError, match=r"'table' fits 2 points: table#0 .* table#2") as caught:
        named(trace, "table")
    assert [lookup.key for lookup in caught.value.lookups] == ["table#0", "table#2"]


def test_further_names_of_a_module() -> None:
    trace = simple()
    trace.module("head", "Head", lambda x: Value(2, 3), trace.hidden(2, 8), also=("classifier", "dense_1"))
    trace.module("dense_1", "Head", lambda x: Value(2, 3), trace.hidden(2, 8))
    assert named(trace, "classifier")[0].key == "head:output#0"
    assert named(trace, "classifier:input")[0].key == "head:input#0"
    assert named(trace, "dense_1")[0].key == "dense_1:output#0"  # its own path comes first


def test_several_lookups_of_the_ids() -> None:
    trace = simple("a", "b")
    with pytest.raises(AmbiguousPointError, match=r"'word' fits 2 lookups: word#0 = a#0 .*, word#1 = b#0"):
        named(trace, "word")
    assert [named(trace, f"word#{number}")[0].key for number in range(2)] == ["a#0", "b#0"]
    with pytest.raises(PointError, match=r"no point 'word#2': the ids are looked up 2 time\(s\): word#0 = a#0"):
        named(trace, "word#2")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "tabel",
            r"no point 'tabel': expected a role, of 'position', 'word', or a path, of 'positions', 'table'.* "
            r"Did you mean 'table'\?",
        ),
        ("wrod", r"Did you mean 'word'\?"),
        ("positoin", r"Did you mean 'position'\?"),
        ("table#1", r"no point 'table#1': 'table' was reached 1 time\(s\).*a number from 0 to 0"),
        ("table:input", r"no point 'table:input' \(its input is not a floating tensor\)"),
        ("type", "'type': the model makes no lookup by type; expected one of 'position', 'word', or a native path"),
        ("embeddings", "'embeddings': the model has no recognisable embedding block: no single module"),
        ("layer.0", "'layer.0': the model has no repeated block that maps hidden states to hidden states, is"),
        ("layer.-1", "'layer.-1': the model has no repeated block"),
        ("layer", "no point 'layer'"),
        ("", "no point ''"),
        ("#0", "no point '#0'"),
        (":input", "no point ':input'"),
        ("word:input", "no point 'word:input'"),
    ],
)
def test_unknown_names(name: str, message: str) -> None:
    with pytest.raises(UnknownPointError, match=message):
        named(simple(), name)


@pytest.mark.parametrize("role", ["layer.0", "layer.-1", "position", "embeddings"])
def test_blocks_that_run_at_other_positions_are_named(role: str) -> None:
    trace = simple()
    stack(trace, "encoder.layers", trace.hidden(2, 8, 8), 3)
    named_so = "'encoder.layers.0' to 'encoder.layers.2', at 8 positions, where the batch has 5"
    if role == "position":
        assert named(trace, role)[0].path == "positions"
        return
    with pytest.raises(UnknownPointError, match=rf"no point '{role}': the model has blocks, {named_so}"):
        named(trace, role)
    with pytest.raises(UnknownPointError, match="no point 'type': the model makes no lookup by type"):
        named(trace, "type")


@pytest.mark.parametrize(
    ("before", "after", "advice"),
    [
        (0, 3, "pad the batch to 8 positions, with mask=0 there, or name a module by its path\n"),
        (3, 0, "name a module by its path instead\n"),  # behind ids of the model's own, there are always more
    ],
)
def test_a_model_that_pads_the_ids_takes_them_padded(before: int, after: int, advice: str) -> None:
    trace = Trace(BATCH)
    rows = trace.table("table", np.pad(IDS, ((0, 0), (before, after)), constant_values=1))
    stack(trace, "layers", rows, 2)
    with pytest.raises(UnknownPointError, match=rf"at 8 positions, where the batch has 5.*: {advice}"):
        named(trace, "layer.0")


def test_blocks_whose_paths_are_numbers_alone_are_one_list() -> None:
    trace = simple()
    for number in range(3):
        trace.module(f"{number}", "Block", lambda _: trace.hidden(2, 8, 8), trace.hidden(2, 8, 8))
    assert _blocks_away(trace.points, BATCH).startswith("has blocks, '0' to '2', at 8 positions")


def test_blocks_at_other_positions_are_no_reason_in_a_model_with_layers() -> None:
    trace = Trace(BATCH)
    stack(trace, "pooled.layers", trace.hidden(2, 8, 8), 3)
    stack(trace, "layers", trace.table("table", IDS), 2)
    assert named(trace, "layer.1")[0].path == "layers.1"
    with pytest.raises(UnknownPointError, match="no point 'position': the model makes no lookup by"):
        named(trace, "position")


@pytest.mark.parametrize("shape", [(2, 1, 8), (2, 8, 5), (3, 8, 8), (2, 5, 8)])
def test_blocks_that_are_pooled_or_in_another_order_are_not_said_to_be_at_other_positions(
    shape: tuple[int, ...],
) -> None:
    trace = simple()
    for number in range(3):
        trace.module(f"blocks.{number}", "Block", lambda _: trace.hidden(*shape), trace.hidden(*shape))
    assert "at 8 positions" not in _blocks_away(trace.points, BATCH)
    assert _blocks_away(trace.points, BATCH) == ""
    stack(trace, "decoder.blocks", trace.hidden(2, 7, 8), 2)
    stack(trace, "a.encoder.blocks", trace.hidden(2, 6, 8), 2)
    assert "'a.encoder.blocks.0' to 'a.encoder.blocks.1', at 6 positions" in _blocks_away(trace.points, BATCH)


@pytest.mark.parametrize(
    ("name", "layers", "added"),
    [("layer.0", True, False), ("layer.-12", True, False), ("layer.x", False, False), ("embeddings", True, True),
        ("position", True, True), ("type", True, True), ("type:input", False, False), ("word", False, False),
        ("h.0", False, False)],
)  # fmt: skip
def test_which_names_depend_on_layers_and_on_added_lookups(name: str, layers: bool, added: bool) -> None:
    assert (needs_layers(name), needs_added(name)) == (layers, added)


def test_blocks_that_are_no_layers_are_named() -> None:
    trace = simple()
    for number in range(2):
        for half in ("attentions", "ffns"):
            encoder_layer(trace, f"{half}.{number}", trace.hidden(), half)
    message = r"has no repeated block .*found 'attentions\.0' to 'attentions\.1', 'ffns\.0' to 'ffns\.1', but these do not follow"
    with pytest.raises(UnknownPointError, match=message):
        named(trace, "layer.0")


@pytest.mark.parametrize("number", [3, 4, 10, -4, -5, -40])
def test_a_layer_out_of_range(number: int) -> None:
    message = rf"no point 'layer.{number}': the model has 3 layers: expected layer.0 to layer.2, or layer.-1"
    with pytest.raises(UnknownPointError, match=re.escape(message)):
        named(bert(BATCH), f"layer.{number}")


@pytest.mark.parametrize(
    ("name", "path"),
    [("layer.0#1", "encoder.layer.0"), ("layer.0:input", "encoder.layer.0"), ("layer.-1:output", "encoder.layer.2"),
        ("embeddings#1", "embeddings"), ("position:output", "embeddings.position_embeddings")],
)  # fmt: skip
def test_roles_have_no_sides_and_no_occurrences(name: str, path: str) -> None:
    trace = bert(BATCH)
    if name == "embeddings#1":
        message = "'embeddings' was reached 1 time"  # it is the module's own path, too
    else:
        message = rf"no point '{name}': .* is a role and means a single tensor, here '{path}#0'.* or a native path, .*'{path}'"
    with pytest.raises(UnknownPointError, match=message):
        named(trace, name)


def test_a_near_name_of_a_layer_and_of_a_module() -> None:
    with pytest.raises(UnknownPointError, match=r"Did you mean 'layer\.-1'\?"):
        named(bert(BATCH), "layers.-1")
    with pytest.raises(UnknownPointError, match=r"Did you mean 'encoder\.layer\.1'\?"):
        named(bert(BATCH), "encoder.layers.1")


@pytest.mark.parametrize("role", ["position", "type"])
def test_roles_that_cannot_be_identified_in_a_batch_of_one_position(role: str) -> None:
    trace = Trace(embgrad.TokenBatch(IDS[:, :1]))
    trace.lookup("table", IDS[:, :1])
    trace.lookup("second", np.zeros((1, 1), int))
    message = rf"'{role}': in a batch with one position, only a table's name can identify.*native path of a lookup, of 'second'"
    with pytest.raises(UnknownPointError, match=message):
        named(trace, role)
    assert named(trace, "second")[0].path == "second"


@pytest.mark.parametrize("name", ["word", "word#1"])
def test_no_lookup_of_the_ids(name: str) -> None:
    trace = Trace(BATCH)
    trace.lookup("table", IDS + 1)
    with refused(PointNotReachedError, "no lookup whose indices are the batch's ids", "table#0 (1000"):
        named(trace, name)
