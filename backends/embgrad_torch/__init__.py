"""PyTorch for embgrad: any `torch.nn.Module`, or a sequence of them. Importing this imports no framework.

PYTEST_DONT_REWRITE: pytest would warn of this package where it is imported before pytest's plugins are looked for.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from embgrad.backend import Call, Listener, Perturber, Point, Prefix, Request, Run, TokenBatch, Weight
from embgrad.checkpoints import WeightTarget
from embgrad.toolkit import MemoryMeter

__all__ = ["TorchBackend"]


class TorchBackend:
    """The backend for PyTorch."""

    name: Final = "torch"
    package: Final = "torch"
    extra: Final = "torch"
    supports: Final = frozenset(
        {"word", "training", "split", "native", "float64", "load_bert"}
        | {"modules", "override", "add", "edit", "parameters", "tables", "capture", "perturb", "weights"}
    )
    instead: Final = {
        "compile": "omit it, and pass torch.compile(model) itself where you use it: embgrad runs its Python, because compiled "
        "code hides its lookups"
    }

    def owns(self, part: object) -> bool:
        """Return whether the object is a `torch.nn.Module`, by its type, without importing PyTorch."""
        for base in type(part).__mro__:  # noqa: SIM110  # a generator is slower than the loop
            if base.__qualname__ == "Module" and base.__module__ == "torch.nn.modules.module":
                return True
        return False

    def versions(self) -> Mapping[str, str]:
        """Return PyTorch's version, and that of transformers where it is in use."""
        return {name: str(sys.modules[name].__version__) for name in ("torch", "transformers") if name in sys.modules}

    def points(self, model: Any, batch: TokenBatch, call: Call | None = None) -> Sequence[Point]:
        """Return the points that a forward pass on the batch reaches: lookups and modules, in order."""
        from embgrad_torch.run import points

        return points(model, batch, call)

    def run(self, model: Any, batch: TokenBatch, request: Request) -> Run:
        """Run one forward pass, and a pullback for each set of cotangents; restore the model, also after an error."""
        from embgrad_torch.run import run

        return run(model, batch, request)

    def paths(self, model: Any) -> Collection[str]:
        """Return the attribute paths of the modules and tables, including every path of a shared module."""
        from embgrad_torch.walk import paths

        return paths(model)

    def capture(self, model: Any, listener: Listener) -> AbstractContextManager[None]:
        """Report the user's own passes through the model in this thread to the listener while the context is open."""
        from embgrad_torch.capture import capture

        return capture(model, listener)

    def perturb(self, model: Any, perturber: Perturber) -> AbstractContextManager[None]:
        """Add to values in the user's own passes through the model in this thread while the context is open."""
        from embgrad_torch.capture import perturb

        return perturb(model, perturber)

    def weights(self, model: Any) -> Sequence[Weight]:
        """Return the parameters and floating buffers, trainable or not."""
        from embgrad_torch.parameters import weights

        return weights(model)

    def alone(self, model: Any) -> AbstractContextManager[None]:
        """Hold the model's locks: no other thread runs the model, or a part of it, while the context is open."""
        from embgrad_torch.parameters import alone

        return alone(model)

    def device_meter(self, model: Any) -> MemoryMeter | None:
        """Return the meter of the memory of the model's GPU; None for a model on the CPU."""
        from embgrad_torch.parameters import device_meter

        return device_meter(model)

    def prefix(self, model: Any) -> Prefix | None:
        """Return an empty cache of a text's keys and values; None for a model that takes none."""
        from embgrad_torch.prefix import prefix

        return prefix(model)

    def bert(self, config: Mapping[str, Any]) -> tuple[Any, list[WeightTarget]]:
        """Return a `transformers.BertModel` of that configuration, and where each of its weights goes."""
        from embgrad_torch.bert import bert

        return bert(config)

    def bert_targets(self, model: Any) -> list[WeightTarget] | None:
        """Return where each weight of a checkpoint belongs in an existing model; None for a model that is not a plain BERT."""
        from embgrad_torch.bert import bert_targets

        return bert_targets(model)
