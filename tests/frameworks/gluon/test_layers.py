"""Layers between the lookup and the output, each in float64 and float32 against finite differences in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.frameworks.gluon.helpers import DIM, ROWS, built, differences, distinct_ids, mx, pulled_back, relative

nn, rnn = mx.gluon.nn, mx.gluon.rnn


class Through(mx.gluon.HybridBlock):
    """Embedding → a layer, or a function of F and the rows → as it is."""

    def __init__(self, layer: Any = None, function: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, DIM)
        self.layer = layer
        self.function = function

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        rows = self.embedding(x)
        return self.function(F, rows) if self.function is not None else self.layer(rows)


class Cells(mx.gluon.Block):
    """A recurrent cell, unrolled."""

    def __init__(self, cell: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(ROWS, DIM)
        self.cell = cell

    def forward(self, x: Any) -> Any:
        rows = self.embedding(x)
        return self.cell.unroll(x.shape[1], rows, layout="NTC", merge_outputs=True)[0]


def beside_hard_sigmoid(F: Any, x: Any) -> Any:
    return F.sin(F.hard_sigmoid(x) + x)


def over_channels(layer: Any) -> Callable[[], Any]:
    """The layer along the positions, with the vectors as channels."""

    def make() -> Any:
        net = nn.HybridSequential()
        net.add(nn.HybridLambda(lambda F, e: F.transpose(e, axes=(0, 2, 1))), layer())
        return Through(net)

    return make


def as_image(layer: Any) -> Callable[[], Any]:
    """The layer over positions and vector entries as a plane."""

    def make() -> Any:
        net = nn.HybridSequential()
        net.add(nn.HybridLambda(lambda F, e: F.expand_dims(e, axis=1)), layer())
        return Through(net)

    return make


def plain(layer: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: Through(layer())


def through(function: Callable[..., Any]) -> Callable[[], Any]:
    return lambda: Through(function=function)


def attention(F: Any, e: Any) -> Any:
    scores = F.batch_dot(e, e, transpose_b=True) / DIM**0.5
    return F.batch_dot(F.softmax(scores, axis=-1), e)


def interleaved(F: Any, e: Any) -> Any:
    mixed = F.concat(e, e * 2, F.tanh(e), dim=2)
    weights = F.softmax(F.contrib.interleaved_matmul_selfatt_qk(mixed, heads=2))
    return F.contrib.interleaved_matmul_selfatt_valatt(mixed, weights, heads=2)


def interleaved_between(F: Any, e: Any) -> Any:
    mixed = F.concat(e * 2, F.tanh(e), dim=2)
    weights = F.softmax(F.contrib.interleaved_matmul_encdec_qk(e, mixed, heads=2))
    return F.contrib.interleaved_matmul_encdec_valatt(mixed, weights, heads=2)


def each_length(F: Any, e: Any, dtype: str) -> Any:
    return F.cast(F.sum(F.ones_like(e), axis=1) * 0 + 3, dtype=dtype)


def lengths(F: Any, e: Any) -> Any:
    return F.slice_axis(F.sum(F.ones_like(e), axis=(1, 2)), axis=0, begin=0, end=None) * 0 + 3


LAYERS: dict[str, Callable[[], Any]] = {
    "dense": plain(lambda: nn.Dense(3)),
    "dense by position": plain(lambda: nn.Dense(3, flatten=False, activation="tanh")),
    "lstm": plain(lambda: rnn.LSTM(3, layout="NTC")),
    "lstm of two layers, both ways": plain(lambda: rnn.LSTM(3, num_layers=2, bidirectional=True, layout="NTC")),
    "gru": plain(lambda: rnn.GRU(3, layout="NTC")),
    "gru of two layers, both ways": plain(lambda: rnn.GRU(3, num_layers=2, bidirectional=True, layout="NTC")),
    "rnn": plain(lambda: rnn.RNN(3, activation="tanh", layout="NTC")),
    "rnn of two layers, both ways": plain(
        lambda: rnn.RNN(3, num_layers=2, bidirectional=True, activation="tanh", layout="NTC")
    ),
    "convolution": over_channels(lambda: nn.Conv1D(3, 3, padding=1, activation="relu")),
    "dilated convolution in groups": over_channels(lambda: nn.Conv1D(4, 2, dilation=2, groups=2)),
    "plane convolution": as_image(lambda: nn.Conv2D(2, (3, 2))),
    "max pooling": over_channels(lambda: nn.MaxPool1D(2, 1)),
    "padded max pooling": over_channels(lambda: nn.MaxPool1D(3, 2, padding=1, ceil_mode=True)),
    "global max pooling": over_channels(lambda: nn.GlobalMaxPool1D()),
    "plane max pooling": as_image(lambda: nn.MaxPool2D((2, 2))),
    "average pooling": over_channels(lambda: nn.AvgPool1D(2)),
    "average pooling without pads": over_channels(lambda: nn.AvgPool1D(3, 2, padding=1, count_include_pad=False)),
    "global average pooling": over_channels(lambda: nn.GlobalAvgPool1D()),
    "sum pooling": over_channels(
        lambda: nn.HybridLambda(lambda F, x: F.Pooling(x, kernel=(2,), pool_type="sum", stride=(2,)))
    ),
    "lp pooling": as_image(
        lambda: nn.HybridLambda(lambda F, x: F.Pooling(x, kernel=(2, 2), pool_type="lp", p_value=2, stride=(2, 2)))
    ),
    "functional max pooling": through(lambda F, e: F.Pooling(e, kernel=(2,), pool_type="max", stride=(1,))),
    "first pooling": as_image(
        lambda: nn.HybridLambda(lambda F, x: F.Pooling_v1(x, kernel=(2, 2), pool_type="max", stride=(1, 1)))
    ),
    "batch norm": over_channels(lambda: nn.BatchNorm()),
    "batch norm over the last axis": plain(lambda: nn.BatchNorm(axis=-1)),
    "batch norm of fixed scale": plain(lambda: nn.BatchNorm(axis=-1, scale=False)),
    "layer norm": plain(lambda: nn.LayerNorm()),
    "layer norm over positions": plain(lambda: nn.LayerNorm(axis=1)),
    "group norm": over_channels(lambda: nn.GroupNorm(num_groups=2)),
    "l2 normalisation": through(lambda F, e: F.L2Normalization(e)),
    "l2 normalisation of channels": through(lambda F, e: F.L2Normalization(e, mode="channel")),
    "dropout": plain(lambda: nn.Dropout(0.5)),
    "swish": plain(lambda: nn.Swish()),
    "elu": plain(lambda: nn.ELU()),
    "softmax": through(lambda F, e: F.softmax(e * 2, axis=1)),
    "softmax of a temperature": through(lambda F, e: F.softmax(e, axis=-1, temperature=0.5)),
    "log softmax": through(lambda F, e: F.log_softmax(e, axis=-1)),
    "softmin": through(lambda F, e: F.softmin(e, axis=-1)),
    "attention": through(attention),
    "sequence mask": through(
        lambda F, e: F.SequenceMask(e * 2, lengths(F, e), use_sequence_length=True, axis=1, value=0.3)
    ),
    "sequence reverse": through(
        lambda F, e: F.SequenceReverse(F.swapaxes(e, 0, 1), lengths(F, e), use_sequence_length=True)
    ),
    "sequence last": through(lambda F, e: F.SequenceLast(e, lengths(F, e), use_sequence_length=True, axis=1)),
    "maximum over positions": through(lambda F, e: F.max(e, axis=1)),
    "minimum over vectors": through(lambda F, e: F.min(e, axis=2)),
    "product": through(lambda F, e: F.prod(e + 2, axis=1)),
    "soft sign": through(lambda F, e: F.Activation(e, act_type="softsign")),
    "products of two sides": through(lambda F, e: F.batch_dot(e, e * 2, transpose_a=True)),
    "product by a matrix": through(lambda F, e: F.dot(e, F.arange(12).reshape((4, 3)).astype(e.dtype))),
    "adaptive pooling": as_image(
        lambda: nn.HybridLambda(lambda F, x: F.contrib.AdaptiveAvgPooling2D(x, output_size=(2, 2)))
    ),
    "larger plane by repetition": as_image(
        lambda: nn.HybridLambda(lambda F, x: F.UpSampling(x, scale=2, sample_type="nearest"))
    ),
    "embedded again": through(
        lambda F, e: F.broadcast_add(e, F.expand_dims(F.take(e, F.zeros((1,)), axis=1).mean(axis=1), 1))
    ),
    "masked softmax": through(lambda F, e: F.softmax(F.where(e > -0.5, e, F.ones_like(e) * -1e4), axis=1)),
    "cumulative sum": through(
        lambda F, e: F.contrib.foreach(lambda row, total: (row + total, row + total), F.swapaxes(e, 0, 1), e[:, 0] * 0)[
            0
        ]
    ),
    "norm": through(lambda F, e: F.norm(e, axis=1)),
    "norm of order 1": through(lambda F, e: F.norm(e, ord=1, axis=2)),
    "moments": through(lambda F, e: F.moments(e, axes=(1,))[1]),
    "sort": through(lambda F, e: F.sort(e, axis=1)),
    "largest": through(lambda F, e: F.topk(e, axis=1, k=2, ret_typ="value")),
    "picked": through(lambda F, e: F.pick(e, F.zeros_like(F.max(e, axis=2)) + 2, axis=2)),
    "concat, stack and split": through(lambda F, e: F.stack(*F.split(F.concat(e, e * e, dim=2), 2, axis=2), axis=0)),
    "where": through(lambda F, e: F.where(e > 0, e * 3, e * e)),
    "clip": through(lambda F, e: F.clip(e, -0.3, 0.3)),
    "smooth l1": through(lambda F, e: F.smooth_l1(e, scalar=2.0)),
    "hard sigmoid": through(lambda F, e: F.hard_sigmoid(e)),
    "hard sigmoid beside another use": through(lambda F, e: F.sum(beside_hard_sigmoid(F, F.tanh(e)), axis=2)),
    "padding": through(lambda F, e: F.pad(F.expand_dims(e, 1), mode="reflect", pad_width=(0, 0, 0, 0, 1, 1, 1, 1))),
    "repeat and tile": through(lambda F, e: F.tile(F.repeat(e, 2, axis=1), reps=(1, 1, 2))),
    "reversed slices": through(
        lambda F, e: F.slice(e, begin=(None, -1, None), end=(None, None, None), step=(1, -2, 1))
    ),
    "gathered": through(lambda F, e: F.gather_nd(e, F.zeros((2, 3), dtype="int32") + 1)),
    "boolean mask": through(
        lambda F, e: F.contrib.boolean_mask(e, F.slice_axis(F.ones_like(e), 1, 0, 1).reshape((-1,))[:2])
    ),
    "quadratic form": through(lambda F, e: F.linalg.gemm2(e, e, transpose_b=True)),
}

#: Computed in float32 inside MXNet, also in float64: finite differences need larger steps.
COARSE = {
    "random leaky relu": through(lambda F, e: F.LeakyReLU(e, act_type="rrelu", lower_bound=0.1, upper_bound=0.3)[0]),
    "selu": plain(lambda: nn.SELU()),
    "softplus": through(lambda F, e: F.Activation(e, act_type="softrelu")),
    "transposed convolution": over_channels(lambda: nn.Conv1DTranspose(3, 3, strides=2)),
    "prelu": plain(lambda: nn.PReLU()),
    "leaky relu": plain(lambda: nn.LeakyReLU(0.1)),
    "rnn with relu": plain(lambda: rnn.RNN(3, activation="relu", layout="NTC")),
    "exact gelu": plain(lambda: nn.GELU()),
    "error function": through(lambda F, e: F.erf(e)),
}


#: Computed in float32 alone.
SINGLE = {
    "connectionist loss": through(lambda F, e: F.contrib.ctc_loss(F.swapaxes(e, 0, 1), F.zeros((2, 2)) + 2)),
    "larger plane": as_image(lambda: nn.HybridLambda(lambda F, x: F.contrib.BilinearResize2D(x, height=7, width=6))),
    "softmax of lengths": through(lambda F, e: F.softmax(e, each_length(F, e, "int32"), axis=1, use_length=True)),
    "interleaved attention": through(interleaved),
    "interleaved attention between two": through(interleaved_between),
    "lstm cell": lambda: Cells(rnn.LSTMCell(3)),
    "gru cell": lambda: Cells(rnn.GRUCell(3)),
    "softmax activation": through(lambda F, e: F.SoftmaxActivation(e, mode="channel")),
    "instance norm": over_channels(lambda: nn.InstanceNorm()),
    "local response": as_image(lambda: nn.HybridLambda(lambda F, x: F.LRN(x, nsize=1, alpha=0.5))),
}


@pytest.mark.parametrize("name", LAYERS)
def test_gradient_through_a_layer(name: str) -> None:
    check(LAYERS[name], tolerances={"float64": 1e-6, "float32": 2e-4})


@pytest.mark.parametrize("name", COARSE)
def test_gradient_through_a_layer_of_low_precision(name: str) -> None:
    check(COARSE[name], tolerances={"float64": 2e-3, "float32": 2e-3}, step=1e-3)


@pytest.mark.parametrize("name", SINGLE)
def test_gradient_through_a_layer_of_single_precision(name: str) -> None:
    check(SINGLE[name], tolerances={"float32": 5e-3}, step=1e-2)


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_batch_norm_with_relu_agrees_with_the_two_in_sequence(hybrid: bool, training: bool) -> None:
    """It is there for float32 alone, in which it has no slopes that tell where it is cut off."""
    ids, found = distinct_ids(), []
    for layers in ([nn.BatchNormReLU()], [nn.BatchNorm(), nn.Activation("relu")]):
        net = built(as_image(lambda layers=layers: in_turn(layers)), ids, "float32")
        shape = net(mx.nd.array(ids)).shape
        if hybrid:
            net.hybridize()
            net(mx.nd.array(ids))
        found.append(pulled_back(net, ids, np.random.default_rng(1).normal(size=shape), training=training))
    assert (found[1] == 0).any() or training
    assert relative(*found) < 1e-6


def in_turn(layers: Any) -> Any:
    net = nn.HybridSequential()
    net.add(*layers)
    return net


def check(factory: Callable[[], Any], tolerances: dict[str, float], step: float = 1e-6) -> None:
    """In evaluation mode, imperative and hybridised; the finite differences in the best precision that the layer has."""
    ids = distinct_ids()
    nets = {dtype: built(factory, ids, dtype) for dtype in tolerances}
    best, net = next(iter(nets.items()))
    cotangent = np.random.default_rng(1).normal(size=net(mx.nd.array(ids, dtype=best)).shape)
    expected = differences(net, net.embedding.weight, ids, cotangent, step=step, dtype=best)
    assert abs(expected).max() > 1e-3
    for dtype, net in nets.items():
        for hybrid in (False, True):
            if hybrid:
                net.hybridize()
            error = relative(pulled_back(net, ids, cotangent), expected)
            assert error < tolerances[dtype], f"{dtype}, hybridised {hybrid}: {error:.1e}"
