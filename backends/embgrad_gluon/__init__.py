"""The backend for MXNet Gluon. Importing this imports no framework.

PYTEST_DONT_REWRITE: pytest would warn of this package where it is imported before pytest's plugins are looked for.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from embgrad.backend import Call, Listener, Perturber, Point, Request, Run, TokenBatch, Weight
from embgrad.checkpoints import WeightTarget
from embgrad.toolkit import as_parts
from embgrad_gluon.importing import import_mxnet

__all__ = ["GluonBackend"]


class GluonBackend:
    """Gluon blocks of MXNet 1.9: any Block or HybridBlock, hybridised or not, and SymbolBlocks."""

    name: Final = "gluon"
    package: Final = "mxnet"
    extra: Final = "mxnet"
    supports: Final = frozenset(
        {"word", "training", "split", "native", "float64", "load_bert"}
        | {"modules", "override", "add", "edit", "parameters", "tables", "capture", "perturb", "weights"}
    )
    instead: Final = {
        "compile": "omit it: a hybridised net runs operator by operator, which takes about a tenth longer than its graph"
    }

    def owns(self, part: object) -> bool:
        """Return whether an object is a Gluon Block, by its type's name; MXNet is not imported."""
        return any(
            (kind.__module__, kind.__qualname__) == ("mxnet.gluon.block", "Block") for kind in type(part).__mro__
        )

    def versions(self) -> Mapping[str, str]:
        """Return MXNet's version, and gluonnlp's where it is imported."""
        import_mxnet()
        return {name: str(sys.modules[name].__version__) for name in ("mxnet", "gluonnlp") if name in sys.modules}

    def points(self, model: Any, batch: TokenBatch, call: Call | None = None) -> Sequence[Point]:
        """Return the points that a forward pass reaches, in order."""
        from embgrad_gluon.run import points

        return points(model, batch, call)

    def run(self, model: Any, batch: TokenBatch, request: Request) -> Run:
        """Run one forward pass, and a pullback for each set of cotangents."""
        from embgrad_gluon.run import run

        return run(model, batch, request)

    def bert(self, config: Mapping[str, Any]) -> tuple[Any, list[WeightTarget]]:
        """Build a `gluonnlp.model.BERTModel` of this configuration; return it and where its weights go."""
        from embgrad_gluon.bert import build

        return build(config)

    def bert_targets(self, model: Any) -> list[WeightTarget] | None:
        """Return where a checkpoint's weights go in an existing BERT; None for another model."""
        from embgrad_gluon.bert import targets

        return targets(model)

    def capture(self, model: Any, listener: Listener) -> AbstractContextManager[None]:
        """Report the user's own recorded passes through the model in this thread to the listener while it is open."""
        from embgrad_gluon.capture import capture

        return capture(model, listener)

    def perturb(self, model: Any, perturber: Perturber) -> AbstractContextManager[None]:
        """Add to values in the user's own passes through the model in this thread while the context is open."""
        from embgrad_gluon.capture import perturb

        return perturb(model, perturber)

    def weights(self, model: Any) -> Sequence[Weight]:
        """Return the floating parameters, trainable or not."""
        from embgrad_gluon.parameters import weights

        return weights(model)

    def alone(self, model: Any) -> AbstractContextManager[None]:
        """Keep other threads from running the model, or a part of it, while it is open."""
        from embgrad_gluon.parameters import alone

        return alone(model)

    def device_meter(self, model: Any) -> None:
        """Return None for a model on the CPU, and refuse a model on another device."""
        from embgrad_gluon.parameters import device_meter

        device_meter(model)

    def paths(self, model: Any) -> Collection[str]:
        """Return the attribute paths of the blocks, tables and parameters, and the names that Gluon gave the blocks."""
        from embgrad_gluon.scopes import scope_paths
        from embgrad_gluon.walk import paths

        parts = as_parts(model)
        return [*paths(parts), *scope_paths(parts)]
