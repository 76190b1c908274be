"""The cache of a text's keys and values, tuples that the `call` of a causal language model of transformers takes."""

from __future__ import annotations

from typing import Any, Final

import tensorflow as tf

from embgrad.backend import Call
from embgrad.toolkit import parameters_of

__all__ = ["CachedText", "prefix"]

#: The parameters of a `call` that takes keys and values.
TAKEN: Final = frozenset({"input_ids", "past_key_values", "use_cache", "return_dict"})


def prefix(model: Any) -> CachedText | None:
    """Return an empty cache for a model; None where its `call` takes none, or it has a decoder beside an encoder."""
    target = getattr(model, "call", None)
    names = {parameter.name for parameter in parameters_of(target)} if callable(target) else set()
    return CachedText() if names >= TAKEN and "decoder_input_ids" not in names else None


class CachedText:
    """The keys and values of a text, see `embgrad.backend.Prefix`: tensors whose last axes are positions and dimensions."""

    def __init__(self) -> None:
        self._past: Any = ()

    @property
    def length(self) -> int:
        """The number of positions that are kept."""
        tensors = tf.nest.flatten(self._past)
        return int(tensors[0].shape[-2]) if tensors and tensors[0] is not None else 0

    def fill(self, model: Any, inputs: Any, last: int) -> Any:
        """Run a text, and keep its keys and values."""
        returned = _run(model, inputs)
        self._past = returned.past_key_values
        return returned

    def after(self, length: int, last: int) -> Call:
        """Return a call that runs texts after the first positions of the text that is kept."""

        def call(model: Any, inputs: Any) -> Any:
            count = len(inputs["input_ids"])

            def repeated(tensor: Any) -> Any:
                return tf.repeat(tensor[..., :length, :], count, axis=tensor.shape.rank - 4)

            return _run(model, {**inputs, "past_key_values": tf.nest.map_structure(repeated, self._past)})

        return call


def _run(model: Any, inputs: Any) -> Any:
    return model({**inputs, "use_cache": True, "return_dict": True}, training=False)
