"""Choose outputs of two models that can be compared, where they return several or call them by other names."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from embgrad.backend.protocol import Request
from embgrad.backend.responses import Callback
from embgrad.comparison.recording import FINAL, Recording, Running, Tensor
from embgrad.errors import OutputError

__all__ = ["OUTPUTS", "with_common_output"]

#: The names under which a model's output is requested, in order: its only output or its logits, what a pooler returns, or the
#: last hidden states.
OUTPUTS: Final = (None, "pooled", "sequence")

#: The most outputs of a model that are read by their names.
MOST_OUTPUTS: Final = 8

#: The name of an output that no model has.
NO_NAME: Final = ""

#: The name under which an output is requested, and its values.
Named = tuple[str | None, Tensor]


def with_common_output(a: Recording, b: Recording) -> tuple[Recording, Recording]:
    """Return the recordings of two models with outputs of the same shape; as they are, with a note, where there are none.

    A model may return a tuple, for example, whose entries have no names, or hidden states where the other returns what it pools.
    Of several outputs those with the same name come first, then later ones, which are computed from the others.
    """
    finals = [side.tensors.get(FINAL) for side in (a, b)]
    shapes = [None if final is None else final.values.shape for final in finals]
    if shapes[0] == shapes[1] is not None:
        return a, b
    outputs = [_outputs(side) for side in (a, b)]
    pairs = [both for both in itertools.product(*outputs) if both[0][1].values.shape == both[1][1].values.shape]
    if pairs:
        first, second = max(pairs, key=lambda both: both[0][0] == both[1][0])
        return _with_output(a, first), _with_output(b, second)
    own, other = ("none" if shape is None else shape for shape in shapes)
    note = f"the outputs are not compared, of which none have one shape: {own} in a and {other} in b"
    return replace(a, notes=(*a.notes, note)), b


def _outputs(side: Recording) -> list[Named]:
    """Return the outputs of a model, or of a dump, by the names under which they are requested."""
    own = side.tensors.get(FINAL)
    found: list[Named] = [] if own is None else [(None, own)]
    live = side.live
    if live is None:
        return found
    before = live.outputs
    # Those inside of others, as a cache's, come last; of the rest the later ones first.
    names = [*reversed(_names(live))]
    names.sort(key=lambda name: name.count("."))
    for name in (*OUTPUTS[1:], *names[:MOST_OUTPUTS]):
        live.outputs = (name,)
        output = live.read_output()
        found += [] if output is None else [(name, output)]
    live.outputs = before
    return found


def _names(live: Running) -> Sequence[str]:
    """Return the names of a model's outputs."""
    nothing = Callback(lambda _: (), (NO_NAME,))
    try:
        live.bound.run(live.batch, Request((), (nothing,), call=live.bound.call, pullback=False))
    except OutputError as error:
        return error.names
    return ()


def _with_output(side: Recording, output: Named) -> Recording:
    name, tensor = output
    if side.live is not None and tensor is not side.tensors.get(FINAL):
        side.live.outputs = (name,)
    return replace(side, tensors={**side.tensors, FINAL: tensor})
