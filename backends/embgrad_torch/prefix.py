"""The cache of a text's keys and values, which the `forward` of a causal language model of transformers takes."""

from __future__ import annotations

import copy
import sys
from typing import Any, Final

import torch

from embgrad.backend import Call
from embgrad_torch.inputs import parameters, unparallel

__all__ = ["CachedText", "prefix"]

#: The parameter that takes such a cache, under its newer name and its older.
CACHES: Final = ("cache", "past_key_values")

#: The parameter that limits the logits to the last positions; those of all take a third of GPT-2's time.
LAST: Final = "logits_to_keep"


def prefix(model: Any) -> CachedText | None:
    """Return an empty cache for a model; None where its `forward` takes none, or it has a decoder beside an encoder."""
    cache = getattr(sys.modules.get("transformers"), "DynamicCache", None)
    names = {parameter.name for parameter in parameters(model)}
    name = next((name for name in CACHES if name in names), None)
    if cache is None or name is None or not names >= {"input_ids", "use_cache"} or "decoder_input_ids" in names:
        return None
    return CachedText(cache(), name, LAST in names)


class CachedText:
    """The keys and values of a text, see `embgrad.backend.prefix.Prefix`.

    Args:
        cache: an empty cache, in which layers with a sliding window keep all positions too.
        name: the name of the parameter that takes it.
        limits: whether the model can limit its logits to the last positions.
    """

    def __init__(self, cache: Any, name: str, limits: bool) -> None:
        self._cache = cache
        self._name = name
        self._limits = limits

    @property
    def length(self) -> int:
        """The number of positions that are kept."""
        return int(self._cache.get_seq_length())

    def fill(self, model: Any, inputs: Any, last: int) -> Any:
        """Run a text, and keep its keys and values."""
        return self._run(model, inputs, self._cache, last)

    def after(self, length: int, last: int) -> Call:
        """Return a call that runs texts after the first positions of the text that is kept."""

        def call(model: Any, inputs: Any) -> Any:
            past = copy.deepcopy(self._cache)  # the model adds to it
            past.crop(length - self.length)  # a negative number removes as many
            past.batch_repeat_interleave(len(inputs["input_ids"]))
            return self._run(model, inputs, past, last)

        return call

    def _run(self, model: Any, inputs: Any, cache: Any, last: int) -> Any:
        # As indices: a number would make a view of the hidden states, by which a product takes three times as long.
        limit = {LAST: torch.arange(-last, 0, device=inputs["input_ids"].device)} if self._limits else {}
        return unparallel(model)(**inputs, use_cache=True, **{self._name: cache}, **limit)
