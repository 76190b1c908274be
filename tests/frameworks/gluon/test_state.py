"""The model and the process are left as they were, also when something raises."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import embgrad
from tests.contract.conformance.harness_gluon import Harness
from tests.frameworks.gluon.helpers import DIM, ROWS, built, distinct_ids, mx, relative
from tests.growing import Cache

nn, rnn, autograd, nd = mx.gluon.nn, mx.gluon.rnn, mx.autograd, mx.nd


class Net(mx.gluon.HybridBlock):
    """Everything that has a state: batch norm, dropout, pooling, a fused recurrent layer; and a switch to break it."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.E = nn.Embedding(ROWS, DIM)
            self.norm = nn.BatchNorm(axis=-1)
            self.encoder = rnn.GRU(3, dropout=0.5, num_layers=2)
            self.dropout = nn.Dropout(0.5)
            self.top = nn.Dense(3)
        self.error: BaseException | None = None

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        rows = self.dropout(self.norm(self.E(x)))
        if self.error is not None:
            raise self.error
        rows = F.Pooling(F.swapaxes(rows, 1, 2), kernel=(2,), pool_type="max", stride=(1,))
        return self.top(F.mean(self.encoder(F.transpose(rows, axes=(2, 0, 1))), axis=0))


def make(hybrid: bool = True) -> Any:
    net = built(Net, distinct_ids(), "float32")
    net.top.collect_params().setattr("grad_req", "null")
    net.norm.gamma.grad_req = "add"
    if hybrid:
        net.hybridize(static_alloc=True)
        net(nd.array(distinct_ids()))
    with autograd.record():
        net(nd.array(distinct_ids())).sum().backward()
    Harness().disturb(net)
    return net


class Broken(Exception):
    """What the tests raise."""


def interrupt(_: Any) -> Any:
    raise KeyboardInterrupt


def native_break(_: Any) -> Any:
    raise Broken


class Breaking(embgrad.Sum):
    """An objective that raises between forward and backward."""

    def evaluate(self, *_: Any) -> Any:
        raise Broken


