"""No public function leaves a trace in nets with everything that has a state, nor keeps the user's hooks from being called."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from embgrad_torch import TorchBackend
from torch import nn

import embgrad
from embgrad.testing.calls import CALLS, Asked
from embgrad.testing.examples import EXAMPLES, VOCAB, example_batch
from embgrad.testing.leaving import Trial
from embgrad.testing.snapshot import different
from tests.contract.conformance.harness_torch import Harness, Telling

LABELS = np.array([2, 0, 1])
WIDTH = 8


class Layer(nn.Module):
    """A layer that writes to its buffers, lists, dicts and attributes at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.recurrent = nn.GRU(WIDTH, WIDTH, batch_first=True, bidirectional=False)
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("cache", torch.zeros(EXAMPLES, WIDTH), persistent=False)
        self.seen: list[Any] = []
        self.kept: dict[str, Any] = {"a list": [1, 2]}
        self.last: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.cache[: len(x)] = x.detach().mean(1)
        self.seen.append(x)
        self.kept["x"], self.last = x, x
        states = self.recurrent(self.norm(x.transpose(1, 2)).transpose(1, 2))[0]
        return x + self.dropout(states.tanh())


class Net(nn.Module):
    """A table that scales its rows, layers, a frozen part, a head whose weight is normed by a parametrization."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, WIDTH, max_norm=1.5)
        self.layers = nn.ModuleList([Layer() for _ in range(3)])
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.head = nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, 3))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        hidden = self.table(input_ids)
        for number, layer in enumerate(self.layers):
            hidden = layer(hidden)
            if number == 0:
                hidden = Telling.apply(hidden)
        return self.head(self.frozen(hidden).mean(1))


def everything() -> nn.Module:
    return in_use(Net().double())


def nothing(*_: Any) -> None:
    """A hook that does nothing."""


def in_use(model: nn.Module) -> nn.Module:
    """In both modes at once, with gradients in some buffers, and hooks of every kind."""
    model.eval()
    modules, parameters = list(model.modules()), list(model.parameters())
    modules[-1].train()
    for number, parameter in enumerate(parameters):
        if parameter.requires_grad and number % 2 == 0:
            parameter.grad = torch.full_like(parameter, 0.5)
        if parameter.requires_grad and number % 3 == 0:
            parameter.register_hook(nothing)
            parameter.register_post_accumulate_grad_hook(nothing)
    for module in modules[1::2]:
        module.register_forward_pre_hook(nothing)
        module.register_forward_hook(nothing, always_call=True)
        module.register_full_backward_pre_hook(nothing)
        module.register_full_backward_hook(nothing)
    model.register_state_dict_post_hook(nothing)
    return model


OURS = [name for name, call in CALLS.items() if TorchBackend().supports.issuperset(call.needs)]


def logits_of(outputs: Any) -> torch.Tensor:
    return outputs if isinstance(outputs, torch.Tensor) else outputs.logits


def step(model: nn.Module, ids: np.ndarray, labels: np.ndarray) -> None:
    optimiser = torch.optim.SGD(model.parameters(), 0.0)
    optimiser.zero_grad()
    nn.functional.cross_entropy(logits_of(model(torch.tensor(ids))), torch.tensor(labels)).backward()
    optimiser.step()


def trial(model: nn.Module, around: Callable[[], Any] = nullcontext) -> Trial:
    arguments = Asked(model, example_batch(), LABELS, lambda outputs: logits_of(outputs)[:, 1], step)
    return Trial(arguments, partial(Harness().state, model), Harness(), around)


@pytest.mark.parametrize("name", OURS)
def test_no_trace_of_a_call(name: str) -> None:
    assert everything_left(trial(everything()), name) == []


def everything_left(trials: Trial, name: str) -> list[str]:
    return [*trials.traces(CALLS[name]), *trials.traces_of_mistakes(CALLS[name])]


AROUND: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "saved on the disk": lambda: torch.autograd.graph.save_on_cpu(),
    "a device": lambda: torch.device("cpu"),
    "a function mode": lambda: torch.overrides.BaseTorchFunctionMode(),
}


@pytest.mark.parametrize("around", AROUND)
def test_no_trace_inside_contexts_of_the_user(around: str) -> None:
    trials = trial(everything(), AROUND[around])
    for name in ("gradients", "points"):
        assert trials.traces(CALLS[name]) == []


def test_no_trace_in_a_compiled_model() -> None:
    trials = trial(torch.compile(everything(), backend="eager"))
    for name in ("gradients", "gradients of a native objective", "points"):
        assert trials.traces(CALLS[name]) == []


Log = list[tuple[str, str]]

#: Hooks of a module, by what registers them.
OF_A_MODULE = (
    "register_forward_pre_hook",
    "register_forward_hook",
    "register_full_backward_pre_hook",
    "register_full_backward_hook",
)
#: Hooks of a parameter.
OF_A_PARAMETER = ("register_hook", "register_post_accumulate_grad_hook")


def log_hooks(model: nn.Module) -> Log:
    """Register hooks of every kind on every module and trainable parameter; return the log of their calls."""
    log: Log = []

    def recorder(kind: str, name: str) -> Callable[..., None]:
        return lambda *_: log.append((kind, name))

    for name, module in model.named_modules():
        for kind in OF_A_MODULE:
            getattr(module, kind)(recorder(kind, name))
    for name, parameter in model.named_parameters():
        for kind in OF_A_PARAMETER if parameter.requires_grad else ():
            getattr(parameter, kind)(recorder(kind, name))
    return log


def drain(log: Log) -> Log:
    entries = list(log)
    log.clear()
    return entries


class Plain(nn.Module):
    """Layers each of whose hooks is called in a backward pass, since each has an input that requires gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList([nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True) for _ in range(3)])
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        hidden = self.table(input_ids)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden.mean(1))


