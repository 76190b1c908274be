"""Which points are the word lookup, the embeddings and the layers, in forward passes as well-known models make them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.model_points.points import Lookup, ModuleCall
from embgrad.model_points.roles import _word_of, points_of
from tests.unit.tracing import Trace, Value, bert, bert_embeddings, encoder_layer, stack

IDS = np.array([[7, 9, 8, 5, 2], [3, 11, 4, 6, 0]])
BATCH = embgrad.TokenBatch(IDS)
POSITIONS = np.arange(5)[None]


def started() -> tuple[Trace, Value]:
    """Return a trace that begins with the word lookup, and the rows that it returned."""
    trace = Trace(BATCH)
    return trace, trace.table("table", IDS)


def test_times_are_of_a_clock_that_advances_as_calls_begin_and_end() -> None:
    parents = (None, 0, 1, 0, None)
    calls = [ModuleCall(str(number), 0, "Block", parent, token=number) for number, parent in enumerate(parents)]
    lookups = [Lookup(f"table{parent}", 0, IDS, 12, 8, None, parent=parent) for parent in (None, 2)]
    points = points_of(BATCH, lookups, calls)
    assert {point.name: point.time for point in points if point.lookup is None and ":" not in point.name} == {
        "0#0": 8,
        "1#0": 5,
        "2#0": 4,
        "3#0": 7,
        "4#0": 10,
    }
    assert [point.time for point in points if point.lookup is not None] == [0, 3]


def test_the_word_lookup_is_the_first_of_the_ids_that_is_not_by_position() -> None:
    language, positions, word, again = (
        Lookup(path, 0, IDS, 12, 8, layout)
        for path, layout in (("a", None), ("b", (0, 1)), ("c", (0, 1)), ("d", (0, 1)))  # type: ignore[arg-type]
    )
    assert _word_of([language, positions, word, again], (positions, None)) is word
    assert _word_of([language, positions], (positions, None)) is None


def layers_of(trace: Trace) -> list[str]:
    roles = trace.roles
    numbered = [roles[f"layer.{number}"] for number in range(len(roles)) if f"layer.{number}" in roles]
    assert roles.get("layer.-1") == (numbered[-1] if numbered else None)
    return numbered


def outputs(path: str, count: int) -> list[str]:
    return [f"{path}.{number}:output#0" for number in range(count)]


@pytest.mark.parametrize("shape", [(1, 5), (2, 2), (5, 5), (1, 1), (4, 1)])
def test_bert_in_batches_of_every_shape(shape: tuple[int, int]) -> None:
    ids = np.random.default_rng(0).permutation(100)[: shape[0] * shape[1]].reshape(shape) + 50
    for types in (None, np.zeros(shape, int)):
        roles = bert(embgrad.TokenBatch(ids, types=types)).roles
        assert roles["word"] == "embeddings.word_embeddings#0"
        assert roles["position"] == "embeddings.position_embeddings#0"
        assert roles["type"] == "embeddings.token_type_embeddings#0"
        assert roles["embeddings"] == "embeddings:output#0"
        assert roles["layer.2"] == "encoder.layer.2:output#0"


def test_roberta_offsets_its_positions_and_gives_pads_a_row_of_their_own() -> None:
    ids = np.array([[7, 9, 8, 1, 1], [3, 4, 5, 6, 2]])
    positions = np.array([[2, 3, 4, 1, 1], [2, 3, 4, 5, 6]])
    for batch in (embgrad.TokenBatch(ids, ids != 1), embgrad.TokenBatch(ids)):  # told of the pads, and not
        trace = Trace(batch)

        def embed(_: Value, trace: Trace = trace) -> Value:
            trace.table("embeddings.word", ids, padding=1)
            trace.table("embeddings.place", positions, padding=1)
            return trace.new("embeddings.norm", "LayerNorm", trace.hidden())

        stack(trace, "layer", trace.module("embeddings", "Embeddings", embed, None), 2)
        assert trace.roles["position"] == "embeddings.place#0"
        assert trace.roles["embeddings"] == "embeddings:output#0"


def test_gluonnlps_bert_has_no_module_for_its_embeddings() -> None:
    trace = Trace(embgrad.TokenBatch(IDS, types=np.zeros_like(IDS)))
    trace.module(
        "word_embed",
        "HybridSequential",
        lambda _: trace.same("word_embed.1", "Dropout", trace.table("word_embed.0", IDS)),
        None,
    )
    trace.table("token_type_embed.0", np.zeros_like(IDS))

    def encoder(x: Value) -> Value:
        trace.lookup("encoder.position_weight", np.arange(5))
        x = trace.new("encoder.layer_norm", "LayerNorm", trace.hidden(*x.shape))
        x = trace.same("encoder.dropout_layer", "Dropout", x)
        return stack(trace, "encoder.transformer_cells", x, 3)

    trace.module("encoder", "BERTEncoder", encoder, trace.hidden())
    roles = trace.roles
    assert roles["word"] == "word_embed.0#0"
    assert roles["position"] == "encoder.position_weight#0"
    assert roles["type"] == "token_type_embed.0#0"
    assert roles["embeddings"] == "encoder.dropout_layer:output#0"  # what the first layer takes
    assert layers_of(trace) == outputs("encoder.transformer_cells", 3)


def test_gpt2_without_dropout_uses_the_input_of_its_first_layer() -> None:
    trace = Trace(BATCH)
    trace.table("wte", IDS)
    trace.table("wpe", POSITIONS)
    stack(trace, "h", trace.hidden(), 2, "Block")
    assert trace.roles["embeddings"] == "h.0:input#0"
    listed = {point.key: point for point in trace.points}
    assert listed["h.0:input#0"].listed
    assert not listed["h.1:input#0"].listed


@pytest.mark.parametrize("between", ["dense", "experts"])
def test_attentions_between_which_modules_compute_are_no_layers(between: str) -> None:
    trace, x = started()
    for number in range(3):
        x = trace.module(
            f"mha_{number}",
            "Attention",
            lambda x, n=number: trace.new(f"mha_{n}.out", "Dense", x),
            x,  # type: ignore[misc]
        )
        if between == "dense":
            x = trace.new(f"dense_{number}_up", "Dense", x, 3 * trace.dim)
            x = trace.new(f"dense_{number}_down", "Dense", x, trace.dim)
        else:
            x = trace.new(f"experts.{number}", "Experts", x)
        x = trace.new(f"norm_{number}", "LayerNorm", x)
    assert layers_of(trace) == []


@pytest.mark.parametrize(("encoder", "decoder"), [(2, 2), (2, 3), (3, 2), (1, 3), (2, 1)])
@pytest.mark.parametrize("name", ["T5", "BART"])
def test_an_encoder_and_a_decoder_in_two_modules(name: str, encoder: int, decoder: int) -> None:
    trace = Trace(BATCH)

    def run(side: str, count: int, ids: np.ndarray) -> Value:
        def body(_: Value) -> Value:
            x = trace.table("shared", ids)
            if name == "BART":
                trace.table(f"{side}.positions", POSITIONS + 2)
                x = trace.new(f"{side}.norm", "LayerNorm", trace.hidden())
            return stack(trace, f"{side}.layers", x, count, "T5Block" if name == "T5" else f"{side}Layer")

        return trace.module(side, "Stack", body, None)

    run("encoder", encoder, IDS)
    run("decoder", decoder, IDS + 20)
    assert layers_of(trace) == outputs("encoder.layers", encoder)
    assert trace.roles["word"] == "shared#0"
    if name == "BART":
        assert trace.roles["position"] == "encoder.positions#0"
        assert trace.roles["embeddings"] == "encoder.norm:output#0"


@pytest.mark.parametrize("dims", [(8, 8, 16), (8, 16)])
def test_a_list_of_layers_of_several_widths_is_refused(dims: tuple[int, ...]) -> None:
    trace, x = started()
    for number, dim in enumerate(dims):

        def body(x: Value, number: int = number, dim: int = dim) -> Value:
            return trace.new(f"layers.{number}.dense", "Linear", x, dim)

        x = trace.module(f"layers.{number}", "Layer", body, x)
    assert not layers_of(trace)
    assert "embeddings" not in trace.roles


def test_parts_of_a_single_layer_are_no_layers() -> None:
    """As in a T5 of one block, whose attention and feed-forward net are listed."""
    trace = Trace(BATCH)

    def block(x: Value) -> Value:
        x = encoder_layer(trace, "block.0.layer.0", x, "Attention")
        return encoder_layer(trace, "block.0.layer.1", x, "FeedForward")

    trace.module("block.0", "Block", block, trace.table("table", IDS))
    assert layers_of(trace) == ["block.0:output#0"]


@pytest.mark.parametrize(("encoder", "decoder"), [(1, 1), (3, 3), (2, 3), (3, 2), (1, 3)])
@pytest.mark.parametrize("mark", [".", "_"])
def test_an_encoder_and_a_decoder_of_one_class_in_one_module(encoder: int, decoder: int, mark: str) -> None:
    """As in the T5 of keras-hub."""
    trace = Trace(BATCH)
    for side, count in (("encoder_layer", encoder), ("decoder_layer", decoder)):
        x = trace.table("table", IDS if side == "encoder_layer" else IDS + 20)
        for number in range(count):
            x = encoder_layer(trace, f"{side}{mark}{number}", x)
    assert layers_of(trace) == [f"encoder_layer{mark}{number}:output#0" for number in range(encoder)]


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize(("lower", "upper"), [(2, 2), (1, 3), (3, 1)])
def test_layers_in_two_modules_are_not_those_of_one(lower: int, upper: int, norm: bool) -> None:
    trace, x = started()
    x = trace.module("lower", "Lower", lambda x: stack(trace, "lower.blocks", x, lower), x)
    x = trace.new("norm", "LayerNorm", x) if norm else x
    trace.module("upper", "Upper", lambda x: stack(trace, "upper.blocks", x, upper), x)
    assert not layers_of(trace)


@pytest.mark.parametrize("paths", [("encoder", "decoder"), ("first", "second")])
@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("inside", [8, 2])
@pytest.mark.parametrize("layers", [1, 2])
def test_an_encoder_that_pads_inside_leaves_its_roles_to_no_decoder(
    paths: tuple[str, str], nested: bool, layers: int, inside: int
) -> None:
    """As in LED, whose encoder pads to its window."""
    trace = Trace(BATCH)

    def side(path: str, ids: np.ndarray, positions: int) -> Value:
        def body(_: Value) -> Value:
            trace.table("shared", ids)
            trace.table(f"{path}.positions", np.arange(positions)[None])
            return stack(trace, f"{path}.layers", trace.hidden(2, positions, 8), layers, path)

        return trace.module(path, "Side", body, None) if nested else body(trace.hidden())

    side(paths[0], IDS, inside)
    side(paths[1], IDS + 20, 5)
    assert trace.roles == {"word": "shared#0"}


@pytest.mark.parametrize(
    ("first", "second", "is_used"),
    [("encoder", "decoder", False), ("lower", "upper", True), ("lower", "decoder", True), ("encoder", "upper", True),
        ("decoder.a", "decoder.b", True)],
)  # fmt: skip
def test_outside_of_both_modules_only_the_names_of_an_encoder_and_a_decoder_show_which_they_are(
    first: str, second: str, is_used: bool
) -> None:
    trace, _ = started()
    trace.module(first, "Side", lambda x: stack(trace, f"{first}.layers", x, 2, "A"), trace.hidden(2, 8, 8))
    trace.module(second, "Side", lambda x: stack(trace, f"{second}.layers", x, 3, "B"), trace.hidden())
    assert layers_of(trace) == (outputs(f"{second}.layers", 3) if is_used else [])


def test_the_output_of_a_table_is_listed_where_its_module_changes_the_rows() -> None:
    trace, _ = started()

    def scale(_: Value) -> Value:
        trace.lookup("scaled", IDS + 20)
        return trace.hidden()

    trace.module("scaled", "ScaledEmbedding", scale, None)
    assert {point.name: point.listed for point in trace.points} == {
        "table#0": True,
        "table:output#0": False,
        "scaled#0": True,
        "scaled:output#0": True,
    }


def test_an_encoder_that_runs_before_the_word_lookup_is_not_used() -> None:
    trace = Trace(BATCH)
    trace.module("encoder", "Encoder", lambda x: stack(trace, "encoder.layers", x, 2), trace.hidden(2, 9, 8))
    trace.module(
        "decoder", "Decoder", lambda _: stack(trace, "decoder.layers", trace.table("decoder.table", IDS), 3), None
    )
    assert layers_of(trace) == outputs("decoder.layers", 3)


@pytest.mark.parametrize("sizes", [(1, 1), (2, 2), (3, 1)])
@pytest.mark.parametrize("decoder", [0, 2, 4])
def test_blocks_behind_pooling_make_the_layers_ambiguous(sizes: tuple[int, int], decoder: int) -> None:
    """As in Funnel, whose second block runs on half the positions."""
    trace = Trace(BATCH)

    def encoder(x: Value) -> Value:
        stack(trace, "encoder.blocks.0", x, sizes[0])
        return stack(trace, "encoder.blocks.1", trace.hidden(2, 3, 8), sizes[1])

    trace.module("encoder", "Encoder", encoder, bert_embeddings(trace))
    trace.module("decoder", "Decoder", lambda x: stack(trace, "decoder.layers", x, decoder), trace.hidden())
    assert not layers_of(trace)
    assert trace.roles["embeddings"] == "embeddings:output#0"


def test_a_first_layer_over_characters_is_not_the_model_behind_it() -> None:
    """As in Canine: one layer over all characters, the stack over fewer."""
    trace = Trace(BATCH)
    bert_embeddings(trace)
    for path, count, positions in (("first.layer", 1, 5), ("encoder.layer", 3, 2), ("last.layer", 1, 5)):
        trace.module(
            path.split(".")[0],
            "Encoder",
            lambda x, path=path, count=count: stack(trace, path, x, count),
            trace.hidden(2, positions, 8),
        )
    assert not layers_of(trace)


def test_a_tensor_written_in_place_is_no_longer_a_module_output() -> None:
    """As in XLM, which sets its embeddings to zero at padding, in place."""
    for written in (False, True):
        trace = Trace(BATCH)
        trace.table("table", IDS)
        x = trace.new("norm", "LayerNorm", trace.hidden())
        if written:
            x.write()
        stack(trace, "layers", x, 2)
        assert trace.roles["embeddings"] == ("layers.0:input#0" if written else "norm:output#0")


def test_a_container_of_layers_is_not_a_layer() -> None:
    trace = Trace(BATCH)

    def body(x: Value) -> Value:
        for number in range(2):
            x = trace.new(f"1.{number}", "GRU", x)
        return x

    x = trace.module("1", "Sequential", body, trace.table("0", IDS))
    trace.new("2", "Linear", x)
    assert layers_of(trace) == outputs("1", 2)


@pytest.mark.parametrize("positions_first", [True, False])
def test_ids_that_are_positions(positions_first: bool) -> None:
    trace = Trace(embgrad.TokenBatch([[0, 1, 2]]))
    tables = ["pos_table", "table"] if positions_first else ["table", "pos_table"]
    for path in tables:
        trace.table(path, [[0, 1, 2]])
    listed = {point.key: point.roles for point in trace.points if point.lookup}
    assert listed["table#0"] == ("word",)
    assert listed["pos_table#0"] == ("word", "position")


def test_the_only_lookup_is_not_by_position_though_its_ids_count_up() -> None:
    trace = Trace(embgrad.TokenBatch([[0, 1, 2]]))
    trace.lookup("pos_table", trace.batch.ids)
    assert [point.roles for point in trace.points] == [("word",)]


def test_ids_that_are_all_zero_beside_types() -> None:
    trace = Trace(embgrad.TokenBatch([[0, 0, 0]]))
    trace.table("table", [[0, 0, 0]])
    trace.table("types", [[0, 0, 0]])
    listed = {point.key: point.roles for point in trace.points if point.lookup}
    assert listed == {"table#0": ("word",), "types#0": ("word", "type")}


@pytest.mark.parametrize("types", [None, [[0], [0]]])
@pytest.mark.parametrize(
    ("path", "roles"),
    [("wpe", {"position": "wpe#0"}), ("pos_embed", {"position": "pos_embed#0"}), ("segments", {"type": "segments#0"}),
        ("composed", {}), ("P", {})],
)  # fmt: skip
def test_with_one_position_only_names_distinguish_positions_from_types(
    types: Any, path: str, roles: dict[str, str]
) -> None:
    trace = Trace(embgrad.TokenBatch([[7], [9]], types=types))
    trace.table("wte", [[7], [9]])
    trace.table(path, [[0]])
    assert trace.roles == {"word": "wte#0", **roles}


def test_a_word_table_called_as_if_of_positions() -> None:
    trace = Trace(embgrad.TokenBatch([[5, 6, 7]]))
    trace.table("composer.embedding", [[5, 6, 7]])
    assert trace.roles == {"word": "composer.embedding#0"}


def test_relative_positions_are_no_positions() -> None:
    trace = Trace(embgrad.TokenBatch(np.arange(9).reshape(3, 3) + 10))
    trace.table("table", np.arange(9).reshape(3, 3) + 10)
    trace.table("relative_attention_bias", [[0, 17, 18], [1, 0, 17], [2, 1, 0]])
    assert trace.roles == {"word": "table#0"}


@pytest.mark.parametrize("ids", [IDS, [[0, 1, 2, 3, 4]], [[7]]])
@pytest.mark.parametrize("positions_first", [True, False])
def test_positions_that_are_sliced_off_their_table(ids: Any, positions_first: bool) -> None:
    """GPT-2 of keras-hub, for one; what is sliced is never `word`."""
    trace = Trace(embgrad.TokenBatch(ids))
    columns = np.shape(ids)[1]
    made = [lambda: trace.slice("position_embedding", columns), lambda: trace.table("table", ids)]
    for make in made if positions_first else made[::-1]:
        make()
    stack(trace, "layer", trace.new("add", "Add", trace.hidden()), 2)
    assert trace.roles["word"] == "table#0"
    assert trace.roles["position"] == "position_embedding#0"
    assert trace.roles["embeddings"] == "add:output#0"
    point = next(point for point in trace.points if "position" in point.roles)
    assert point.lookup is not None
    assert point.lookup.layout is None
    assert point.shape == (columns, 8)


def test_slices_of_other_matrices_are_no_points() -> None:
    """Those of other widths, such as cached sines, and those inside a layer, such as a part of a weight."""
    trace, x = started()
    trace.slice("sines", 5, dim=4)

    def body(x: Value) -> Value:
        trace.slice("kernel", 5)
        return encoder_layer(trace, "inner", x)

    for number in range(2):
        x = trace.module(f"layer.{number}", "Block", body, x)
    assert [point.key for point in trace.points if point.lookup is not None] == ["table#0"]
    assert set(trace.roles) == {"word", "embeddings", "layer.0", "layer.1", "layer.-1"}


def test_a_layer_called_with_other_operations_between_has_no_role() -> None:
    trace = Trace(BATCH)
    x = bert_embeddings(trace)
    for _ in range(3):
        encoder_layer(trace, "encoder.layer.0", x)
        x = trace.hidden()  # made of what it gave, by an operation
    assert layers_of(trace) == []
    assert trace.roles["embeddings"] == "embeddings:output#0"
