"""No public function leaves a trace in nets with everything that has a state, nor keeps the user's own hooks from their calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from embgrad_gluon import GluonBackend

import embgrad
from embgrad.testing import faults
from embgrad.testing.calls import CALLS, Asked
from embgrad.testing.examples import VOCAB, example_batch
from embgrad.testing.leaving import Trial
from embgrad.testing.snapshot import different
from tests.contract.conformance.harness_gluon import Harness, Telling, raising
from tests.frameworks.gluon.exporting import exported
from tests.frameworks.gluon.helpers import mx

nn, rnn, autograd, nd = mx.gluon.nn, mx.gluon.rnn, mx.autograd, mx.nd

LABELS = np.array([2, 0, 1])
WIDTH = 4
CLOSED = frozenset({"forward", "backward"})

#: The public calls of which Gluon's backend has the abilities.
OURS = [name for name, call in CALLS.items() if GluonBackend().supports.issuperset(call.needs)]


class Layer(mx.gluon.HybridBlock):
    """A layer with running averages and dropout, the second a recurrent one."""

    def __init__(self, *, recurrent: bool) -> None:
        super().__init__()
        with self.name_scope():
            self.norm, self.dropout = nn.BatchNorm(axis=2), nn.Dropout(0.5)
            self.inner = rnn.GRU(WIDTH, layout="NTC") if recurrent else nn.Dense(WIDTH, flatten=False)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return x + self.dropout(F.tanh(self.inner(self.norm(x))))


class Net(mx.gluon.HybridBlock):
    """A table with sparse gradients, layers, and a head of which a part is frozen."""

    def __init__(self, *, with_function: bool, sparse: bool = True) -> None:
        super().__init__()
        with self.name_scope():
            self.table = nn.Embedding(VOCAB, WIDTH, sparse_grad=sparse)
            self.layers = nn.HybridSequential()
            for number in range(3):
                self.layers.add(Layer(recurrent=number == 1))
            self.head = nn.Dense(3)
        self.with_function = with_function
        self.notes = ["mine"]

    def hybrid_forward(self, F: Any, ids: Any) -> Any:
        hidden = self.layers[0](self.table(ids))
        if self.with_function:
            hidden = Telling()(hidden)
            self.notes.append(hidden)
        return self.head(F.mean(self.layers[2](self.layers[1](hidden)), axis=1))


class Writing(mx.gluon.Block):
    """An imperative net that writes to a parameter of its own, as a counter."""

    def __init__(self) -> None:
        super().__init__()
        with self.name_scope():
            self.net = Net(with_function=True)
            self.count = self.params.get("count", shape=(1,), init="zeros", grad_req="null")

    def forward(self, ids: Any) -> Any:
        self.count.set_data(self.count.data() + 1)
        return self.net(ids)


def in_use(net: Any) -> Any:
    """Return the net after a training step, with gradients in its buffers, frozen and adding parameters, and hooks."""
    net.initialize(mx.init.Normal(0.5))
    with autograd.record():
        net(nd.array(example_batch().ids)).sum().backward()
    for name, parameter in net.collect_params().items():
        if parameter.grad_req != "null" and "embedding" not in name:  # MXNet cannot add up sparse gradients
            parameter.grad_req = "null" if "dense0" in name else ("write", "add")[len(name) % 2]
    for block in blocks(net)[::2]:
        block.register_forward_hook(nothing)
        block.register_forward_pre_hook(nothing)
    return net


def nothing(*_: Any) -> None:
    """A hook that does nothing."""


def blocks(block: Any) -> list[Any]:
    return [block, *(inner for child in block._children.values() for inner in blocks(child))]


def outside(block: Any) -> list[Any]:
    """Return the blocks that are not inside one that runs as a graph."""
    inner = [] if getattr(block, "_active", False) else block._children.values()
    return [block, *(one for child in inner for one in outside(child))]


def hybridised(**flags: Any) -> Any:
    """Return a hybridised net with a hook, which is called outside its graph."""
    net = Net(with_function=False)
    net.initialize(mx.init.Normal(0.5))
    net.hybridize(**flags)
    net(nd.array(example_batch().ids))
    net.register_forward_hook(nothing)
    return net


def symbol_block(folder: Path) -> Any:
    net = Net(with_function=False, sparse=False)
    net.initialize(mx.init.Normal(0.5))
    return exported(net, [nd.array(example_batch().ids)], folder)


def step(net: Any, ids: np.ndarray, labels: np.ndarray) -> None:
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.0})
    with autograd.record():
        loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()(net(nd.array(ids)), nd.array(labels)).mean()
    with raising():
        loss.backward()
    trainer.step(1, ignore_stale_grad=True)


def trial(net: Any, silent: frozenset[str] = frozenset()) -> Trial:
    asked = Asked(net, example_batch(), LABELS, lambda logits: logits[:, 1], step)
    return Trial(asked, partial(Harness().state, net), Harness(), silent=silent)


def everything_left(tried: Trial, name: str) -> list[str]:
    return [*tried.traces(CALLS[name]), *tried.traces_of_mistakes(CALLS[name])]


@pytest.mark.filterwarnings("ignore::embgrad.EmbgradWarning")
@pytest.mark.parametrize("name", OURS)
def test_no_trace_in_an_imperative_net(name: str) -> None:
    assert everything_left(trial(in_use(Net(with_function=True))), name) == []


@pytest.mark.parametrize("name", ["gradients", "gradients, in training", "points", "capture"])
def test_no_trace_in_a_net_that_writes_to_its_parameters(name: str) -> None:
    assert everything_left(trial(in_use(Writing())), name) == []


@pytest.mark.parametrize("name", ["gradients", "parameter_gradients", "capture"])
def test_no_trace_in_a_net_hybridised_with_static_memory(name: str) -> None:
    assert everything_left(trial(hybridised(static_alloc=True, static_shape=True), CLOSED), name) == []


@pytest.mark.filterwarnings("ignore:Cannot decide type:UserWarning")
@pytest.mark.parametrize("name", ["gradients", "gradients, split", "points", "capture"])
def test_no_trace_in_a_symbol_block(name: str, tmp_path: Path) -> None:
    assert everything_left(trial(symbol_block(tmp_path), CLOSED), name) == []


SCOPES: dict[str, Callable[[], Any]] = {
    "record": autograd.record,
    "record, without training": lambda: autograd.record(train_mode=False),
    "pause": autograd.pause,
    "train_mode": autograd.train_mode,
    "a prefix": lambda: mx.name.Prefix("mine_"),
    "attributes": lambda: mx.AttrScope(mine="1"),
    "a context": lambda: mx.cpu(0),
}


@pytest.mark.parametrize("scope", SCOPES)
def test_no_trace_inside_of_the_users_own_scopes(scope: str) -> None:
    tried = trial(in_use(Writing()))
    tried.around = SCOPES[scope]
    for name in ("gradients", "points", "parameter_gradients"):
        assert tried.traces(CALLS[name]) == []


def test_a_recording_around_a_failed_call_continues() -> None:
    net, weight = hybridised(), nd.array([2.0])
    weight.attach_grad()
    with autograd.record():
        squared = weight * weight
        with (
            pytest.raises(faults.UserError, match="on purpose"),
            faults.raising("call", faults.UserError("on purpose")),
        ):
            embgrad.gradients(net, example_batch(), embgrad.Sum(), call=trial(net).asked.call)
        cubed = squared * weight
    cubed.backward()
    assert weight.grad.asscalar() == 12


Log = list[tuple[str, str]]


def log_hooks(net: Any) -> Log:
    """Log from now on which hooks are called on which blocks, except inside graphs."""
    log: Log = []
    for block in outside(net):
        block.register_forward_pre_hook(lambda one, given: log.append(("before", one.name)))
        block.register_forward_hook(lambda one, given, output: log.append(("after", one.name)))
    return log


@pytest.fixture(params=["imperative", "hybridised inside"])
def hooked(request: Any) -> tuple[Any, Log, Callable[[], Log]]:
    """A net with hooks on every block, what they note, and what they note in the user's own pass."""
    net = Writing()
    net.net.with_function = False
    net.initialize(mx.init.Normal(0.5))
    net(nd.array(example_batch().ids))
    if request.param == "hybridised inside":
        net.net.layers[1].hybridize()
        net.net.head.hybridize()
    log = log_hooks(net)

    def own() -> Log:
        log.clear()
        step(net, example_batch().ids, LABELS)
        return list(log)

    return net, log, own