@pytest.fixture
def hooked() -> tuple[nn.Module, Log, Callable[[], Log]]:
    """Return a model with hooks, their log, and a function that returns the log of the user's own pass."""
    model = Plain().eval()
    log = log_hooks(model)

    def user_pass() -> Log:
        step(model, example_batch().ids, LABELS)
        return drain(log)

    return model, log, user_pass


def except_kinds(log: Log, *kinds: str) -> Log:
    return [entry for entry in log if entry[0] not in kinds]


@pytest.mark.parametrize("options", [{}, {"training": True}], ids=str)
def test_hooks_are_called_as_in_the_users_own_pass(hooked: Any, options: dict[str, Any]) -> None:
    """But those of parameters, whose gradients are not computed."""
    model, log, user_pass = hooked
    expected = user_pass()
    assert {kind for kind, _ in expected} == {*OF_A_MODULE, *OF_A_PARAMETER}
    embgrad.gradients(model, example_batch(), embgrad.CrossEntropy(LABELS), **options)
    assert drain(log) == except_kinds(expected, *OF_A_PARAMETER)
    assert user_pass() == expected


def test_hooks_of_parameters_are_called_by_parameter_gradients(hooked: Any) -> None:
    model, log, user_pass = hooked
    expected = user_pass()
    embgrad.tables.parameter_gradients(model, example_batch(), embgrad.CrossEntropy(LABELS))
    assert drain(log) == except_kinds(expected, "register_post_accumulate_grad_hook")  # nothing is accumulated
    assert user_pass() == expected


def test_hooks_in_a_captured_step(hooked: Any) -> None:
    model, _, user_pass = hooked
    expected = user_pass()
    with embgrad.capture(model):
        assert user_pass() == expected
    assert user_pass() == expected


def test_backward_hooks_run_down_to_the_point(hooked: Any) -> None:
    model, log, user_pass = hooked
    expected = user_pass()
    embgrad.gradients(model, example_batch(), embgrad.CrossEntropy(LABELS), at="layer.1")
    result = drain(log)
    result = [entry for entry in result if "backward" in entry[0]]  # a forward pass looks for the point first
    way = [entry for entry in expected if "backward" in entry[0]]
    assert way[: len(result)] == result
    assert result[-1] == ("register_full_backward_pre_hook", "layers.1")
    assert user_pass() == expected


@pytest.mark.parametrize("kind", OF_A_MODULE)
def test_a_hook_that_raises_leaves_no_trace(hooked: Any, kind: str) -> None:
    model, _, user_pass = hooked
    expected = user_pass()

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt("on purpose")

    before = Harness().state(model)
    hook = getattr(model.layers[1], kind)(interrupted)
    with pytest.raises(KeyboardInterrupt, match="on purpose"):
        embgrad.gradients(model, example_batch(), embgrad.CrossEntropy(LABELS))
    hook.remove()
    assert different("", before, Harness().state(model)) == {}
    assert user_pass()[-1] == expected[-1]


def test_a_graph_that_saved_a_buffer_stays_valid() -> None:
    """The model wrote to the buffer again, and its numbers are what they were."""

    class Caching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(VOCAB, WIDTH)
            self.register_buffer("scale", torch.ones(WIDTH))

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            rows = self.table(input_ids)
            self.scale.copy_(rows.detach().abs().mean((0, 1)))
            return (rows * self.scale).sum(1)

    model = Caching()
    loss = model(torch.tensor(example_batch().ids)).sum()
    embgrad.gradients(model, example_batch().ids + 1 - 2 * (example_batch().ids == VOCAB - 1), embgrad.Sum())
    loss.backward()
    expected = model.scale.detach().numpy()
    np.testing.assert_array_equal(model.table.weight.grad[int(example_batch().ids[0, 0])], expected)
