"""Roles and native paths on real models, and gradients at modules against marked outputs by hand."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import embgrad
from tests.frameworks.gluon.helpers import DIM, ROWS, Model, built, distinct_ids, model, mx, relative, small_bert

nn, nd, autograd = mx.gluon.nn, mx.nd, mx.autograd

BATCH = embgrad.TokenBatch(
    [[3, 4, 5, 6, 7], [8, 9, 1, 0, 0]],
    [[1] * 5, [1, 1, 1, 0, 0]],
    types=[[0, 0, 1, 1, 1], [0, 1, 1, 0, 0]],
    convention="gluonnlp",
)


def bert(layers: int = 3) -> Any:
    net = small_bert(layers)
    net(*(nd.array(one) for one in BATCH.to_gluonnlp()))
    return net


def roles_of(model: Any, batch: Any, **options: Any) -> dict[str, str]:
    return {role: point.name for point in embgrad.points(model, batch, **options) for role in point.roles}


@pytest.mark.parametrize("hybrid", [False, True])
def test_the_roles_of_bert(hybrid: bool) -> None:
    net = bert()
    net.hybridize(hybrid, static_alloc=True)
    assert roles_of(net, BATCH) == {
        "word": "word_embed.0#0",
        "type": "token_type_embed.0#0",
        "position": "encoder.position_weight#0",
        "embeddings": "encoder.layer_norm#0",
        "layer.0": "encoder.transformer_cells.0#0",
        "layer.1": "encoder.transformer_cells.1#0",
        "layer.2": "encoder.transformer_cells.2#0",
        "layer.-1": "encoder.transformer_cells.2#0",
    }
    assert all(block._active == hybrid for block in (net, net.encoder, net.word_embed))


def marked(net: Any, block: Any, arrays: list[Any], loss: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the value of a block's first output and the gradient there, marked by a hook."""
    kept: list[Any] = []

    def mark(_: Any, __: Any, output: Any) -> None:
        output = output[0] if isinstance(output, tuple) else output
        output.attach_grad()
        kept.append(output)

    hook = block.register_forward_hook(mark)
    try:
        with autograd.record(train_mode=False):
            total = loss(net(*arrays))
    finally:
        hook.detach()
    (gradient,) = autograd.grad([total], kept, train_mode=False)
    return kept[0].asnumpy(), gradient.asnumpy()


def test_gradients_in_bert_against_marked_outputs() -> None:
    net = bert()
    arrays = [nd.array(one) for one in BATCH.to_gluonnlp()]
    places = {
        "word": net.word_embed,
        "embeddings": net.encoder.layer_norm,
        **{f"layer.{number}": cell for number, cell in enumerate(net.encoder.transformer_cells)},
    }
    expected = {name: marked(net, block, arrays, lambda out: out[1][:, 2].sum()) for name, block in places.items()}
    net.hybridize()
    found = embgrad.gradients(net, BATCH, embgrad.Logit(2, output="pooled"), at=list(places))
    for name, (value, gradient) in expected.items():
        turned = name != "word"  # gluonnlp's encoder has the positions first
        value, gradient = (one.swapaxes(0, 1) if turned else one for one in (value, gradient))
        assert found[name].values.shape == (2, 5, 8)
        assert relative(found[name].activations, value) < 1e-6, name
        assert relative(found[name].values, gradient) < 1e-5, name
        alone = embgrad.gradients(net, BATCH, embgrad.Logit(2, output="pooled"), at=name)
        assert relative(alone.values, found[name].values) < 1e-6
    native = embgrad.gradients(net, BATCH, embgrad.Logit(2, output="pooled"), at="encoder.transformer_cells.1")
    assert relative(native.values, found["layer.1"].values) < 1e-6  # examples first, which the probe shows


class Layer(mx.gluon.HybridBlock):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(DIM, in_units=DIM, flatten=False)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return {"hidden": F.tanh(self.dense(x)), "extra": [x * 2]}["hidden"], (x, None)


class Shared(mx.gluon.HybridBlock):  # type: ignore[misc]
    """One layer under two names, called twice; another in a plain list, which Gluon does not know as a child."""

    def __init__(self, transposed: bool = False) -> None:
        super().__init__()
        self.transposed = transposed
        self.words = nn.Embedding(ROWS, DIM)
        self.first = Layer()
        self.second = self.first
        self.top = nn.Dense(3, in_units=DIM, flatten=False)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        x = self.words(F.transpose(x) if self.transposed else x)
        x = self.second(self.first(x)[0])[0]
        return self.top(F.mean(x, axis=0 if self.transposed else 1))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("hybrid", [False, True])
