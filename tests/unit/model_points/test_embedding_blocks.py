"""The embedding block: where it begins and ends."""

from __future__ import annotations

import pytest

import embgrad
from tests.unit.model_points.test_roles import BATCH, IDS, POSITIONS, layers_of
from tests.unit.model_points.test_roles_of_steps import TYPES
from tests.unit.tracing import Trace, Value, bert_embeddings, stack


@pytest.mark.parametrize(
    ("between", "block"),
    [
        ([("norm", "LayerNorm"), ("dropout", "Dropout")], "dropout:output#0"),
        ([("dropout", "Dropout")], "embeddings:output#0"),
        ([], "embeddings:output#0"),
        ([("projection", "Linear"), ("norm", "LayerNorm")], "embeddings:output#0"),
    ],
)
def test_a_norm_after_the_embedding_block_belongs_to_it(between: list[tuple[str, str]], block: str) -> None:
    """keras-hub's RoBERTa adds words and positions in one layer and has the norm, which others have inside, beside it.

    Dropout that returns what it is given has the same tensor, and a projection is a step of its own, as in ALBERT.
    """
    trace = Trace(BATCH)

    def embed(_: Value) -> Value:
        trace.table("embeddings.token", IDS)
        trace.slice("embeddings.position", 5)
        return trace.hidden()

    x = trace.module("embeddings", "TokenAndPosition", embed, None)
    for path, kind in between:
        x = (trace.same if kind == "Dropout" else trace.new)(path, kind, x)
    stack(trace, "layer", x, 2)
    assert trace.roles["embeddings"] == block


@pytest.mark.parametrize(
    ("outer", "types_inside", "block"),
    [(True, True, "embeddings:output#0"), (False, True, "embeddings.inner:output#0"), (True, False, "layer.0:input#0"),
        (False, False, "layer.0:input#0")],
)  # fmt: skip
def test_the_embedding_block_is_the_outermost_module_that_makes_all_lookups(
    outer: bool, types_inside: bool, block: str
) -> None:
    trace = Trace(embgrad.TokenBatch(IDS, types=TYPES))

    def inner(_: Value) -> Value:
        for path, indices in (("word", IDS), ("position", POSITIONS), ("type", TYPES))[: 3 if types_inside else 2]:
            trace.table(f"embeddings.{path}", indices)
        return trace.hidden()

    def embed(_: Value) -> Value:
        return trace.new(
            "embeddings.project", "Linear", trace.module("embeddings.inner", "Lookups", inner, trace.hidden())
        )

    x = trace.module("embeddings", "Both", embed, None) if outer else embed(trace.hidden())
    if not types_inside:
        trace.table("type", TYPES)
    stack(trace, "layer", x if outer and types_inside else trace.hidden(), 2)
    assert trace.roles["embeddings"] == block


@pytest.mark.parametrize(("holds", "positions", "is_known"), [(True, 3, True), (False, 3, False), (True, 1, False)])
def test_blocks_at_other_positions_show_where_the_embedding_block_ends(
    holds: bool, positions: int, is_known: bool
) -> None:
    trace = Trace(BATCH)

    def embed(_: Value) -> Value:
        trace.table("embeddings.word", IDS)
        trace.table("embeddings.position", POSITIONS)
        return trace.new("embeddings.project", "Linear", trace.hidden())

    trace.module("embeddings", "Both", embed, None)
    for number in range(2):

        def block(x: Value, number: int = number) -> Value:
            return trace.new(f"blocks.{number}.dense", "Linear", x) if holds else trace.hidden(*x.shape)

        trace.module(f"blocks.{number}", "Block", block, trace.hidden(2, positions, 8))
    assert trace.roles.get("embeddings") == ("embeddings:output#0" if is_known else None)


@pytest.mark.parametrize("has_module", [True, False])
def test_a_model_whose_layers_are_not_known_is_not_its_embedding_block(has_module: bool) -> None:
    """SqueezeBERT's layers turn the axes, so that none is known; the module around them makes all lookups too."""
    trace = Trace(BATCH)

    def body(_: Value) -> Value:
        if has_module:
            bert_embeddings(trace, "body.embeddings")
        else:
            trace.table("body.word", IDS)
            trace.table("body.position", POSITIONS)
        for number in range(2):
            trace.new(f"body.{number}", "Conv1d", trace.hidden(2, 8, 5), 5)
        return trace.hidden()

    trace.module("", "Model", lambda _: trace.module("body", "Backbone", body, None), None)
    assert layers_of(trace) == []
    assert trace.roles.get("embeddings") == ("body.embeddings:output#0" if has_module else None)
