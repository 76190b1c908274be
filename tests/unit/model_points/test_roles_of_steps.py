"""Roles of models that are written as a few steps, and lookups by position."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import embgrad
from embgrad.model_points.descent import Reached
from tests.unit.model_points.test_roles import BATCH, IDS, POSITIONS, layers_of
from tests.unit.tracing import Trace, Value, encoder_layer, stack

TYPES = np.array([[5, 5, 6, 6, 6]] * 2)


INDICES = {
    "ids": IDS, "other": IDS + 20, "positions": POSITIONS, "types": TYPES, "ids.T": IDS.T,
    "positions.T": np.broadcast_to(POSITIONS.T, (5, 2)),
    "ids.flat": IDS.ravel(),
}  # fmt: skip


LAYERS = ("Layer#", "Block")


def traced(steps: str) -> Trace:
    """Return the trace of a model that is written as a text.

    `path=indices` is a lookup, `path:Kind` a module, `path*2:Kind` a list of layers, `+` an operation outside of modules, `pool`
    one that leaves a vector for each example. A kind in upper case is a whole layer, and so are those that `LAYERS` lists.
    """
    trace = Trace(embgrad.TokenBatch(IDS, types=TYPES if "types" in steps else None))
    run_steps(trace, steps)
    return trace


def run_steps(trace: Trace, steps: str) -> None:
    x = Value()
    for step in steps.split():
        path, _, kind = step.partition(":")
        if "=" in step:
            path, _, indices = step.partition("=")
            x = trace.table(path, INDICES[indices])
        elif step in ("+", "pool"):
            x = trace.hidden() if step == "+" else trace.hidden(2, 8)
        elif "*" in path:
            x = stack(trace, path.split("*")[0], x, int(path.split("*")[1]), kind or "Layer")
        elif kind.isupper() or kind in LAYERS:
            x = encoder_layer(trace, path, x, kind)
        else:
            x = trace.same(path, kind, x) if kind == "Dropout" else trace.new(path, kind, x)


@pytest.mark.parametrize(
    ("steps", "roles", "layers"),
    [
        ("wte=ids wpe=positions + drop:Dropout h*2 ln:LayerNorm", "position=wpe#0 embeddings=drop:output#0", "h.0 h.1"),
        ("wte=ids wpe=positions wte=types", "position=wpe#0 type=wte#1", ""),
        ("w=ids layers*2 norm:RMSNorm", "embeddings=w#0", "layers.0 layers.1"),
        ("w=ids + layers*2", "embeddings=layers.0:input#0", "layers.0 layers.1"),
        ("w=ids one*2 w=other other*2", "embeddings=w#0", "one.0 one.1"),
        ("w=ids one*2 w=other other*3", "embeddings=w#0", "one.0 one.1"),
        ("w=ids one*3 w=other other*1", "embeddings=w#0", "one.0 one.1 one.2"),
        ("w=ids one*1 w=other other*3", "", ""),
        ("w=ids layers*2 + layers*2", "", ""),
        ("w=ids e*2:EncoderLayer pos=positions w=other d*2:DecoderLayer", "embeddings=w#0", "e.0 e.1"),
        ("w=ids encoder_layers*1:EncoderLayer decoder_layers*1:DecoderLayer", "embeddings=w#0", "encoder_layers.0"),
        (
            "w=ids encoder_layers*2:EncoderLayer decoder_layers*2:DecoderLayer",
            "embeddings=w#0",
            "encoder_layers.0 encoder_layers.1",
        ),
        ("w=ids encoder_layers*1:EncoderLayer decoder_layers*2:DecoderLayer", "embeddings=w#0", "encoder_layers.0"),
        ("w=ids + attentions.0:A + ffns.0:F", "embeddings=attentions.0:input#0", ""),
        (
            "w=ids + attentions.0:A + norms.0:LayerNorm + ffns.0:F + attentions.1:A + norms.1:LayerNorm + ffns.1:F",
            "embeddings=attentions.0:input#0",
            "",
        ),
        ("w=ids + this:LayerNorm + that:LayerNorm", "", ""),
        ("w=ids pool head:Linear", "", ""),
        ("w=ids pool head.0:Block head.1:Block head.2:Block", "", ""),
        ("w=ids.T rnn*2", "embeddings=w#0", "rnn.0 rnn.1"),
        ("w=ids.flat layer*2", "embeddings=w#0", "layer.0 layer.1"),
        ("w=ids.T place=positions.T", "position=place#0", ""),
        (
            "m_1/w_1=ids m_1/layer_0_1:Layer# m_1/layer_1_1:Layer#",
            "embeddings=m_1/w_1#0",
            "m_1/layer_0_1 m_1/layer_1_1",
        ),
        (
            "m_1/w_1=ids m_1/layer_0_1:Layer# m_1/layer_1_1:Layer# m_1/layer_2_1:Layer#",
            "embeddings=m_1/w_1#0",
            "m_1/layer_0_1 m_1/layer_1_1 m_1/layer_2_1",
        ),
        ("w=ids first:Gru second:Gru third:Gru", "embeddings=w#0", "first second third"),
        ("w=ids 0:A 1:Dropout 2:A 3:Dropout 4:A 5:Dropout", "embeddings=w#0", "0 2 4"),
        ("w=ids l.0:A l.1:A head.0:Linear head.1:Linear head.2:Linear head.3:Linear", "embeddings=w#0", "l.0 l.1"),
        ("w=ids l.0:A head.0:Linear head.1:Linear head.2:Linear", "embeddings=w#0", "l.0"),
        ("w=ids l.0:A between:Linear l.1:A", "embeddings=w#0", "l.0 l.1"),
        ("w=ids l.0:A l.1.dropout:Dropout l.1:A l.2:Mixer", "embeddings=w#0", "l.0 l.1 l.2"),
        *(
            (
                " ".join(["w=ids", *(f"l.{number}:{kind}" for number, kind in enumerate(kinds)), "norm:LayerNorm"]),
                "embeddings=w#0",
                " ".join(f"l.{number}" for number in range(len(kinds))),
            )
            for kinds in ("ABAB", "ABBABB", "ABBB", "BBBA", "AB", "ABC", "AABBCC", "AAAA")
        ),
    ],
)
def test_roles_of_models(steps: str, roles: str, layers: str) -> None:
    trace = traced(steps)
    assert layers_of(trace) == [f"{path}:output#0" for path in layers.split()]
    others = {role: key for role, key in trace.roles.items() if not role.startswith("layer.")}
    assert others == {"word": f"{steps.split('=')[0]}#0"} | dict(item.split("=") for item in roles.split())


def test_a_block_beside_the_layers_is_no_continuation_of_them() -> None:
    trace = Trace(BATCH)
    first = encoder_layer(trace, "l.0", trace.table("w", IDS))
    encoder_layer(trace, "l.2", encoder_layer(trace, "l.1", first))
    encoder_layer(trace, "side.0", first)
    assert layers_of(trace) == [f"l.{number}:output#0" for number in range(3)]


@pytest.mark.parametrize(
    ("modules", "layers"),
    [("1:A 2:A 3:A", "1 2 3"), ("1:Places 2:A 3:A 4:norm", "2 3"), ("1:A 2:dropout 3:A 4:dropout", "1 3"),
        ("1:A 2:B 3:A 4:B", "1 2 3 4"), ("1:B 2:A 3:A 4:A", ""), ("1:A 2:A 3:B", ""), ("1:A 2:B", ""),
        ("1:A 2:linear", "1")],
)  # fmt: skip
def test_the_first_and_last_modules_of_a_sequential_need_not_be_layers(modules: str, layers: str) -> None:
    trace = Trace(BATCH)

    def sequential(_: Value) -> Value:
        run_steps(trace, f"0=ids {modules}")
        return trace.hidden(2, 8)

    trace.module("", "Sequential", sequential, None)
    assert layers_of(trace) == [f"{number}:output#0" for number in layers.split()]


LEFT = [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]


RIGHT = [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]


@pytest.mark.parametrize(
    ("ids", "mask", "indices", "is_position"),
    [
        (IDS, LEFT, [[1, 1, 0, 1, 2], [0, 1, 2, 3, 4]], True),
        (IDS, LEFT, [[0, 1, 2, 3, 4]], True),
        (IDS, LEFT, [[0], [1], [2], [3], [4]], True),
        (IDS, LEFT, [[0, 0], [1, 1], [2, 2], [3, 3], [4, 4]], True),
        (IDS, LEFT, [[0, 0, 0], [1, 1, 1], [2, 2, 2], [3, 3, 3], [4, 4, 4]], False),
        (IDS, [[1, 0, 1, 1, 0], [0, 1, 0, 0, 1]], [[0, 1, 2, 3, 4]], True),
        ([[7, 9]], [[0, 1]], [[0, 1]], True),
        (IDS, RIGHT, [2, 3, 4, 1, 1, 2, 3, 4, 5, 6], True),  # flat, as in M2M100
        (IDS, RIGHT, list(range(10)), False),  # from example to example
    ],
)
def test_lookups_by_position_under_a_mask(ids: Any, mask: Any, indices: Any, is_position: bool) -> None:
    trace = Trace(embgrad.TokenBatch(ids, mask))
    for path, looked_up in (("word", trace.ids), ("segments", np.zeros_like(trace.ids)), ("place", indices)):
        trace.table(path, looked_up)
    assert trace.roles.get("position") == ("place#0" if is_position else None)


@pytest.mark.parametrize(
    ("steps", "alone", "with_others"),
    [
        ("w=ids l*2", "", ""),
        ("w=ids + l*2", "", "l.0 l.1"),
        ("w=ids l.0:A", "", ""),
        ("w=ids l*2 norm:LayerNorm head:Linear", "", ""),
        ("w=ids norm:LayerNorm l*2", "", ""),
        ("w=ids + norm:LayerNorm l*2", "", "l.0 l.1"),
        ("w=ids one*2 w=other other*2", "one.0 one.1, other.0 other.1", None),
        ("+ vision*2 w=ids l*3", "vision.0 vision.1, l.0 l.1 l.2", None),
        ("w=ids a.0:A + b.0:F + a.1:A + b.1:F", "a.0, a.1, b.0, b.1", None),
    ],
)
def test_the_chains_of_blocks_of_which_it_is_not_known_whether_they_take_the_ids(
    steps: str, alone: str, with_others: str | None
) -> None:
    reached = traced(steps).points
    assert isinstance(reached, Reached)
    for is_alone, expected in ((True, alone), (False, alone if with_others is None else with_others)):
        chains = reached.chains(alone=is_alone)
        paths = [" ".join(reached.calls[number].path for number in chain) for chain in chains]
        assert ", ".join(paths) == expected
        assert [reached.key(chain) for chain in chains] == [f"{path.split()[0]}:input#0" for path in paths]
        inside = reached.inside(chains)
        assert {reached.calls[number].path for number in inside} == {
            call.path for call in reached.calls if any(call.path.startswith(block) for block in " ".join(paths).split())
        }


def test_blocks_at_other_positions_are_chains_by_their_list() -> None:
    trace = Trace(BATCH)
    stack(trace, "vision.blocks", trace.hidden(2, 9, 8), 2)
    stack(trace, "layers", trace.table("word", IDS), 2)
    reached = trace.points
    assert isinstance(reached, Reached)
    assert [[reached.calls[number].path for number in chain] for chain in reached.chains(alone=True)] == [
        ["vision.blocks.0", "vision.blocks.1"],
        ["layers.0", "layers.1"],
    ]
