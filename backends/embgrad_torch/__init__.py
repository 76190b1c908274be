"""PyTorch for embgrad: any `torch.nn.Module`, or a sequence of them. Importing this imports no framework.

PYTEST_DONT_REWRITE: pytest would warn of this package where it is imported before pytest's plugins are looked for.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

from embgrad.backend import defer

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

    points = defer("embgrad_torch.run", "points")
    run = defer("embgrad_torch.run", "run")
    paths = defer("embgrad_torch.walk", "paths")
    capture = defer("embgrad_torch.capture", "capture")
    perturb = defer("embgrad_torch.capture", "perturb")
    weights = defer("embgrad_torch.parameters", "weights")
    alone = defer("embgrad_torch.parameters", "alone")
    device_meter = defer("embgrad_torch.parameters", "device_meter")
    prefix = defer("embgrad_torch.prefix", "prefix")
    bert = defer("embgrad_torch.bert", "bert")
    bert_targets = defer("embgrad_torch.bert", "bert_targets")
