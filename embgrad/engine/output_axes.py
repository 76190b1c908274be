"""Probes that show whether an output's axis is the batch's positions, or as many classes or examples by chance."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from embgrad.backend.protocol import BoundModel, Request
from embgrad.backend.responses import Callback
from embgrad.common.arrays import to_numpy
from embgrad.common.tolerance import unit_roundoff
from embgrad.common.tracebacks import errors_of_model
from embgrad.errors import ObjectiveError
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.decoder import IDS, LABELS, decoder_of, positions_of
from embgrad.objectives.objective import Layouts, OpenAxesError, OpenPositionsError
from embgrad.toolkit.signature import as_parts

__all__ = ["expect_examples_first", "layouts_of", "learn_axes"]

#: The share of the largest change of an output up to which a change may be rounding.
SMALL: Final = 1e-3

#: By model, what probes have shown of its outputs.
_layouts: WeakKeyDictionary[Any, dict[Hashable, Layouts]] = WeakKeyDictionary()


def layouts_of(bound: BoundModel) -> Layouts:
    """Return what probes have shown of the model's outputs, to which further ones are added.

    It is empty, and remembered by the caller alone, where the user calls the model, or the model cannot be remembered.
    """
    known = bound.memory_of(_layouts) if bound.call is None else None
    return Layouts() if known is None else known.setdefault("outputs", Layouts())


def learn_axes(
    bound: BoundModel,
    batch: TokenBatch,
    layouts: Layouts,
    decode: Callable[[TokenBatch], TokenBatch],
    error: OpenAxesError | OpenPositionsError,
) -> None:
    """Add to what is known of the outputs what an objective has to know, from a probe; the pass can then be repeated.

    Args:
        decode: returns a batch with the ids of its decoder, see `embgrad.engine.encoder_decoders.with_decoder`.

    Raises:
        OpenAxesError: the probe did not show it.
    """
    if isinstance(error, OpenPositionsError):
        layouts.prefixed[error.output, error.more] = _is_prefixed(bound, batch, error)
        return
    layout = _layout(bound, batch, decode, error)
    key = (error.output, len(error.shape))
    if layouts.axes.get(key) == layout:  # known, and not enough
        raise error
    layouts.axes[key] = layout


def expect_examples_first(
    bound: BoundModel,
    batch: TokenBatch,
    name: str | None,
    shape: Sequence[int],
    layouts: Layouts,
    decode: Callable[[TokenBatch], TokenBatch],
) -> None:
    """Refuse an output with the positions on its first axis, which is seen by its length where there are as many examples.

    Where the lengths do not show it, a pass of another number of examples does, once for a model and output.
    """
    count, key = len(batch), (name, len(shape))
    if key in layouts.first or len(shape) < 2 or shape[0] != count:
        return
    if not batch.extras and count != batch.shape[1]:
        layouts.first.add(key)
        return
    if count == 1 or count != shape[1]:
        return
    decoder = decoder_of(decode(batch))
    if count not in (batch.shape[1], None if decoder is None else decoder.shape[1]):
        return
    few = batch.take([0, 1] if count > 2 else [0, 1, 0])
    try:
        alone = _output_of(bound, few, name).shape
    except errors_of_model():  # the model may take no other number of examples
        return
    _expect_first_axis(alone, few)
    layouts.first.add(key)


def _expect_first_axis(shape: tuple[int, ...], batch: TokenBatch) -> None:
    if shape[0] != len(batch):
        raise ObjectiveError(
            f"the output has the shape {shape} for {len(batch)} examples of {batch.shape[1]} positions: expected the "
            "examples on its first axis; transpose it in call=lambda model, inputs: ..., or give a callable"
        )


def _output_of(bound: BoundModel, batch: TokenBatch, output: str | None) -> np.ndarray:
    """Return an output of a forward pass."""
    read: list[np.ndarray] = []

    def respond(outputs: Mapping[str | None, np.ndarray]) -> Sequence[Mapping[str | None, np.ndarray]]:
        read.append(outputs[output])
        return []

    bound.run(batch, Request((), (Callback(respond, (output,)),), call=bound.call, pullback=False))
    (value,) = read
    return value


def _layout(
    bound: BoundModel, batch: TokenBatch, decode: Callable[[TokenBatch], TokenBatch], error: OpenAxesError
) -> tuple[int | None, ...]:
    """Return the shape of an output with None at the axes that are positions, from a pass of an example without its padding.

    Raises:
        OpenAxesError: the pass failed, or it did not show the axis in question.
    """
    decoded = decode(batch)
    example = _without_padding(batch, decoded, positions_of(_sides(error.shape, error.axis), decoded, error.output))
    if example is None:
        raise error
    try:
        alone = _output_of(bound, example, error.output).shape
    except errors_of_model() as failure:  # the model may take no other number of positions
        if _declares_classes(bound.model, error):
            return error.shape
        raise error from failure
    decoded_alone = decode(example)
    _expect_first_axis(alone, example)
    if len(alone) != len(error.shape):
        raise error
    layout: list[int | None] = [*error.shape]
    for axis, (size, whole) in enumerate(zip(alone, error.shape, strict=True)):
        if axis and size != whole:
            follows = size == positions_of(_sides(alone, axis), decoded_alone, error.output).shape[1]
            if not follows and axis == error.axis:
                raise error
            layout[axis] = None if follows else whole
    return tuple(layout)


def _is_prefixed(bound: BoundModel, batch: TokenBatch, error: OpenPositionsError) -> bool:
    """Return whether a pass with other ids shows that the batch's positions are the last ones of an output.

    In a causal model another id changes the output from the id's own position on: an example is run as it is, with another id at
    its first and at its last real position.
    """
    number = int(batch.real.sum(1).argmax())
    real = np.flatnonzero(batch.real[number])
    if len(real) < 2:
        return False
    first, last = int(real[0]), int(real[-1])
    examples = batch.take([number] * 3)
    ids = examples.ids.copy()
    for row, position in ((1, first), (2, last)):
        others = batch.ids[batch.real & (batch.ids != ids[row, position])]
        ids[row, position] = others[0] if len(others) else abs(ids[row, position] - 1)
    try:
        read = _output_of(bound, examples.replace(ids=ids), error.output)
    except errors_of_model():  # the model may take no other number of examples
        return False
    output = np.asarray(read, np.float64)
    if output.shape[:2] != (3, error.shape[1]):
        return False
    changes = np.abs(output[1:] - output[0]).max(-1)
    is_changed = changes > np.maximum(
        unit_roundoff(read.dtype) * np.abs(output).max(), SMALL * changes.max(1, keepdims=True)
    )
    own = error.more + np.array([first, last])
    return bool(is_changed.any(1).all() and (is_changed.argmax(1) == own).all())


def _sides(shape: Sequence[int], axis: int) -> tuple[int, int]:
    """Return the lengths by which `positions_of` distinguishes the encoder's positions from the decoder's."""
    return shape[0], shape[axis]


def _declares_classes(model: Any, error: OpenAxesError) -> bool:
    """Return whether the model's configuration says that its logits have as many classes as the axis is long."""
    if len(error.shape) != 2 or error.output not in (None, "logits"):
        return False
    return any(getattr(getattr(part, "config", None), "num_labels", None) == error.shape[1] for part in as_parts(model))


