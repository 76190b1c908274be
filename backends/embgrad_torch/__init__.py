"""PyTorch for embgrad: any `torch.nn.Module`, or a sequence of them. Importing this imports no framework.

PYTEST_DONT_REWRITE: pytest would warn of this package where it is imported before pytest's plugins are looked for.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from embgrad.backend import Call, Listener, Point, Request, Run, Weight
from embgrad.checkpoints.load_bert import WeightTarget
from embgrad.inputs.batch import TokenBatch

__all__ = ["TorchBackend"]


@functools.cache
def _versions(loaded: tuple[str, ...]) -> Mapping[str, str]:
    return {name: str(sys.modules[name].__version__) for name in loaded}


class TorchBackend:
    """The backend for PyTorch."""

    name: Final = "torch"
    package: Final = "torch"
    extra: Final = "torch"
    supports: Final = frozenset(
        {"word", "training", "split", "native", "float64", "load_bert"}
        | {"modules", "override", "add", "edit", "parameters", "tables", "capture", "weights", "compile"}
    )

    def owns(self, part: object) -> bool:
        """Return whether the object is a `torch.nn.Module`, by its type, without importing PyTorch."""
        for base in type(part).__mro__:  # noqa: SIM110  # at each call, and a generator takes longer than the rest
            if base.__qualname__ == "Module" and base.__module__ == "torch.nn.modules.module":
                return True
        return False

    def versions(self) -> Mapping[str, str]:
        """PyTorch's version, and that of transformers where it is in use."""
        return dict(_versions(tuple([name for name in ("torch", "transformers") if name in sys.modules])))

    def points(self, model: Any, batch: TokenBatch, call: Call | None = None) -> Sequence[Point]:
        """Return the points that a forward pass on the batch reaches: lookups and modules, in order."""
        from embgrad_torch.run import points

        return points(model, batch, call)

    def run(self, model: Any, batch: TokenBatch, request: Request) -> Run:
        """One forward pass, and a pullback for each set of cotangents; leaves the model as it was, also on errors."""
        from embgrad_torch.run import run

        return run(model, batch, request)

    def paths(self, model: Any) -> Collection[str]:
        """The attribute paths of the modules and tables, also the further ones of modules that are shared."""
        from embgrad_torch.walk import paths

        return paths(model)

    def capture(self, model: Any, listener: Listener) -> AbstractContextManager[None]:
        """While it is open, the user's own passes through the model in this thread are told to the listener."""
        from embgrad_torch.capture import capture

        return capture(model, listener)

    def weights(self, model: Any) -> Sequence[Weight]:
        """The parameters and floating buffers, trainable or not."""
        from embgrad_torch.parameters import weights

        return weights(model)

    def alone(self, model: Any) -> AbstractContextManager[None]:
        """Meanwhile no other thread runs the model, or a part of it."""
        from embgrad_torch.parameters import alone

        return alone(model)

    def bert(self, config: Mapping[str, Any]) -> tuple[Any, list[WeightTarget]]:
        """A `transformers.BertModel` of that configuration, and where each of its weights goes."""
        from embgrad_torch.bert import bert

        return bert(config)

    def bert_targets(self, model: Any) -> list[WeightTarget] | None:
        """Return where each weight of a checkpoint belongs in an existing model; None for a model that is not a plain BERT."""
        from embgrad_torch.bert import bert_targets

        return bert_targets(model)
