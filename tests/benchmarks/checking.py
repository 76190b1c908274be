"""PyTorch by hand with the checks that `gradients` makes, one after the other, for one model: the least that they take."""

from __future__ import annotations

import operator
import threading
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from embgrad_torch.versions import versions_of

__all__ = ["Checking"]

_place: Final = torch.Tensor.data_ptr
_trainable: Final = operator.attrgetter("requires_grad")
_gradient: Final = operator.attrgetter("grad")
_recorded: Final = torch.autograd._get_sequence_nr


class Checking:
    """The gradient of the pooled output's sum at a BERT's word lookup, with nothing general about it.

    What `gradients` promises is checked here, too: that the model is as it was before and after (attributes, modules,
    parameters' memory, gradients and flags, buffers' contents, random numbers), alone in its threads, uncompiled; that one lookup
    alone has the batch's ids, inside of its table; that the pass went the known way; that numbers are finite; and values,
    activations and objective are handed over in memory of their own. Nothing is put back, named, or said: it asserts.

    Args:
        model: a BERT of transformers.
        inputs: its arguments, as NumPy.
    """

    def __init__(self, model: Any, inputs: dict[str, np.ndarray]) -> None:
        self._model, self._inputs, self._ids = model, inputs, inputs["input_ids"]
        modules = list(model.modules())
        dicts = (vars(one) for one in modules), (one._parameters for one in modules), (one._buffers for one in modules)
        self._dicts = [*(one for several in dicts for one in several), *(one._modules for one in modules)]
        self._locks = [threading.RLock() for _ in modules]
        self._parameters, self._buffers = list(model.parameters()), list(model.buffers())
        self._contents = [one.clone() for one in self._buffers]
        embeddings = model.embeddings
        self._word = embeddings.word_embeddings
        self._others = (embeddings.position_embeddings, embeddings.token_type_embeddings)
        self._way: int | None = None

    def __call__(self) -> np.ndarray:
        """The gradient, (example, position, dim)."""
        for lock in self._locks:
            lock.acquire()
        stance = torch.compiler.set_stance("force_eager")
        stance.__enter__()
        drawn = torch.default_generator.get_state()
        before = self._state()
        start = _recorded()
        try:
            outputs, rows, mark = self._forward()
            way = _recorded() - start
            assert self._way in (None, way)
            self._way = way
            found = self._pulled_back(outputs.pooler_output, mark)
            result = {"values": found, "activations": rows, "ids": self._ids.copy(), "objective": "pooled"}
        finally:
            assert self._state() == before
            assert all(map(torch.equal, self._buffers, self._contents))
            torch.default_generator.set_state(drawn)
            stance.__exit__(None, None, None)
            for lock in self._locks:
                lock.release()
        values: np.ndarray = result["values"]
        return values

    def _state(self) -> list[Sequence[Any]]:
        assert all(map(torch.equal, self._buffers, self._contents))
        own = [list(map(get, self._parameters)) for get in (_place, _trainable)]
        return [versions_of(self._dicts, plain=True), *own, list(map(id, map(_gradient, self._parameters)))]

    def _forward(self) -> tuple[Any, np.ndarray, torch.Tensor]:
        """What the model returns, the rows, and the tensor whose gradient is theirs; what goes on is a clone of it."""
        marks: list[torch.Tensor] = []

        def hook(module: Any, arguments: Any, output: torch.Tensor) -> torch.Tensor:
            indices = arguments[0].numpy()
            assert indices.min() >= 0
            assert indices.max() < module.num_embeddings
            if indices.shape != self._ids.shape or not (indices == self._ids).all():
                return output
            marks.append(output.detach().requires_grad_())
            return marks[0].clone()

        handles = [one.register_forward_hook(hook) for one in (self._word, *self._others)]
        try:
            outputs = self._model(**{name: torch.tensor(one) for name, one in self._inputs.items()})
        finally:
            for handle in handles:
                handle.remove()
        (mark,) = marks
        return outputs, mark.detach().numpy().copy(), mark

    @staticmethod
    def _pulled_back(output: torch.Tensor, mark: torch.Tensor) -> np.ndarray:
        """The gradient for an objective that is computed in NumPy."""
        numbers = output.detach().numpy().copy()
        assert np.isfinite(numbers.sum(1, dtype=np.float64)).all()
        cotangent = torch.from_numpy(np.ones_like(numbers))
        found: np.ndarray = torch.autograd.grad(output, mark, cotangent)[0].numpy().copy()
        assert np.isfinite(found).all()
        return found
