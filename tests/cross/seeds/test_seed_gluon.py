"""S2: a Gluon model from a user: the gradient at the Embedding's output, and the table's for each sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from embgrad_gluon import import_mxnet

import embgrad

mx = import_mxnet()
IDS = np.array([[4, 7, 7, 1], [9, 4, 2, 2], [0, 5, 9, 9]])
LABELS = np.array([0, 2, 1])


def recurrent() -> Any:
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.Embedding(12, 6), mx.gluon.rnn.LSTM(5, layout="NTC"), mx.gluon.nn.Dense(3))
    return net


def convolutional() -> Any:
    class TextCNN(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.first = mx.gluon.nn.Embedding(12, 6)
                self.convolution = mx.gluon.nn.Conv1D(4, 2, activation="tanh")
                self.pool = mx.gluon.nn.GlobalMaxPool1D()
                self.drop = mx.gluon.nn.Dropout(0.5)
                self.head = mx.gluon.nn.Dense(3)

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return self.head(self.drop(self.pool(self.convolution(self.first(x).transpose((0, 2, 1))))))

    return TextCNN()


def bag() -> Any:
    class Bag(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            with self.name_scope():
                self.rows = self.params.get("rows", shape=(12, 6))
                self.head = mx.gluon.nn.Dense(3, in_units=6)

        def hybrid_forward(self, F: Any, x: Any, rows: Any) -> Any:
            return self.head(F.Embedding(x, rows, input_dim=12, output_dim=6).tanh().mean(axis=1))

    return Bag()


NETS = {"recurrent": recurrent, "convolutional": convolutional, "bag": bag}


def built(kind: str) -> Any:
    mx.random.seed(3)
    net = NETS[kind]()
    net.initialize(mx.init.Normal(0.5))
    net.cast("float64")
    net(mx.nd.array(IDS, dtype="float64"))
    return net


def table_of(net: Any) -> Any:
    return next(p for p in net.collect_params().values() if p.shape == (12, 6))


def by_split_backward(net: Any) -> np.ndarray:
    """The outputs split, one `backward(retain_graph=True)` a sample, each gradient copied: (batch, vocab, dim).

    Recorded in training mode with dropout at zero, since MXNet's max pooling has a wrong gradient otherwise.
    """
    for block in _blocks(net):
        if isinstance(block, mx.gluon.nn.Dropout):
            block._rate = 0.0
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    with mx.autograd.record():
        losses = mx.nd.split(loss_of(net(mx.nd.array(IDS, dtype="float64")), mx.nd.array(LABELS)), 3, axis=0)
    found = []
    for loss in losses:
        loss.backward(retain_graph=True)
        found.append(table_of(net).grad().asnumpy().copy())
    return np.stack(found)


def _blocks(block: Any) -> list[Any]:
    return [block, *(inner for child in block._children.values() for inner in _blocks(child))]


@pytest.mark.parametrize("kind", NETS)
@pytest.mark.parametrize("hybridised", [False, True])
def test_seed_gluon_for_each_sample(kind: str, hybridised: bool) -> None:
    net = built(kind)
    expected = by_split_backward(built(kind))
    if hybridised:
        net.hybridize(static_alloc=True)
        net(mx.nd.array(IDS, dtype="float64"))
    for split in (False, True):
        result = embgrad.gradients(net, mx.nd.array(IDS), embgrad.CrossEntropy(LABELS), split=split)
        dense = np.stack([one.to_dense() for one in result.per_example()])
        np.testing.assert_allclose(dense, expected, atol=1e-9)
        np.testing.assert_allclose(result.table().to_dense(), expected.sum(0), atol=1e-9)
    assert net._active is hybridised


@pytest.mark.parametrize("kind", NETS)
def test_seed_gluon_at_the_embeddings_output(kind: str) -> None:
    """By finite differences of the net itself, through a table in which each position has a row of its own."""
    net = built(kind)
    result = embgrad.gradients(net, IDS, embgrad.CrossEntropy(LABELS))
    table = table_of(net)
    rows = table.data().asnumpy()

    def loss(moved: np.ndarray) -> float:
        return float(
            embgrad.gradients(net, IDS, embgrad.CrossEntropy(LABELS), override={"word": moved}).objective.sum()
        )

    np.testing.assert_array_equal(result.activations, rows[IDS])
    random = np.random.default_rng(0)
    for _ in range(3):
        direction = random.normal(size=result.shape)
        slope = (loss(rows[IDS] + 1e-5 * direction) - loss(rows[IDS] - 1e-5 * direction)) / 2e-5
        assert slope == pytest.approx(float((result.values * direction).sum()), rel=1e-6)


@pytest.mark.parametrize("request_", ["write", "add", "null"])
def test_seed_gluon_whatever_grad_req_says(request_: str) -> None:
    net = built("recurrent")
    expected = embgrad.gradients(net, IDS, embgrad.CrossEntropy(LABELS))
    table_of(net).grad_req = request_
    before = None
    if request_ != "null":
        with mx.autograd.record():
            net(mx.nd.array(IDS, dtype="float64")).sum().backward()
        before = table_of(net).grad().asnumpy().copy()
        assert before.any()
    result = embgrad.gradients(net, IDS, embgrad.CrossEntropy(LABELS))
    np.testing.assert_array_equal(result.values, expected.values)
    assert table_of(net).grad_req == request_
    if before is not None:
        np.testing.assert_array_equal(table_of(net).grad().asnumpy(), before)


def test_seed_gluon_exported_and_imported(tmp_path: Path) -> None:
    net = built("convolutional")
    expected = embgrad.gradients(net, IDS, embgrad.CrossEntropy(LABELS))
    net.hybridize()
    net(mx.nd.array(IDS, dtype="float64"))
    net.export(str(tmp_path / "net"))
    block = mx.gluon.SymbolBlock.imports(str(tmp_path / "net-symbol.json"), ["data"], str(tmp_path / "net-0000.params"))
    block.cast("float64")
    result = embgrad.gradients(block, mx.nd.array(IDS, dtype="float64"), embgrad.CrossEntropy(LABELS))
    np.testing.assert_allclose(result.values, expected.values, atol=1e-9)


def test_seed_gluon_over_a_training_run() -> None:
    captured, alone = built("recurrent"), built("recurrent")
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    tables: list[np.ndarray] = []

    def train(net: Any) -> None:
        trainer = mx.gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.05})
        for _ in range(3):
            with mx.autograd.record():
                loss = loss_of(net(mx.nd.array(IDS, dtype="float64")), mx.nd.array(LABELS))
            loss.backward()
            tables.append(table_of(net).grad().asnumpy().copy())
            trainer.step(len(IDS))

    train(alone)
    with embgrad.capture(captured, keep="mean") as tap:
        train(captured)
    np.testing.assert_allclose(tap.mean().to_dense(), np.mean(tables[:3], axis=0), atol=1e-12)
    for one, other in zip(captured.collect_params().values(), alone.collect_params().values(), strict=True):
        np.testing.assert_array_equal(one.data().asnumpy(), other.data().asnumpy())
