"""The suite's models as ONNX graphs, whose nodes have names as PyTorch's exporter writes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["Builder", "Harness"]

SCORES = ["example", "classes"]
TYPES = {"float64": TensorProto.DOUBLE, "float32": TensorProto.FLOAT}


class Builder:
    """A graph that grows by a node for each call; a node's name is its scope and its operator."""

    def __init__(self, weights: Mapping[str, np.ndarray], dtype: str) -> None:
        self.type = TYPES[dtype]
        self.weights = {name: value.astype(dtype) for name, value in weights.items()}
        self.nodes: list[Any] = []
        self.inputs = ["input_ids"]
        self.outputs: list[str] = []
        self.shapes: dict[str, list[str]] = {}
        self.numbers: Counter[tuple[str, str]] = Counter()

    def __call__(self, op: str, *inputs: str, scope: str = "", name: str = "", **attributes: Any) -> str:
        output, number = name or f"t{len(self.nodes)}", self.numbers[scope, op]
        self.numbers[scope, op] += 1
        node_name = f"{scope}/{op}" + (f"_{number}" if number else "")
        self.nodes.append(helper.make_node(op, inputs, [output], name=node_name if scope else "", **attributes))
        return output

    def constant(self, value: Any) -> str:
        name = f"c{len(self.nodes)}"
        self.nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(value))))
        return name

    def number(self, value: float) -> str:
        return self("Cast", self.constant(np.float64(value)), to=self.type)

    def lookup(self, table: str = "E", ids: str = "input_ids", scope: str = "") -> str:
        return self("Gather", table, ids, scope=scope)

    def mean(self, hidden: str, axis: int = 1, keepdims: int = 0) -> str:
        return self("ReduceMean", hidden, self.constant(np.array([axis])), keepdims=keepdims)

    def bend(self, hidden: str, scope: str = "", weight: str = "W1", bias: str = "b1") -> str:
        dense = f"{scope}/dense" if scope else ""
        product = self("MatMul", hidden, weight, scope=dense)
        return self("Tanh", self("Add", product, bias, scope=dense), scope=scope)

    def classify(self, hidden: str, name: str = "logits") -> None:
        self("Add", self("MatMul", hidden, "W"), "b", name=name)
        self.outputs.append(name)

    def positions(self, scope: str = "") -> str:
        count = self("Gather", self("Shape", "input_ids"), self.constant(np.int64(1)))
        numbers = self("Range", self.constant(np.int64(0)), count, self.constant(np.int64(1)))
        return self.lookup("E2", self("Unsqueeze", numbers, self.constant(np.array([0]))), scope)

    def model(self) -> Any:
        taken = {name for node in self.nodes for name in node.input}
        graph = helper.make_graph(
            self.nodes,
            "graph",
            [helper.make_tensor_value_info(name, TensorProto.INT64, ["example", "position"]) for name in self.inputs],
            [helper.make_tensor_value_info(name, self.type, self.shapes.get(name, SCORES)) for name in self.outputs],
            [numpy_helper.from_array(value, name) for name, value in self.weights.items() if name in taken],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def _mean(b: Builder) -> None:
    b.classify(b.mean(b.lookup()))


def _hidden(b: Builder) -> None:
    b.classify(b.bend(b.mean(b.lookup())))


def _probabilities(b: Builder) -> None:
    logits = b("Add", b("MatMul", b.mean(b.lookup()), "W"), "b")
    b.outputs.append(b("Softmax", logits, name="probabilities", axis=-1))


def _masked(b: Builder) -> None:
    b.inputs.append("attention_mask")
    mask = b("Unsqueeze", b("Cast", "attention_mask", to=b.type), b.constant(np.array([2])))
    axes = b.constant(np.array([1]))
    summed = b("ReduceSum", b("Mul", b.lookup(), mask), axes, keepdims=0)
    b.classify(b("Div", summed, b("ReduceSum", mask, axes, keepdims=0)))


def _positions(b: Builder) -> None:
    b.classify(b.bend(b.lookup()))
    b.shapes["logits"] = ["example", "position", "classes"]


def _named(b: Builder) -> None:
    b("Identity", b.bend(b.lookup()), name="last_hidden_state")
    b("Identity", b.mean("last_hidden_state"), name="pooler_output")
    b.outputs += ["last_hidden_state", "pooler_output"]
    b.shapes["last_hidden_state"] = ["example", "position", "dim"]


def _twice(b: Builder) -> None:
    b.classify(b("Add", b.mean(b.lookup()), b.mean(b("Tanh", b.lookup()))))


def _two_tables(b: Builder) -> None:
    b.classify(b("Add", b.mean(b.lookup()), b.mean(b("Tanh", b.lookup("E2")))))


def _flat(b: Builder) -> None:
    rows = b.lookup(ids=b("Reshape", "input_ids", b.constant(np.array([-1]))))
    shape = b("Concat", b("Shape", "input_ids"), b.constant(np.array([-1])), axis=0)
    b.classify(b.mean(b("Reshape", rows, shape)))


def _time_major(b: Builder) -> None:
    b.classify(b.mean(b.lookup(ids=b("Transpose", "input_ids", perm=[1, 0])), axis=0))


def _scaled(b: Builder) -> None:
    b.classify(b.mean(b("Mul", b.number(3.0), b.lookup())))


def _positional(b: Builder) -> None:
    b.classify(b.mean(b("Tanh", b("Add", b.positions(), b.lookup()))))


def _no_lookup(b: Builder) -> None:
    first = b("Gather", "W", b.constant(np.array([0])))
    means = b.mean(b("Cast", "input_ids", to=b.type), keepdims=1)
    b("Add", b("MatMul", means, first), "b", name="logits")
    b.outputs.append("logits")


def _stack(b: Builder, layers: list[tuple[str, str]]) -> None:
    """Add the embeddings and layers, each a scope and the end of its weights' names."""
    rows = b.lookup(scope="/embeddings/word")
    hidden = b("Add", rows, b.positions("/embeddings/position"), scope="/embeddings")
    for scope, suffix in layers:
        bent = b.bend(hidden, scope, f"W1{suffix}", f"b1{suffix}")
        hidden = b("Add", hidden, bent, scope=scope)
    b.classify(b.mean(hidden))


def _layers(b: Builder) -> None:
    b.weights |= {f"{name}.{number}": b.weights[name] for name in ("W1", "b1") for number in range(3)}
    _stack(b, [(f"/layers.{number}", f".{number}") for number in range(3)])


def _repeated(b: Builder) -> None:
    _stack(b, [("/layer", "")] * 3)


def _tied(b: Builder) -> None:
    b("MatMul", b.bend(b.lookup()), b("Transpose", "E", perm=[1, 0]), name="logits")
    b.outputs.append("logits")
    b.shapes["logits"] = ["example", "position", "rows"]


def _mixing(b: Builder) -> None:
    means = b.mean(b.lookup())
    b.classify(b("Sub", means, b.mean(means, axis=0, keepdims=1)))


def _raises(b: Builder) -> None:
    b.classify(b("Reshape", b.mean(b.lookup()), b.constant(np.array([7, 7, 7]))))


class Harness:
    """Builds protos; what `state` reports is all that there is of one."""

    backend = "onnx"
    precisions = ("float64", "float32")

    def build(
        self, architecture: str, weights: Mapping[str, np.ndarray], *, dtype: str | None = None, frozen: bool = False
    ) -> Any:
        builder = Builder(weights, dtype or weights["W"].dtype.name)
        globals()[f"_{architecture}"](builder)
        model = builder.model()
        onnx.checker.check_model(model)
        return model

    def state(self, model: Any) -> Mapping[str, Any]:
        return {"content": model.SerializeToString(deterministic=True)}

    def disturb(self, model: Any) -> None:
        """There is nothing that a call could lose."""

    def parameter(self, model: Any, weight: str) -> tuple[str, bool]:
        return weight, False

    def logit(self, index: int) -> Callable[[Any], Any]:
        return lambda outputs: outputs["logits"][:, index]
