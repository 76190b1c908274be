"""PyTorch for embgrad: any `torch.nn.Module`, or a sequence of them. Importing this imports no framework."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from embgrad.backend import Call, Point, Request, Run
from embgrad.batch import TokenBatch
from embgrad.checkpoint import WeightTarget

__all__ = ["TorchBackend"]


class TorchBackend:
    """The backend for PyTorch."""

    name: Final = "torch"
    package: Final = "torch"
    extra: Final = "torch"
    supports: Final = frozenset({"word", "training", "split", "native", "float64", "load_bert"})

    def owns(self, part: object) -> bool:
        """Whether it is a `torch.nn.Module`, told by its type, without importing PyTorch."""
        return any(
            base.__module__ == "torch.nn.modules.module" and base.__qualname__ == "Module"
            for base in type(part).__mro__
        )

    def versions(self) -> Mapping[str, str]:
        """PyTorch's version, and that of transformers where it is in use."""
        return {name: str(sys.modules[name].__version__) for name in ("torch", "transformers") if name in sys.modules}

    def points(self, model: Any, batch: TokenBatch, call: Call | None = None) -> Sequence[Point]:
        """The lookups that a forward pass on the batch makes, in order."""
        from embgrad_torch.run import points

        return points(model, batch, call)

    def run(self, model: Any, batch: TokenBatch, request: Request) -> Run:
        """One forward pass, and a pullback for each set of cotangents; leaves the model as it was, also on errors."""
        from embgrad_torch.run import run

        return run(model, batch, request)

    def bert(self, config: Mapping[str, Any]) -> tuple[Any, list[WeightTarget]]:
        """A `transformers.BertModel` of that configuration, and where each of its weights goes."""
        from embgrad_torch.bert import bert

        return bert(config)
