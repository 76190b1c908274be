"""The suite's models as exported graphs or compiled by their framework."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any, Final

#: The architectures that take ids alone and return one tensor.
EXPORTED: Final = (
    "mean", "hidden", "probabilities", "positions", "twice", "two_tables", "time_major", "scaled", "tied",
)  # fmt: skip


def exported(framework: str, model: Any) -> Any:
    """Return a SavedModel, a SymbolBlock or a `torch.compile`d model; the model itself in the reference and in JAX."""
    if framework == "tensorflow":
        return _savedmodel(model)
    if framework == "gluon":
        return _symbolblock(model)
    if framework == "torch":
        import torch

        return torch.compile(model, backend="eager")
    return model


def _savedmodel(model: Any) -> Any:
    import tensorflow as tf

    class Module(tf.Module):  # type: ignore[misc]
        @tf.function(input_signature=[tf.TensorSpec((None, None), tf.int32, name="input_ids")], autograph=False)
        def __call__(self, input_ids: Any) -> Any:
            return model(input_ids)

    with tempfile.TemporaryDirectory(prefix="embgrad-fuzz-") as directory:
        module = Module()
        module.kept = model  # its variables are saved
        tf.saved_model.save(module, directory)
        return tf.saved_model.load(directory)


def _symbolblock(net: Any) -> Any:
    import mxnet as mx

    net(mx.nd.zeros((1, 2), dtype="int32"))
    with tempfile.TemporaryDirectory(prefix="embgrad-fuzz-") as directory, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(directory) / "net"
        net.export(str(path))
        return mx.gluon.SymbolBlock.imports(f"{path}-symbol.json", ["data"], f"{path}-0000.params")
