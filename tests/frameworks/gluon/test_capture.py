"""Capture in the user's own loop: its gradients against `embgrad.gradients`, and training that ends with the same bits."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import embgrad
from tests.frameworks.gluon.exporting import exported
from tests.frameworks.gluon.helpers import DIM, ROWS, distinct_ids, model, mx, randomise, relative, small_bert

nn, nd, autograd, gluon = mx.gluon.nn, mx.nd, mx.autograd, mx.gluon
cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()

LABELS = np.array([2, 0])
LOOP = [(distinct_ids(2, 5, seed), LABELS) for seed in range(3)]


class Layer(gluon.HybridBlock):  # type: ignore[misc]
    """A layer with dropout and a residual connection, whose gradients are sums."""

    def __init__(self, drop: float) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Dense(DIM, in_units=DIM, flatten=False) for _ in range(3))
        self.norm, self.drop = nn.LayerNorm(in_channels=DIM), nn.Dropout(drop)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        scores = F.softmax(F.batch_dot(self.query(x), self.key(x), transpose_b=True))
        return self.norm(x + self.drop(F.batch_dot(self.drop(scores), self.value(x)))), scores


class Net(gluon.HybridBlock):  # type: ignore[misc]
    def __init__(self, drop: float = 0.3, sparse: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(ROWS, DIM, sparse_grad=sparse)
        self.places = nn.Embedding(6, DIM)
        self.drop = nn.Dropout(drop)
        self.layers = nn.HybridSequential()
        self.layers.add(Layer(drop), Layer(drop))
        self.top = nn.Dense(3, in_units=DIM)

    def hybrid_forward(self, F: Any, ids: Any) -> Any:
        x = self.drop(
            F.broadcast_add(self.words(ids), F.expand_dims(self.places(F.contrib.arange_like(ids, axis=1)), 0))
        )
        for layer in self.layers:
            x, _ = layer(x)
        return self.top(F.mean(x, axis=1))


def make(
    drop: float = 0.3, *, dtype: str = "float32", hybrid: dict[str, Any] | None = None, sparse: bool = False
) -> Any:
    net = Net(drop, sparse)
    net.initialize()
    net.cast(dtype)
    randomise(net)
    if hybrid is not None:
        net.hybridize(**hybrid)
    return net


def bits(net: Any) -> list[bytes]:
    return [p.data().asnumpy().tobytes() for p in net._collect_params_with_prefix().values()]


def train(net: Any, loop: Any = LOOP, *, trainer: Any = None, seed: int = 7) -> Any:
    """Run the user's loop: a loss, its backward pass, and a Trainer's step."""
    mx.random.seed(seed)
    trainer = trainer or gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.05}, kvstore=None)
    for ids, labels in loop:
        with autograd.record():
            loss = cross_entropy(net(nd.array(ids)), nd.array(labels))
        loss.backward()
        trainer.step(len(ids))
    return trainer


def in_a_capture(net: Any, *, at: str = "word") -> embgrad.results.Tap:
    with embgrad.capture(net, at=at) as tap:
        train(net)
    return tap


@pytest.mark.parametrize(
    "at", ["word", "layer.0", "layer.-1", "layers.1", "embeddings", "words", "layers.0.norm", "position"]
)
@pytest.mark.parametrize("hybrid", [None, {}, {"static_alloc": True, "static_shape": True}])
def test_training_under_capture_ends_with_the_same_bits(at: str, hybrid: dict[str, Any] | None) -> None:
    """Dropout included: a hybridised net runs operator by operator while it is captured, and draws the same numbers."""
    captured, alone = make(hybrid=hybrid), make(hybrid=hybrid)
    with embgrad.capture(captured, at=at) as tap:
        train(captured)
        train(captured)
    train(alone)
    train(alone)
    assert bits(captured) == bits(alone)
    assert tap.count == 6
    assert captured._active == (hybrid is not None)
    for _ in range(2):
        train(captured)
        train(alone)
    assert bits(captured) == bits(alone)


def test_capture_does_not_change_the_parameters_gradients() -> None:
    """The table's gradient and every other parameter's, bit for bit, frozen, summed up and sparse."""
    for request, sparse in (("write", False), ("add", False), ("write", True)):
        captured, alone = make(sparse=sparse), make(sparse=sparse)
        for net in (captured, alone):
            if request == "add":
                net.collect_params().setattr("grad_req", request)
            mx.random.seed(1)
            with embgrad.capture(net) if net is captured else autograd.train_mode():
                for ids, labels in LOOP:
                    with autograd.record():
                        loss = cross_entropy(net(nd.array(ids)), nd.array(labels))
                    loss.backward()
        for one, other in zip(captured.collect_params().values(), alone.collect_params().values(), strict=True):
            assert one.grad().asnumpy().tobytes() == other.grad().asnumpy().tobytes()


def test_one_loss_over_several_passes_with_a_retained_graph() -> None:
    net = make(0.0, dtype="float64")
    with embgrad.capture(net) as tap:
        with autograd.record():
            first, second = (
                cross_entropy(net(nd.array(ids, dtype="float64")), nd.array(labels)) for ids, labels in LOOP[:2]
            )
            both = first.sum() + 3 * second.sum()
        both.backward(retain_graph=True)
        both.backward()
    one, other = (embgrad.gradients(net, ids, embgrad.CrossEntropy(labels)).values for ids, labels in LOOP[:2])
    assert tap.count == 2
    for step in tap.steps:
        assert relative(step.values, np.concatenate([one, 3 * other])) < 1e-12


def test_evaluation_during_a_capture_is_not_recorded() -> None:
    net = make(hybrid={})
    train(net)
    expected = net(nd.array(LOOP[0][0])).asnumpy()
    with embgrad.capture(net) as tap:
        found = net(nd.array(LOOP[0][0])).asnumpy()
        with autograd.pause():
            net(nd.array(LOOP[0][0]))
        train(net)
        net(nd.array(LOOP[0][0]))
    assert found.tobytes() == expected.tobytes()
    assert (tap.count, tap.passes) == (3, 3)


def test_a_loop_without_record_is_refused() -> None:
    net, ids = make(), nd.array(LOOP[0][0])

    def loop(times: int) -> None:
        with embgrad.capture(net):
            for _ in range(times):
                net(ids)

    with pytest.raises(embgrad.errors.NoGradientError, match=r"called 2 time\(s\).*never under autograd.record"):
        loop(2)
    with autograd.record(), pytest.raises(embgrad.errors.NoGradientError, match="no gradient reached"):
        loop(1)


def test_capture_of_a_block_inside_a_hybridised_net() -> None:
    nets = []
    for _ in range(2):
        outer = nn.HybridSequential()
        outer.add(make(), nn.HybridLambda("tanh"), nn.Dense(3, in_units=3))
        outer[2].initialize(mx.init.One())
        outer.hybridize()
        nets.append(outer)
    other = make()
    with embgrad.capture(nets[0][0]) as tap, embgrad.capture(nets[0][0], at="layer.1") as layer:
        train(nets[0])
        train(other)
    train(nets[1])
    assert bits(nets[0]) == bits(nets[1])
    assert (tap.count, layer.count) == (3, 3)


def test_captured_operators_with_a_wrong_gradient_in_predict_mode_are_refused() -> None:
    def pooled(pool: Any) -> Any:
        norm = nn.BatchNorm(axis=-1, in_channels=DIM)
        net = model(lambda net, F, x: F.mean(net.pool(net.norm(net.words(x))), axis=(1, 2)), norm=norm, pool=pool)
        randomise(net)
        return net

    net, without = pooled(nn.MaxPool1D(2)), pooled(nn.HybridLambda(lambda F, x: x))

    def step(one: Any, train_mode: bool) -> embgrad.results.Tap:
        with embgrad.capture(one) as tap, autograd.record(train_mode=False):
            one(nd.array(LOOP[0][0])).sum().backward(train_mode=train_mode)
        return tap

    with pytest.raises(embgrad.errors.UnsupportedError, match="'Pooling', which takes maxima"):
        step(net, False)
    with pytest.raises(embgrad.errors.UnsupportedError, match="'BatchNorm', which ran in another mode"):
        step(without, True)
    tap = step(without, False)
    expected = embgrad.gradients(without, LOOP[0][0], lambda out: out)
    assert relative(tap.steps[0].values, expected.values) < 1e-5


@pytest.mark.parametrize("hybrid", [False, True])
def test_an_operator_with_a_wrong_gradient_after_the_model_is_refused(hybrid: bool) -> None:
    words, head = nn.Embedding(ROWS, DIM), nn.HybridSequential()
    head.add(nn.MaxPool1D(2), nn.Dense(3))
    for one in (words, head):
        one.initialize()
    head(nd.zeros((2, 5, DIM)))
    head.hybridize(hybrid)

    def step(train_mode: bool) -> None:
        with autograd.record(train_mode=train_mode):
            loss = head(words(nd.array(LOOP[0][0]))).sum()
        loss.backward()

    with embgrad.capture(words) as tap:
        step(True)
        with pytest.raises(embgrad.errors.UnsupportedError, match="'Pooling', which takes maxima"):
            step(False)
    assert tap.count == 1
    with embgrad.capture(words) as again:
        step(True)
    assert relative(again.steps[0].values, tap.steps[0].values) < 1e-6


@pytest.mark.parametrize("frozen", [False, True])
def test_capture_below_a_frozen_recurrent_layer_is_refused(frozen: bool) -> None:
    """The native GRU's gradient below it is right only where its own weights' are computed."""
    net = nn.HybridSequential()
    net.add(nn.Embedding(ROWS, DIM), gluon.rnn.GRU(3, layout="NTC", input_size=DIM))
    net.initialize()
    net.cast("float64")
    randomise(net)
    if frozen:
        net[1].collect_params().setattr("grad_req", "null")
    expected = embgrad.gradients(net, LOOP[0][0], embgrad.Sum())

    def step() -> Any:
        with embgrad.capture(net) as tap, autograd.record():
            net(nd.array(LOOP[0][0], dtype="float64")).sum().backward()
        return tap

    if frozen:
        with pytest.raises(embgrad.errors.UnsupportedError, match="do not freeze it"):
            step()
    else:
        assert relative(step().steps[0].values, expected.values) < 1e-10


@pytest.mark.parametrize("how", ["frozen table", "autograd.grad", "loss operator with its own gradient"])
def test_a_step_agrees_with_gradients(how: str) -> None:
    net, (ids, labels) = make(0.0, dtype="float64"), LOOP[0]
    net.words.weight.grad_req = "null" if how == "frozen table" else "write"
    weight = net.top.weight.data()

    def step() -> Any:
        with autograd.record():
            logits, targets = net(nd.array(ids, dtype="float64")), nd.array(labels, dtype="float64")
            loss = nd.SoftmaxOutput(logits, targets) if "operator" in how else cross_entropy(logits, targets).sum()
        if how == "autograd.grad":
            return autograd.grad(loss, [weight])[0].asnumpy()
        loss.backward()
        return net.top.weight.grad().asnumpy()

    alone = step()
    with embgrad.capture(net) as tap:
        np.testing.assert_array_equal(step(), alone)
    expected = embgrad.gradients(net, ids, embgrad.CrossEntropy(labels))
    assert relative(tap.steps[0].values, expected.values) < 1e-10


def test_a_graph_that_draws_in_another_order_is_refused() -> None:
    def forward(net: Any, F: Any, x: Any) -> Any:
        rows = net.words(x)
        a = F.Dropout(rows, p=0.5)
        b = F.Dropout(rows * 2, p=0.5)
        return net.top(F.mean(b + a, axis=1))  # the graph draws for `b` first, the Python for `a`

    net = model(forward, top=nn.Dense(3, in_units=DIM))
    net.hybridize()
    with pytest.raises(
        embgrad.errors.UnsupportedError, match=r"draws random numbers.*in another order.*hybridize\(False\)"
    ):
        in_a_capture(net)
    net.hybridize(False)
    assert in_a_capture(net).count == 3


def test_capture_of_a_net_that_draws_in_evaluation_mode_is_refused() -> None:
    def forward(net: Any, F: Any, x: Any) -> Any:
        return F.mean(net.body(net.words(x)) + F.random.normal(shape=(2, 5, DIM)), axis=1)

    net = model(forward, body=nn.Dense(DIM, in_units=DIM, flatten=False))
    with pytest.raises(embgrad.errors.UnsupportedError, match="draws random numbers in evaluation mode"):
        in_a_capture(net, at="body")
    assert in_a_capture(net).count == 3


@pytest.mark.parametrize(
    "draw",
    [
        lambda F, rows: rows * (random.random() + np.random.rand()),
        lambda F, rows: F.Dropout(rows, p=0.5, mode="always"),
    ],
    ids=["Python and NumPy", "MXNet"],
)
def test_capture_moves_no_generator(draw: Callable[[Any, Any], Any]) -> None:
    def forward(net: Any, F: Any, x: Any) -> Any:
        return net.body(draw(F, net.words(x))).mean(axis=1)

    nets = [model(forward, body=nn.Dense(3, in_units=DIM, flatten=False)) for _ in range(2)]
    for number, net in enumerate(nets):
        randomise(net)
        random.seed(1)
        np.random.seed(1)
        with embgrad.capture(net, at="body") if number else autograd.train_mode():
            train(net)
    assert bits(nets[0]) == bits(nets[1])


@pytest.mark.parametrize("hybrid", [None, {}])
def test_deferred_parameters_are_initialized_in_the_same_order(hybrid: dict[str, Any] | None) -> None:
    nets = []
    for at in (None, "word", "1"):
        mx.random.seed(3)
        net = nn.HybridSequential()
        net.add(nn.Embedding(ROWS, DIM), nn.Dense(4, flatten=False), nn.Dropout(0.5), nn.Dense(3))
        net.initialize(mx.init.Normal(1))
        if hybrid is not None:
            net.hybridize(**hybrid)
        if at == "1":
            with pytest.raises(embgrad.errors.UnsupportedError, match=r"wait for their shapes.*before the capture"):
                in_a_capture(net, at=at)
            continue
        with autograd.train_mode() if at is None else embgrad.capture(net, at=at):
            train(net)
        nets.append(net)
    assert all(bits(net) == bits(nets[0]) for net in nets)


def test_capture_at_an_input_that_is_used_elsewhere_is_refused() -> None:
    def forward(net: Any, F: Any, x: Any) -> Any:
        x = F.tanh(net.words(x))
        return net.top(F.mean(x + net.inner(x), axis=1))

    net = model(forward, inner=nn.HybridLambda(lambda F, x: x * x + x), top=nn.Dense(3, in_units=DIM))
    with pytest.raises(embgrad.errors.UnsupportedError, match=r"'inner:input#0' is also used elsewhere"):
        in_a_capture(net, at="inner:input")


@pytest.mark.parametrize("hybrid", [False, True])
def test_capture_in_gluonnlps_bert(hybrid: bool) -> None:
    batch = embgrad.TokenBatch([[3, 4, 5, 4], [8, 9, 2, 0]], [[1, 1, 1, 1], [1, 1, 1, 0]], convention="gluonnlp")
    arrays = [nd.array(one) for one in batch.to_gluonnlp()]

    def run(at: str | None) -> tuple[list[bytes], Any]:
        net = small_bert(dropout=0.2, decoder=True)
        net(*arrays, nd.array([[1, 2], [0, 1]]))
        randomise(net)
        net.hybridize(hybrid)
        mx.random.seed(2)
        trainer = gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01}, kvstore=None)
        with autograd.train_mode() if at is None else embgrad.capture(net, at=at) as tap:
            for _ in range(3):
                with autograd.record():
                    _, _, logits = net(*arrays, nd.array([[1, 2], [0, 1]]))
                    loss = cross_entropy(logits, nd.array([[4, 5], [8, 9]])).mean()
                loss.backward()
                trainer.step(1, ignore_stale_grad=True)
        return bits(net), tap

    alone, _ = run(None)
    for at in ("word", "layer.0", "embeddings", "encoder.transformer_cells.1", "type"):
        captured, tap = run(at)
        assert captured == alone, at
        assert tap.count == 3
        assert tap.steps[0].values.any()


@pytest.mark.parametrize("at", ["word", "net", "inside"])
def test_a_symbol_block(at: str, tmp_path: Any) -> None:
    whole = nn.HybridSequential()
    whole.add(
        nn.Embedding(ROWS, DIM), nn.Dense(4, in_units=DIM, flatten=False), nn.Dropout(0.4), nn.Dense(3, in_units=20)
    )
    whole.initialize()
    randomise(whole)

    def imported() -> Any:
        around = nn.HybridSequential()
        around.add(exported(whole, [nd.array(LOOP[0][0])], tmp_path))
        return around

    inside, alone = imported(), imported()
    tap = in_a_capture(inside, at={"net": "0", "inside": whole[1].name}.get(at, at))
    train(alone)
    assert bits(inside) == bits(alone)
    assert tap.count == 3
    expected = in_a_capture(whole, at={"net": "3", "inside": "1"}.get(at, at)).steps[0]
    assert (tap.steps[0].values == expected.values).all()
    assert expected.values.any()


@pytest.mark.parametrize("hybrid", [False, True])
def test_a_wrapper_whose_forward_is_not_called_is_named_with_the_child_that_was(hybrid: bool) -> None:
    class Wrapper(gluon.Block):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = make(0.0, hybrid={} if hybrid else None)

        def forward(self, ids: Any) -> Any:
            return self.net(ids)

    wrapper, ids = Wrapper(), nd.array(LOOP[0][0])

    def step(called: Any) -> None:
        with autograd.record():
            loss = called(ids).square().sum()
        loss.backward()

    with pytest.raises(embgrad.errors.NoGradientError) as caught, embgrad.capture(wrapper):
        step(wrapper.net)
    assert caught.value.message == (
        "the forward of Wrapper was never called while the capture was open, and that of its child 'net' was: capture that "
        "child, as in embgrad.capture(model.net)"
    )
    with embgrad.capture(wrapper) as tap:
        step(wrapper)
    assert tap.count == 1
    with embgrad.capture(wrapper) as tap:  # no gradient is computed
        wrapper.net(ids)
    assert tap.count == 0
