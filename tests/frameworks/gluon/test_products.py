"""Products with parameters of no block of their own are points by the names of the parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from embgrad_gluon.importing import import_mxnet

import embgrad

mx = import_mxnet()

VOCAB, DIM = 20, 4
IDS = np.array([[1, 2, 3], [4, 5, 6]])


class Layer(mx.gluon.HybridBlock):  # type: ignore[misc]
    """A layer with two matrices."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.v, self.w = (self.params.get(name, shape=(DIM, DIM)) for name in "vw")
            self.b = self.params.get("b", shape=(DIM,))

    def hybrid_forward(self, F: Any, x: Any, v: Any, w: Any, b: Any) -> Any:
        return F.tanh(F.FullyConnected(F.tanh(F.dot(x, v)), w, b, num_hidden=DIM, flatten=False))


class Model(mx.gluon.HybridBlock):  # type: ignore[misc]
    """Layers, one of Gluon's own, and a matrix and a table of the model itself."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.table, self.last = (self.params.get(n, shape=(s, DIM)) for n, s in (("table", VOCAB), ("last", DIM)))
            self.stack = mx.gluon.nn.HybridSequential()
            self.stack.add(Layer(), Layer(), mx.gluon.nn.Dense(DIM, flatten=False, in_units=DIM))

    def hybrid_forward(self, F: Any, ids: Any, table: Any, last: Any) -> Any:
        x = self.stack(F.Embedding(ids, table, VOCAB, DIM))
        return F.dot(x, last, transpose_b=True).sum(axis=(1, 2))


@pytest.mark.parametrize("hybrid", [False, True])
def test_a_product_with_a_parameter_of_no_block_is_a_point(hybrid: bool) -> None:
    """Each has its values and its gradient, with the bias that the operator adds, and is replaced."""
    mx.random.seed(0)
    model = Model()
    model.initialize(mx.init.Normal(1.0))
    if hybrid:
        model.hybridize()
    paths = [point.path for point in embgrad.points(model, IDS) if point.lookup is None]
    inner = [f"stack.{layer}{name}" for layer in "01" for name in ("", ".v", ".w")]
    assert paths == ["stack", *inner, "stack.2", "last"]
    first, second, dense = model.stack
    v0, w0, b0, v1, w1, b1, w2, b2, last = (
        parameter.data().asnumpy()
        for parameter in (first.v, first.w, first.b, second.v, second.w, second.b, dense.weight, dense.bias, model.last)
    )
    entered = np.tanh(np.tanh(model.table.data().asnumpy()[IDS] @ v0) @ w0.T + b0)
    product = entered @ v1
    added = np.tanh(product) @ w1.T + b1
    out = (np.tanh(added) @ w2.T + b2) @ last.T
    behind = (np.broadcast_to(last.sum(0), out.shape) @ w2) * (1 - np.tanh(added) ** 2)
    before = (behind @ w1) * (1 - np.tanh(product) ** 2)
    wanted = {
        "stack.1.v:input": (entered, before @ v1.T),
        "stack.1.v": (product, before),
        "stack.1.w": (added, behind),
        "last": (out, np.ones_like(out)),
    }
    results = embgrad.gradients(model, IDS, embgrad.Sum(), at=list(wanted))
    for name, (values, gradient) in wanted.items():
        np.testing.assert_allclose(results[name].activations, values, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(results[name].values, gradient, rtol=1e-4, atol=1e-5)
    changed = embgrad.gradients(
        model, IDS, embgrad.Sum(), at="stack.1.w", override={"stack.1.v": np.zeros_like(product)}
    )
    np.testing.assert_allclose(changed.activations, np.broadcast_to(b1, product.shape), atol=1e-6)