def test_occurrences_aliases_and_time_major_nets(transposed: bool, hybrid: bool) -> None:
    net, ids = built(lambda: Shared(transposed), distinct_ids(), "float64"), distinct_ids()
    net.hybridize(hybrid)
    points = {point.name: point for point in embgrad.points(net, ids)}
    assert points["first#0"].roles == ("layer.0",)
    assert points["first#1"].roles == ("layer.1", "layer.-1")
    assert set(points["first#0"].also) == {"second", net.first.name}
    assert points["words#0"].roles[0] == "word"
    with pytest.raises(embgrad.errors.AmbiguousPointError, match="fits 2 points"):
        embgrad.gradients(net, ids, embgrad.Logit(1), at="first")
    names = ["layer.0", "layer.1", "first#0", "second#1", f"{net.first.name}#0", "first:input#1", "word"]
    found = embgrad.gradients(net, ids, embgrad.Logit(1), at=names)
    rows = net.words.weight.data().asnumpy()[ids]
    weight, bias = net.first.dense.weight.data().asnumpy(), net.first.dense.bias.data().asnumpy()
    one = np.tanh(rows @ weight.T + bias)
    two = np.tanh(one @ weight.T + bias)
    last = np.broadcast_to(net.top.weight.data().asnumpy()[1] / 5, two.shape)
    inner = (last * (1 - two**2)) @ weight
    assert relative(found["layer.1"].values, last) < 1e-12
    assert relative(found["layer.0"].values, inner) < 1e-12
    assert relative(found["word"].values, (inner * (1 - one**2)) @ weight) < 1e-12
    for name in ("first#0", f"{net.first.name}#0", "first:input#1"):
        assert relative(found[name].values, inner) < 1e-12  # examples first, which the probe shows
    assert relative(found["second#1"].activations, two) < 1e-12


@pytest.mark.parametrize(
    ("at", "products"), [("words", 2), ("first", 1), ("second", 0), (["first", "second"], 1), (["words", "second"], 2)]
)
def test_nothing_below_the_first_point_stays_recorded(at: str | list[str], products: int) -> None:
    def forward(net: Any, F: Any, ids: Any) -> Any:
        rows = net.words(ids)
        return F.sum(net.second(net.first(rows) + F.sigmoid(rows)), axis=1)

    ids = distinct_ids()
    dense = {name: nn.Dense(DIM, flatten=False, use_bias=False) for name in ("first", "second")}
    net = built(lambda: Model(forward, **dense), ids, "float64")
    recorded: list[str] = []

    def squares(output: Any) -> Any:
        nodes = json.loads(autograd.get_symbol(output).tojson())["nodes"]
        recorded.extend(node["op"] for node in nodes)
        return (output**2).sum(axis=-1)

    found = embgrad.gradients(net, nd.array(ids), squares, at=[at] if isinstance(at, str) else at)
    assert recorded.count("FullyConnected") == products
    words, first, second = (block.weight.data().asnumpy() for block in (net.words, net.first, net.second))
    slope = 1 / (1 + np.exp(-words[ids])) * (1 - 1 / (1 + np.exp(-words[ids])))
    hidden = words[ids] @ first.T + 1 / (1 + np.exp(-words[ids]))
    at_second = np.repeat(2 * (hidden @ second.T).sum(1, keepdims=True), ids.shape[1], 1)
    at_first = at_second @ second
    expected = {"second": at_second, "first": at_first, "words": at_first @ first + at_first * slope}
    for name, result in found.items():
        np.testing.assert_allclose(result.values, expected[name], rtol=1e-12)


@pytest.mark.usefixtures("numpy_semantics")
@pytest.mark.parametrize("hybrid", [False, True])
def test_a_net_of_numpy(hybrid: bool) -> None:
    steps = nn.HybridSequential()
    steps.add(*(nn.HybridLambda(lambda F, x: x + F.np.tanh(x)) for _ in range(2)))
    net = Model(lambda net, F, x: F.np.sum(net.steps(net.words(x)) ** 2, axis=(1, 2)), steps=steps)
    ids = distinct_ids()
    net.initialize(mx.init.Normal(0.5))
    net.hybridize(hybrid)
    names = ["word", "layer.0", "layer.1"]
    found = embgrad.gradients(net, ids, lambda out: out, at=names, edit={"layer.1": lambda g: g * 2})
    x = net.words.weight.data().asnumpy()[ids]
    one = x + np.tanh(x)
    two = one + np.tanh(one)
    at_two = 2 * two
    at_one = 2 * at_two * (2 - np.tanh(one) ** 2)
    assert relative(found["layer.1"].before, at_two) < 1e-6
    assert relative(found["layer.0"].values, at_one) < 1e-6
    assert relative(found["word"].values, at_one * (2 - np.tanh(x) ** 2)) < 1e-6
    ledger = embgrad.tables.table_gradients(net, ids, lambda out: out)
    assert ledger.names == ("words.weight",)
    assert ledger.apart < 1e-6
    net.collect_params().setattr("grad_req", "null")
    frozen = embgrad.tables.table_gradients(net, ids, lambda out: out)
    assert (frozen.lookup == ledger.lookup).all()


def test_writing_into_a_blocks_output_unrecorded_is_refused() -> None:
    def forward(net: Any, F: Any, x: Any) -> Any:
        rows = net.body(net.words(x))
        with autograd.pause():
            rows[:] = rows * 2
        return rows.sum(axis=1)

    net = model(forward, body=nn.Dense(DIM, in_units=DIM, flatten=False))
    with pytest.raises(embgrad.errors.UnsupportedError, match=r"writes into the value at the point 'body:output#0'"):
        embgrad.gradients(net, distinct_ids(), embgrad.Sum(), at="body")


def test_blocks_in_a_list_have_the_names_that_gluon_gave_them() -> None:
    listed = [nn.HybridLambda("tanh", prefix="bend_")]
    net = model(lambda net, F, x: listed[0](net.words(x)).sum(axis=1))
    found = embgrad.gradients(net, distinct_ids(), embgrad.Sum(), at="bend")
    assert (found.values == 1).all()
