"""The test of `embgrad doctor`, run in a separate process: one small gradient, or value, compared with its closed form."""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

__all__ = ["main"]

VOCAB, DIM, IDS = 5, 3, ((1, 2, 4), (3, 1, 1))

#: The exact gradient at each position of the sum, over dim, of the mean of the looked-up rows.
EXPECTED: Final = 1 / len(IDS[0])


def main(framework: str, out: str) -> None:
    """Test the framework and write the outcome as JSON.

    Args:
        framework: the name of a backend, or "keras".
        out: the path of the file to write.
    """
    outcome: dict[str, Any] = {"works": False, "tried": framework in MODELS, "error": "", "seconds": 0.0}
    outcome |= {"versions": {}, "classes": {}}
    start = time.perf_counter()
    try:
        outcome["works"], outcome["error"] = _try(framework)
        outcome["seconds"] = time.perf_counter() - start
        outcome["versions"] = _versions(framework)
        outcome["classes"] = {name: _import_error(*target) for name, target in CLASSES.get(framework, {}).items()}
    except BaseException as error:  # any error of a broken installation is the outcome to report
        outcome["error"] = outcome["error"] or f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    Path(out).write_text(json.dumps(outcome), encoding="utf-8")


def _try(framework: str) -> tuple[bool, str]:
    from embgrad.backend.registry import bind
    from embgrad.engine.evaluate import evaluate
    from embgrad.engine.gradients import gradients
    from embgrad.keras.choice import framework_named
    from embgrad.objectives.objectives import Sum

    framework_named(framework)  # raises where Keras's backend cannot be used
    if framework not in MODELS:  # a third party's backend, without a model here: only test that it can be imported
        importlib.import_module(framework_named(framework).package)
        return True, ""
    table = np.arange(VOCAB * DIM, dtype=np.float32).reshape(VOCAB, DIM)
    model = MODELS[framework](table)
    if not bind(model).has_gradients:
        values, expected = evaluate(model, np.array(IDS), Sum()), table[np.array(IDS)].mean(1).sum(1)
        wrong = float(np.abs(values - expected).max()) > 1e-5
        return not wrong, f"the values are wrong: {values.tolist()}, expected {expected.tolist()}" if wrong else ""
    result = gradients(model, np.array(IDS), Sum())
    wrong = float(np.abs(result.values - EXPECTED).max()) > 1e-6 or bool(
        (result.activations != table[np.array(IDS)]).any()
    )
    return not wrong, f"the gradient is wrong: {result.values[0, 0].tolist()}, expected {EXPECTED:.6f}" if wrong else ""


def _torch(table: np.ndarray) -> Any:
    import torch

    class Model(torch.nn.Module):  # type: ignore[misc]  # torch is not installed where types are checked
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding.from_pretrained(torch.tensor(table), freeze=False)

        def forward(self, ids: Any) -> Any:
            return self.table(ids).mean(1)

    return Model()


def _tensorflow(table: np.ndarray) -> Any:
    import tensorflow as tf

    class Model(tf.Module):  # type: ignore[misc]  # not installed where types are checked
        def __init__(self) -> None:
            super().__init__()
            self.table = tf.Variable(table)

        def __call__(self, ids: Any) -> Any:
            return tf.reduce_mean(tf.nn.embedding_lookup(self.table, ids), 1)

    return Model()


def _gluon(table: np.ndarray) -> Any:
    from embgrad.backend.registry import backend_named

    backend_named("gluon").versions()  # imports MXNet, with the names that it needs from NumPy
    import mxnet as mx

    class Model(mx.gluon.HybridBlock):  # type: ignore[misc]  # not installed where types are checked
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.table = mx.gluon.nn.Embedding(VOCAB, DIM)

        def hybrid_forward(self, F: Any, ids: Any) -> Any:  # noqa: N803  # the name that MXNet passes
            return self.table(ids).mean(axis=1)

    model = Model()
    model.initialize()
    model.table.weight.set_data(mx.nd.array(table))
    return model


def _jax(table: np.ndarray) -> Any:
    import jax
    from flax import nnx

    class Model(nnx.Module):  # type: ignore[misc]  # not installed where types are checked
        def __init__(self) -> None:
            self.table = nnx.Embed(VOCAB, DIM, rngs=nnx.Rngs(0))
            self.table.embedding[...] = jax.numpy.asarray(table)

        def __call__(self, ids: Any) -> Any:
            return self.table(ids).mean(1)

    return Model()


def _onnx(table: np.ndarray) -> Any:
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("ReduceMean", ["rows", "axis"], ["means"], keepdims=0),
    ]
    weights = [numpy_helper.from_array(table, "table"), numpy_helper.from_array(np.array([1]), "axis")]
    taken = helper.make_tensor_value_info("ids", TensorProto.INT64, ["example", "position"])
    made = helper.make_tensor_value_info("means", TensorProto.FLOAT, ["example", "dim"])
    graph = helper.make_graph(nodes, "mean", [taken], [made], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _keras(table: np.ndarray) -> Any:
    import keras

    model = keras.Sequential([keras.layers.Embedding(VOCAB, DIM), keras.layers.GlobalAveragePooling1D()])
    model.build((None, len(IDS[0])))
    model.layers[0].set_weights([table])
    return model


MODELS: Final[Mapping[str, Callable[[np.ndarray], Any]]] = {
    "torch": _torch,
    "tensorflow": _tensorflow,
    "gluon": _gluon,
    "jax": _jax,
    "onnx": _onnx,
    "keras": _keras,
}

#: By framework, the classes that embgrad.zoo.load_bert builds: each with its module and its name there.
CLASSES: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "torch": {"transformers.BertModel": ("transformers", "BertModel")},
    "tensorflow": {"transformers.TFBertModel": ("transformers", "TFBertModel")},
    "gluon": {"gluonnlp.model.BERTModel": ("gluonnlp.model", "BERTModel")},
    "jax": {"embgrad_jax.bert.Bert": ("embgrad_jax.bert", "Bert")},
    "keras": {"keras_hub.models.BertBackbone": ("keras_hub.models", "BertBackbone")},
}


def _import_error(module: str, name: str) -> str:
    """Return an empty string if the class can be imported, else the error."""
    try:
        getattr(importlib.import_module(module), name)
    except BaseException as error:  # any error of a broken installation is the outcome to report
        return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return ""


def _versions(framework: str) -> dict[str, str]:
    from embgrad.keras.choice import KERAS, framework_named

    own = {KERAS: str(sys.modules[KERAS].__version__)} if framework == KERAS else {}
    return {**framework_named(framework).versions(), **own}


if __name__ == "__main__":
    main(*sys.argv[1:3])