ENDINGS: dict[str, tuple[Any, type[BaseException] | None, BaseException | None]] = {
    "well": (embgrad.Logit(0), None, None),
    "by the model": (embgrad.Logit(0), Broken, Broken()),
    "by an interrupted model": (embgrad.Logit(0), KeyboardInterrupt, KeyboardInterrupt()),
    "by the objective": (Breaking(), Broken, None),
    "by a native objective": (native_break, Broken, None),
    "by an interrupted objective": (interrupt, KeyboardInterrupt, None),
    "by an unknown output": (embgrad.Sum(output="nothing"), embgrad.OutputError, None),
    "by a wrong native shape": (lambda out: out, embgrad.ObjectiveError, None),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("ending", ENDINGS)
def test_state_is_what_it_was(ending: str, hybrid: bool, training: bool) -> None:
    objective, expected, in_model = ENDINGS[ending]
    net = make(hybrid)
    net.error = in_model
    before = Harness().state(net)
    run: Callable[[], Any] = lambda: embgrad.gradients(net, distinct_ids(), objective, training=training)  # noqa: E731
    if expected is None:
        run()
    else:
        with pytest.raises(expected):
            run()
    after = Harness().state(net)
    assert before.keys() == after.keys()
    assert [key for key in before if before[key] != after[key]] == []


def test_a_call_warns_of_nothing() -> None:
    """`mx.nd.array` asks SciPy for what it says is deprecated."""
    net = built(lambda: nn.Embedding(ROWS, DIM), distinct_ids(), "float32")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for options in ({}, {"batch_size": 1}):
            embgrad.gradients(net, distinct_ids(), embgrad.Sum(position=-1), **options)


def test_points_leaves_no_trace() -> None:
    net = make()
    before = Harness().state(net)
    assert [point.name for point in embgrad.points(net, distinct_ids()) if point.lookup is not None] == ["E#0"]
    assert Harness().state(net) == before


@pytest.mark.parametrize("scope", [autograd.record, autograd.pause, autograd.train_mode, autograd.predict_mode])
def test_the_users_scopes_stay_theirs(scope: Any) -> None:
    net, ids = make(), distinct_ids()
    expected = embgrad.gradients(net, ids, embgrad.Logit(0)).values
    weight = nd.array([2.0])
    weight.attach_grad()
    with scope():
        mode = (autograd.is_recording(), autograd.is_training())
        squared = weight * weight
        found = embgrad.gradients(net, ids, embgrad.Logit(0)).values
        native = embgrad.gradients(net, ids, lambda out: out[:, 0]).values
        assert (autograd.is_recording(), autograd.is_training()) == mode
        squared = squared * 3
    assert (found == expected).all()
    assert (native == expected).all()
    if scope is autograd.record:
        squared.backward()
        assert weight.grad.asscalar() == 12


def test_a_training_step_around_the_call_is_what_it_is_without() -> None:
    ids = nd.array(distinct_ids())

    def step(interrupted: bool) -> list[np.ndarray]:
        net = built(Net, distinct_ids(), "float32")
        net.encoder._dropout = net.dropout._rate = 0.0
        trainer = mx.gluon.Trainer(net.collect_params(), "adam")
        for _ in range(2):
            with autograd.record():
                loss = net(ids).square().sum()
                if interrupted:
                    embgrad.gradients(net, distinct_ids(), embgrad.Logit(1))
            loss.backward()
            if interrupted:
                embgrad.gradients(net, distinct_ids(), embgrad.Logit(1), training=True)
            trainer.step(2)
        return [parameter.data().asnumpy() for parameter in net.collect_params().values()]

    assert all(np.array_equal(a, b) for a, b in zip(step(False), step(True), strict=True))


def test_random_numbers_move_in_training_mode_only() -> None:
    net = make(hybrid=False)

    def drawn(**options: Any) -> float:
        mx.random.seed(7)
        if options:
            embgrad.gradients(net, distinct_ids(), embgrad.Logit(0), **options)
        return float(nd.random.uniform().asscalar())

    assert drawn(training=False) == drawn()
    assert drawn(training=True) != drawn()
    mx.random.seed(7)
    with autograd.train_mode():
        embgrad.points(net, distinct_ids())
    assert float(nd.random.uniform().asscalar()) == drawn()


def test_training_mode_drops_as_the_users_own_forward_pass() -> None:
    class Dropping(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.E = nn.Embedding(ROWS, DIM)
            self.dropout = nn.Dropout(0.5)

        def hybrid_forward(self, F: Any, x: Any) -> Any:
            return F.sum(F.square(self.dropout(self.E(x))), axis=1)

    net = built(Dropping, distinct_ids(), "float64")
    mx.random.seed(3)
    found = embgrad.gradients(net, distinct_ids(), embgrad.Sum(), training=True)
    mx.random.seed(3)
    with autograd.record():
        own = net(nd.array(distinct_ids(), dtype="float64"))
    own.backward()
    assert np.allclose(found.objective, own.sum(axis=1).asnumpy())
    rows = net.E.weight.grad().asnumpy()[distinct_ids()]
    assert relative(found.values, rows) < 1e-12
    assert (rows == 0).any()


@pytest.mark.parametrize("training", [False, True])
def test_buffers_of_the_users_own_come_back(training: bool) -> None:
    class Counting(mx.gluon.Block):
        def __init__(self) -> None:
            super().__init__()
            self.E = nn.Embedding(ROWS, DIM)
            self.count = self.params.get("count", shape=(1,), init="zeros", grad_req="null")

        def forward(self, x: Any) -> Any:
            self.count.set_data(self.count.data() + 1)
            return self.E(x).sum(axis=1)

    net = Counting()
    net.initialize()
    embgrad.gradients(net, distinct_ids(), embgrad.Sum(), training=training)
    assert net.count.data().asscalar() == 0


def test_averages_of_a_net_that_was_never_called_stay_at_their_start() -> None:
    net = nn.HybridSequential()
    net.add(nn.Embedding(ROWS, DIM), nn.BatchNorm(axis=-1), nn.Dense(3))
    net.initialize()
    embgrad.gradients(net, distinct_ids(), embgrad.Sum(), training=True)
    assert (net[1].running_mean.data().asnumpy() == 0).all()
    assert (net[1].running_var.data().asnumpy() == 1).all()


def test_a_net_that_was_never_called_keeps_no_graph_of_ours() -> None:
    class Optional(mx.gluon.HybridBlock):
        def __init__(self) -> None:
            super().__init__()
            self.E = nn.Embedding(ROWS, DIM)
            self.weight = self.params.get("weight", shape=(3, 0), allow_deferred_init=True)

        def hybrid_forward(self, F: Any, x: Any, valid_length: Any = None, weight: Any = None) -> Any:
            rows = self.E(x)
            if valid_length is not None:
                rows = F.SequenceMask(rows, valid_length, use_sequence_length=True, axis=1)
            return F.FullyConnected(F.mean(rows, axis=1), weight, no_bias=True, num_hidden=3)

    net = Optional()
    net.initialize()
    net.hybridize()
    embgrad.gradients(net, embgrad.TokenBatch(distinct_ids(), np.ones((2, 5))), embgrad.Sum())
    assert net(nd.array(distinct_ids())).shape == (2, 3)  # called without lengths from here on


def test_one_thread_at_a_time_in_one_model() -> None:
    inside, most = [], []

    class Slow(mx.gluon.Block):
        def __init__(self) -> None:
            super().__init__()
            self.E = nn.Embedding(ROWS, DIM)

        def forward(self, x: Any) -> Any:
            inside.append(1)
            time.sleep(0.05)
            most.append(len(inside))
            inside.pop()
            return self.E(x).sum(axis=1)

    net = Slow()
    net.initialize()
    threads = [threading.Thread(target=embgrad.gradients, args=(net, distinct_ids(), embgrad.Sum())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1]


def test_two_threads_on_one_net_and_the_users_own_calls_between_them() -> None:
    net, ids = make(), distinct_ids()
    expected = embgrad.gradients(net, ids, embgrad.Logit(0)).values
    plain = net(nd.array(ids)).asnumpy()
    before = Harness().state(net)
    found: list[np.ndarray] = []
    outputs: list[np.ndarray] = []

    def ours() -> None:
        for _ in range(5):
            found.append(embgrad.gradients(net, ids, embgrad.Logit(0)).values)

    def theirs() -> None:
        for _ in range(20):
            outputs.append(net(nd.array(ids)).asnumpy())

    threads = [threading.Thread(target=ours), threading.Thread(target=ours), threading.Thread(target=theirs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 10
    assert all((one == expected).all() for one in found)
    assert len(outputs) == 20
    assert all(np.allclose(one, plain, atol=1e-6) for one in outputs)
    assert Harness().state(net) == before


def test_nets_in_two_threads_do_not_see_each_others_lookups() -> None:
    barrier = threading.Barrier(2)
    results: dict[int, Any] = {}

    class Waiting(mx.gluon.Block):
        def __init__(self) -> None:
            super().__init__()
            self.E = nn.Embedding(ROWS, DIM)

        def forward(self, x: Any) -> Any:
            barrier.wait()
            rows = self.E(x)
            barrier.wait()
            return rows.sum(axis=1)

    def work(number: int) -> None:
        net = Waiting()
        net.initialize()
        results[number] = embgrad.points(net, distinct_ids())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(points) for points in results.values()] == [1, 1]


def test_a_call_inside_a_model_that_is_run() -> None:
    inner = built(Net, distinct_ids(), "float32")

    class Outer(mx.gluon.Block):
        def __init__(self) -> None:
            super().__init__()
            self.E = nn.Embedding(ROWS, DIM)

        def forward(self, x: Any) -> Any:
            weights = nd.array(embgrad.gradients(inner, distinct_ids(), embgrad.Logit(0)).values)
            return (self.E(x) * weights).sum(axis=1)

    net = Outer()
    net.initialize()
    found = embgrad.gradients(net, distinct_ids(), embgrad.Sum())
    assert found.provenance["path"] == "E#0"
    assert np.allclose(found.values, embgrad.gradients(inner, distinct_ids(), embgrad.Logit(0)).values)


def test_what_someone_else_puts_over_the_choke_point_stays() -> None:
    register = mx.ndarray.register
    original = register._imperative_invoke
    theirs = []

    class Patching(mx.gluon.Block):
        def __init__(self) -> None:
            super().__init__()
            self.E = nn.Embedding(ROWS, DIM)

        def forward(self, x: Any) -> Any:
            below = register._imperative_invoke

            def on_top(*args: Any) -> Any:
                theirs.append(args[0])
                return below(*args)

            register._imperative_invoke = on_top
            return self.E(x).sum(axis=1)

    net = Patching()
    net.initialize()
    try:
        embgrad.gradients(net, distinct_ids(), embgrad.Sum())
        count = len(theirs)
        nd.ones((2,)) + 1
        assert len(theirs) > count > 0
    finally:
        register._imperative_invoke = original


class Growing(mx.gluon.Block):
    """Makes what it is given longer, or writes into it, and computes with what is there."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.E = nn.Embedding(ROWS, DIM)

    def forward(self, ids: Any, given: Any) -> Any:
        if isinstance(given, list):
            given.append(1.0)
        elif isinstance(given, nd.NDArray):
            given += 1.0
            return float(given.asscalar()) * self.E(ids).sum(axis=1)
        return (len(given) if isinstance(given, list) else given["cache"].grow()) * self.E(ids).sum(axis=1)


@pytest.mark.parametrize(
    "option",
    [{}, {"at": "E"}, {"override": {"word": lambda rows: rows}}],
    ids=lambda one: "".join(one),
)
@pytest.mark.parametrize("by_call", [False, True])
def test_what_is_given_along_is_each_passs_own(option: dict[str, Any], by_call: bool) -> None:
    call = (lambda model, inputs: model(inputs["input_ids"], inputs["given"])) if by_call else None
    net = Growing()
    net.initialize()
    for given in ([], nd.zeros((1,)), {"cache": Cache(), "lock": threading.Lock()}):
        batch = {"input_ids": distinct_ids(), "given": given}
        found = embgrad.gradients(net, batch, embgrad.Sum(), call=call, **option)
        np.testing.assert_array_equal(found.values, np.ones_like(found.values))
        assert not (given["cache"].steps if isinstance(given, dict) else sum(given))
