"""The backend for MXNet Gluon. Importing this imports no framework.

PYTEST_DONT_REWRITE: pytest would warn of this package where it is imported before pytest's plugins are looked for.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import Any, Final

from embgrad.backend import defer
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

    points = defer("embgrad_gluon.run", "points")
    run = defer("embgrad_gluon.run", "run")
    bert = defer("embgrad_gluon.bert", "build")
    bert_targets = defer("embgrad_gluon.bert", "targets")
    capture = defer("embgrad_gluon.capture", "capture")
    perturb = defer("embgrad_gluon.capture", "perturb")
    weights = defer("embgrad_gluon.parameters", "weights")
    alone = defer("embgrad_gluon.parameters", "alone")
    device_meter = defer("embgrad_gluon.parameters", "device_meter")

    def paths(self, model: Any) -> Collection[str]:
        """Return the attribute paths of the blocks, tables and parameters, and the names that Gluon gave the blocks."""
        from embgrad_gluon.scopes import scope_paths
        from embgrad_gluon.walk import paths

        parts = as_parts(model)
        return [*paths(parts), *scope_paths(parts)]