@pytest.mark.filterwarnings("ignore::embgrad.EmbgradWarning")
@pytest.mark.parametrize("options", [{}, {"training": True}, {"split": True}], ids=str)
def test_hooks_are_called_as_in_the_users_own_pass(hooked: Any, options: dict[str, Any]) -> None:
    net, log, own = hooked
    expected = own()
    log.clear()
    embgrad.gradients(net, example_batch(), embgrad.CrossEntropy(LABELS), **options)
    assert log == expected
    assert own() == expected


def test_hooks_in_a_captured_step(hooked: Any) -> None:
    net, _, own = hooked
    expected = own()
    with embgrad.capture(net):
        assert own() == expected
    assert own() == expected


@pytest.mark.parametrize("kind", ["register_forward_pre_hook", "register_forward_hook"])
def test_hooks_that_raise(hooked: Any, kind: str) -> None:
    net, _, own = hooked
    expected = own()

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt("on purpose")

    before = Harness().state(net)
    hook = getattr(net.net.layers[1], kind)(interrupted)
    with pytest.raises(KeyboardInterrupt, match="on purpose"):
        embgrad.gradients(net, example_batch(), embgrad.CrossEntropy(LABELS))
    hook.detach()
    assert different("", before, Harness().state(net)) == {}
    assert own() == expected


@pytest.mark.parametrize("kind", [faults.UserError, KeyboardInterrupt, SystemExit])
def test_an_exception_in_a_custom_backward_is_raised(kind: type[BaseException]) -> None:
    """MXNet makes of it an error of its own, or none at all and a gradient of any numbers; and prints."""
    net = in_use(Writing())
    expected = embgrad.gradients(net, example_batch(), embgrad.Sum()).values
    error = kind("on purpose")
    for options in ({}, {"split": True}, {"edit": {"layer.0": lambda gradient: gradient}}):
        with pytest.raises(kind) as caught, faults.raising("backward", error):
            embgrad.gradients(net, example_batch(), embgrad.Sum(), **options)
        assert caught.value is error
    np.testing.assert_array_equal(embgrad.gradients(net, example_batch(), embgrad.Sum()).values, expected)