def _without_padding(batch: TokenBatch, decoded: TokenBatch, positions: TokenBatch) -> TokenBatch | None:
    """Return an example without its padding, of those that have some among these positions; None where there is none.

    Where only empty texts are padded, it is another text without its last token. It is repeated, so that the batch has not as
    many examples as positions.
    """
    counts = positions.real.sum(1)
    padded = np.flatnonzero((counts > 0) & (counts < positions.shape[1]) & batch.real.any(1))
    longer = np.flatnonzero(batch.real.sum(1) > 1) if IDS not in decoded.extras else padded
    if not len(padded) and not len(longer):
        return None
    number = int(padded[counts[padded].argmax()] if len(padded) else longer[0])
    real = batch.real[number].copy()
    if not len(padded):
        real[np.flatnonzero(real)[-1]] = False
    example = batch.take([number] * (3 if int(real.sum()) == 2 else 2))
    decoder = positions_of((len(batch), -1), decoded, None).real[number] if IDS in decoded.extras else None

    def cut(name: str, value: Any) -> Any:
        shape = tuple(getattr(value, "shape", ()))
        by_name = name.startswith("decoder") or name == LABELS
        is_of_decoder = decoder is not None and (by_name or shape[1:2] == (len(decoder),) != (len(real),))
        kept = decoder if is_of_decoder and decoder is not None else real
        axes = [axis for axis in range(1, len(shape)) if shape[axis] == len(kept)]
        array = to_numpy(value) if axes else value
        for axis in axes:
            array = np.compress(kept, array, axis)
        return array

    return example.replace(
        ids=example.ids[:, real],
        mask=None if example.mask is None else example.mask[:, real],
        types=None if example.types is None else example.types[:, real],
        tokens=None,
        words=None,
        extras={name: cut(name, value) for name, value in example.extras.items()},
    )
