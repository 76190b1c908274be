"""What a capture inside a PyTorch training loop refuses, and how it names what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import embgrad
from tests.frameworks.torch.checks import VOCAB
from tests.frameworks.torch.test_capture import BATCHES, Net, net

IS_OLD = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7)


@pytest.mark.parametrize("times", [1, 2])
def test_a_model_that_calls_itself_is_refused(times: int) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(VOCAB, 4)

        def forward(self, x: torch.Tensor, inner: bool = False) -> torch.Tensor:
            return self.table(x) if inner else sum(self(x, inner=True) for _ in range(times))

    model = Twice()
    with embgrad.capture(model) as tap:
        with pytest.raises(embgrad.errors.UnsupportedError, match="Twice calls itself"):
            model(BATCHES[0])
        model(BATCHES[0], inner=True).square().sum().backward()
    assert tap.count == 1
    assert not torch.overrides._get_current_function_mode_stack()


def test_a_compiled_model_is_refused() -> None:
    model = net()
    inner = net()
    inner.layers[1] = torch.compile(inner.layers[1], backend="eager")
    in_place = net()
    in_place.compile(backend="eager")
    function = net()
    function.head.forward = torch.compile(function.head.forward, backend="eager")
    message = r"is compiled by torch.compile.*Train the model that you gave"
    for compiled in (torch.compile(model, backend="eager"), inner, in_place, function):
        with pytest.raises(embgrad.errors.UnsupportedError, match=message):  # noqa: SIM117
            with embgrad.capture(compiled):
                pass


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("whole", [True, False])
def test_models_of_torchscript_are_refused(whole: bool) -> None:
    class Plain(nn.Sequential):
        pass

    model = Plain(nn.Embedding(VOCAB, 4), nn.Linear(4, 3))
    if whole:
        scripted = torch.jit.trace(model, BATCHES[0])
    else:
        scripted, model[1] = model, torch.jit.script(model[1])
    named = "'TopLevelTracedModule'" if whole else "'1'"
    message = (
        rf"^{named} is a TorchScript module, whose calls cannot be captured or perturbed\. Use the torch\.nn\.Module"
    )
    with pytest.raises(embgrad.errors.UnsupportedError, match=message), embgrad.capture(scripted):
        raise AssertionError("it is not opened")


def test_replicas_on_several_devices_are_refused() -> None:
    """On this machine there may be none: what it would be told of two."""
    replicated = nn.DataParallel(net())
    replicated.device_ids = [0, 1]
    message = (
        "the model is replicated on 2 devices by DataParallel, and its replicas run in other threads. Use one device, or "
        r"name model\.module"
    )
    with pytest.raises(embgrad.errors.UnsupportedError, match=message), embgrad.capture(replicated):
        raise AssertionError("it is not opened")
    replicated.device_ids = [0]
    with embgrad.capture(replicated) as tap:
        assert tap.count == 0
    with embgrad.capture(replicated.module) as tap:
        replicated.module(BATCHES[0]).sum().backward()
    assert tap.count == 1


def compiled_by(runs: list[int]) -> Any:
    def backend(graph: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            runs.append(1)
            return graph(*args)

        return run

    return lambda function: torch.compile(function, backend=backend)


def test_compiled_functions_inside_a_model_stay_compiled_or_are_refused() -> None:
    runs: list[int] = []
    bend = compiled_by(runs)(lambda hidden: hidden.tanh() * 2)
    whole = compiled_by(runs)(lambda net, ids: net.head(net.table(ids).mean(1)))

    class Part(Net):
        def forward(self, input_ids: Any) -> Any:
            return self.head(bend(self.table(input_ids)).mean(1))

    class Whole(Net):
        def forward(self, input_ids: Any) -> Any:
            return whole(self, input_ids)

    for at in ("word", "head"):
        model, runs[:] = net(Part), []
        with embgrad.capture(model, at=at) as tap:
            model(BATCHES[0]).sum().backward()
        assert tap.count == 1
        assert len(runs) == int(at == "head" or not IS_OLD)  # PyTorch 2.6 compiles nothing while functions are watched
        model = net(Whole)
        with pytest.raises(embgrad.errors.UnsupportedError, match=r"inside a function that torch.compile compiles"):  # noqa: SIM117
            with embgrad.capture(model, at=at):
                model(BATCHES[0])
        assert not torch.overrides._get_current_function_mode_stack()
    step = compiled_by(runs)(lambda net, ids: net(ids).sum())
    model = net()
    with pytest.raises(embgrad.errors.UnsupportedError, match=r"inside a function that torch.compile compiles"):  # noqa: SIM117
        with embgrad.capture(model):
            step(model, BATCHES[0])


def test_bags_and_views_that_are_written_to_are_refused() -> None:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.EmbeddingBag(VOCAB, 4), nn.Linear(4, 3)

        def forward(self, x: Any) -> Any:
            return self.head(self.table(x))

    model = net(Bag)
    message = r"so that your backward pass has no gradient at each position"
    with pytest.raises(embgrad.errors.UnsupportedError, match=message), embgrad.capture(model):
        model(BATCHES[0])
    with embgrad.capture(model, at="head") as tap:
        model(BATCHES[0]).sum().backward()
    assert tap.count == 1
    assert not torch.overrides._get_current_function_mode_stack()

    class View(Net):
        def __init__(self) -> None:
            super().__init__()
            self.flat = nn.Flatten(0, 1)

        def forward(self, input_ids: Any) -> Any:
            flat = self.flat(self.table(input_ids))
            flat *= 2
            return self.head(flat)

    model = net(View)
    with (
        pytest.raises(embgrad.errors.UnsupportedError, match=r"'flat:output#0' shares its memory with another"),
        embgrad.capture(model, at="flat"),
    ):
        model(BATCHES[0]).sum().backward()
    model.zero_grad()
    with embgrad.capture(model) as tap:
        model(BATCHES[0]).sum().backward()
    np.testing.assert_allclose(tap.sum().to_dense(), model.table.weight.grad.numpy(), rtol=1e-6)


class Wrapper(nn.Module):
    """As a LightningModule: `training_step` calls a child, and `forward` is for who predicts."""

    def __init__(self) -> None:
        super().__init__()
        self.model = net()

    def forward(self, input_ids: Any) -> Any:
        return self.model(input_ids)

    def training_step(self, input_ids: Any) -> Any:
        return self.model(input_ids).square().sum()


WRAPPED = (
    "the forward of Wrapper was never called while the capture was open, and that of its child 'model' was: capture that child, "
    "as in embgrad.capture(model.model)"
)


def test_a_wrapper_whose_forward_is_not_called_is_named_with_the_child_that_was() -> None:
    wrapper = Wrapper()
    with pytest.raises(embgrad.errors.NoGradientError) as caught, embgrad.capture(wrapper):
        wrapper.training_step(BATCHES[0]).backward()
    assert caught.value.message == WRAPPED
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in wrapper.modules())
    with embgrad.capture(wrapper.model) as tap:
        wrapper.training_step(BATCHES[0]).backward()
    assert tap.count == 1
    with embgrad.capture(wrapper) as tap, torch.no_grad():  # no gradient was computed
        wrapper.training_step(BATCHES[0])
    assert tap.count == 0
