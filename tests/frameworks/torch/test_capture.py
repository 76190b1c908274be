"""Capture inside PyTorch training loops: the gradients against PyTorch's own, and the loop bit for bit as without it."""

from __future__ import annotations

import contextlib
import copy
import io
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import embgrad
from tests.frameworks.torch.architectures import ARCHITECTURES, native
from tests.frameworks.torch.checks import VOCAB, Layers

RANDOM = np.random.default_rng(0)
BATCHES = [torch.tensor(RANDOM.integers(0, VOCAB, (2, length))) for length in (4, 3, 4, 5)]
LABELS = torch.tensor([0, 2])


class Net(Layers):
    """Layers that draw random numbers, behind a norm that keeps averages."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__(reentrant, dropout=0.3)
        self.norm = nn.BatchNorm1d(4)

    def embed(self, ids: Any) -> Any:
        return self.norm(self.table(ids).transpose(1, 2)).transpose(1, 2)


def net(kind: Callable[..., Any] = Net, **options: Any) -> Any:
    torch.manual_seed(0)
    return kind(**options).train()


@contextlib.contextmanager
def by_hand(model: Any) -> Iterator[dict[str, list[Any]]]:
    """Yield the gradients at two modules, received by hooks that are written by hand."""
    received: dict[str, list[Any]] = {"word": [], "layer.1": []}

    def listen(name: str) -> Any:
        def hook(module: Any, given: Any, output: Any) -> None:
            tensor = output if isinstance(output, torch.Tensor) else output[0]
            if tensor.requires_grad:
                tensor.register_hook(lambda grad: received[name].append(grad.float().numpy().copy()))

        return hook

    handles = [
        model.table.register_forward_hook(listen("word")),
        model.layers[1].register_forward_hook(listen("layer.1")),
    ]
    yield received
    for handle in handles:
        handle.remove()


def train(model: Any, loop: str) -> None:
    accumulates = loop == "accumulating"
    optimiser = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for number, ids in enumerate(BATCHES):
        if loop == "evaluating":
            model.eval()
            for mode in (torch.no_grad, torch.inference_mode):
                with mode():
                    model(ids)
            model.train()
        with torch.autocast("cpu", torch.bfloat16, enabled=loop == "autocast"):
            loss = nn.functional.cross_entropy(model(input_ids=ids), LABELS)
        (loss / 2 if accumulates else loss).backward()
        if not accumulates or number % 2:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            optimiser.zero_grad()


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def expect_same_weights(model: Any, other: Any, *, exactly: bool = True) -> None:
    for name, value in weights(model).items():
        torch.testing.assert_close(
            value, weights(other)[name], rtol=0 if exactly else 1e-5, atol=0 if exactly else 1e-7
        )


@pytest.mark.parametrize("reentrant", [None, False, True])
@pytest.mark.parametrize("at", ["word", "layer.1", "layers.1:input"])
@pytest.mark.parametrize("loop", ["plain", "accumulating", "autocast", "evaluating"])
def test_the_loop_is_unchanged_and_each_step_is_captured(loop: str, at: str, reentrant: bool | None) -> None:
    alone, listened, captured = (net(reentrant=reentrant) for _ in range(3))
    torch.manual_seed(5)
    train(alone, loop)
    random = torch.get_rng_state()
    torch.manual_seed(5)
    with by_hand(listened) as received:
        train(listened, loop)
    torch.manual_seed(5)
    with embgrad.capture(captured, at=at) as tap:
        train(captured, loop)
    assert torch.equal(torch.get_rng_state(), random)
    exactly = at == "word" or not reentrant  # at a module reentrant segments run as if they were not
    expect_same_weights(captured, alone, exactly=exactly)
    expect_same_weights(captured, listened, exactly=exactly)
    assert tap.count == len(BATCHES)
    if at in received:
        for step, expected, ids in zip(tap.steps, received[at], BATCHES, strict=True):
            np.testing.assert_allclose(step.values, expected, rtol=0 if exactly else 1e-4, atol=0 if exactly else 1e-7)
            np.testing.assert_array_equal(step.ids, ids.numpy())
    if at == "word":
        total = np.zeros((VOCAB, 4))
        for ids, gradient in zip(BATCHES, received["word"], strict=True):
            np.add.at(total, ids.numpy(), gradient)
        np.testing.assert_allclose(tap.sum().to_dense(), total, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(tap.mean().to_dense(), total / 4, rtol=1e-5, atol=1e-7)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in captured.modules())
    assert not torch.overrides._get_current_function_mode_stack()


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_several_passes_behind_one_loss_are_one_step(reentrant: bool | None) -> None:
    alone, captured = net(reentrant=reentrant), net(reentrant=reentrant)

    def loop(model: Any) -> None:
        for first, second in (BATCHES[:2], BATCHES[2:]):
            loss = (model(first) * model(second).detach()).sum() + model(second).square().sum()
            loss.backward()

    torch.manual_seed(1)
    loop(alone)
    torch.manual_seed(1)
    with embgrad.capture(captured) as words, embgrad.capture(captured, at="layer.1") as layers:
        loop(captured)
    assert words.count == layers.count == 2
    assert words.passes == 6
    assert words.steps[0].values.shape == (4, 4, 4)
    table = captured.table.weight.grad.numpy()
    np.testing.assert_allclose(words.sum().to_dense(), table, rtol=1e-4, atol=1e-6)
    accuracy = {"rtol": 1e-5, "atol": 1e-6} if reentrant else {"rtol": 0, "atol": 0}
    for captured_weight, weight in zip(captured.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(captured_weight.grad, weight.grad, **accuracy)


@pytest.mark.parametrize(
    ("at", "reentrant"), [("word", None), ("norm", None), ("layer.0", None), ("word", False), ("norm", False)]
)
def test_frozen_tables_and_layers_are_captured(at: str, reentrant: bool | None) -> None:
    alone, captured, whole = (net(reentrant=reentrant) for _ in range(3))
    for model in (alone, captured):
        for part in (model.table, model.norm, model.layers[0]):
            part.requires_grad_(False)
    torch.manual_seed(4)
    train(alone, "plain")
    torch.manual_seed(4)
    with embgrad.capture(captured, at=at) as tap:
        train(captured, "plain")
    expect_same_weights(captured, alone)
    assert captured.table.weight.grad is None
    torch.manual_seed(4)
    with embgrad.capture(whole, at=at) as first:
        nn.functional.cross_entropy(whole(BATCHES[0]), LABELS).backward()
    np.testing.assert_allclose(tap.steps[0].values, first.steps[0].values, rtol=1e-4, atol=1e-7)


def test_a_backward_pass_after_the_capture_is_not_captured() -> None:
    model = net()
    with embgrad.capture(model) as tap:
        late = model(BATCHES[0]).square().sum()
        model(BATCHES[1]).square().sum().backward()
    late.backward()
    assert tap.count == 1
    with (
        pytest.raises(embgrad.errors.NoGradientError, match=r"called 1 time\(s\), and no gradient reached 'word'"),
        embgrad.capture(model),
        torch.no_grad(),
    ):
        model(BATCHES[0])


def test_only_this_model_in_this_thread_is_captured() -> None:
    model = net()
    with embgrad.capture(model) as tap:
        thread = threading.Thread(target=lambda: model(BATCHES[1]).sum().backward())
        thread.start()
        thread.join()
        other = copy.deepcopy(model)
        other(BATCHES[1]).sum().backward()
        torch.save(model, io.BytesIO())
        model.layers[1](torch.zeros(1, 2, 4))[0].sum().backward()  # no call of the model's own
        embgrad.gradients(model, BATCHES[0], embgrad.Logit(0))
        embgrad.gradients(model, BATCHES[0], lambda logits: (logits + model(BATCHES[0]))[:, 0], at="table#0")
        model(BATCHES[0]).sum().backward()
    assert (tap.count, tap.passes) == (1, 1)
    assert not other._forward_hooks or other(BATCHES[1]) is not None
    with embgrad.capture(other) as again:
        other(BATCHES[1]).sum().backward()
    assert again.count == 1


def test_autograd_grad_is_a_backward_pass_too() -> None:
    model = net()
    with embgrad.capture(model) as tap:
        loss = model(BATCHES[0]).square().sum()
        torch.autograd.grad(loss, list(model.head.parameters()), retain_graph=True)
        assert tap.count == 0  # the lookup is not on the way to the head
        (gradient,) = torch.autograd.grad(loss, [model.table.weight], create_graph=True)
        assert tap.count == 1
    np.testing.assert_allclose(tap.sum().to_dense(), gradient.detach().numpy(), rtol=1e-5, atol=1e-7)


def test_a_capture_of_layers_around_one_of_words_and_the_other_way_round() -> None:
    for names in (("word", "layer.1"), ("layer.1", "word")):
        model = net(reentrant=True)
        with embgrad.capture(model, at=names[0]) as first, embgrad.capture(model, at=names[1]) as second:
            model(BATCHES[0]).sum().backward()
        assert (first.count, second.count) == (1, 1)


def test_checkpoints_of_the_loop_still_run_twice() -> None:
    """They are there because memory is short."""
    for reentrant in (False, True):
        for at in ("word", "layer.1"):
            model, runs = net(reentrant=reentrant), []
            model.layers[2].register_forward_pre_hook(lambda *given, runs=runs: runs.append(1))
            with embgrad.capture(model, at=at):
                model(BATCHES[0])  # in which the points are found
                runs.clear()
                model(BATCHES[0]).sum().backward()
            assert len(runs) == 2


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad=True")
def test_layers_that_a_reentrant_checkpoint_does_not_train_stay_untrained() -> None:
    """PyTorch gives their weights no gradient where no input of the segment has one."""
    alone, captured = net(reentrant=True), net(reentrant=True)
    for part in (alone.table, alone.norm, captured.table, captured.norm):
        part.requires_grad_(False)
    alone(BATCHES[0]).sum().backward()
    with embgrad.capture(captured, at="head:input") as tap:
        captured(BATCHES[0]).sum().backward()
    assert tap.count == 1
    for model in (alone, captured):
        trained = [name for name, weight in model.named_parameters() if weight.grad is not None]
        assert trained == ["head.weight", "head.bias"]
    with (
        pytest.raises(embgrad.errors.NoGradientError, match=r"no gradient reached 'layer\.1'"),
        embgrad.capture(captured, at="layer.1"),
    ):
        captured(BATCHES[0]).sum().backward()


def test_points_behind_frozen_weights_alone_in_checkpoints_are_refused() -> None:
    model = net(reentrant=False)
    for part in (model.table, model.norm, model.layers[0]):
        part.requires_grad_(False)
    message = (
        r"the point 'layers\.0:output#0' lies behind frozen weights alone inside a gradient checkpoint, which must save the same "
        r"tensors both times\. Name a point outside of it, or let the weights before the point require gradients"
    )
    with pytest.raises(embgrad.errors.UnsupportedError, match=message), embgrad.capture(model, at="layer.0"):
        model(BATCHES[0])
    with embgrad.capture(model, at="layer.1") as tap:
        model(BATCHES[0]).sum().backward()
    assert tap.steps[0].values.any()


def test_lookups_inside_checkpoints() -> None:
    class Inside(Net):
        learns = True

        def look_up(self, ids: Any, lever: Any) -> Any:
            with torch.set_grad_enabled(self.learns and torch.is_grad_enabled()):
                return self.table(ids) + lever

        def forward(self, input_ids: Any) -> Any:
            lever = torch.zeros(1).requires_grad_()
            return self.head(checkpoint(self.look_up, input_ids, lever, use_reentrant=self.reentrant).mean(1))

    model = net(Inside, reentrant=False)
    model.zero_grad()
    with embgrad.capture(model) as tap:
        model(BATCHES[0]).sum().backward()
    np.testing.assert_allclose(tap.sum().to_dense(), model.table.weight.grad.numpy(), rtol=1e-6)
    model.table.requires_grad_(False)
    with (
        pytest.raises(
            embgrad.errors.UnsupportedError, match="'table#0' lies behind frozen weights alone inside a gradient"
        ),
        embgrad.capture(model),
    ):
        model(BATCHES[0])
    model.table.requires_grad_(True)
    model.learns = False
    with (
        pytest.raises(embgrad.errors.NoGradientError, match="no gradient reached 'word'"),
        embgrad.capture(model),
    ):
        model(BATCHES[0])
    model.reentrant = model.learns = True
    with (
        pytest.raises(embgrad.errors.UnsupportedError, match=r"use_reentrant=True.*Set use_reentrant=False"),
        embgrad.capture(model),
    ):
        model(BATCHES[0])


def test_a_model_that_differentiates_itself_is_captured() -> None:
    class Forced(Net):
        def forward(self, input_ids: Any) -> Any:
            rows = self.table(input_ids)
            (force,) = torch.autograd.grad(rows.square().sum(), rows, create_graph=True)
            return self.head(force.mean(1))

    model = net(Forced)
    with embgrad.capture(model) as tap:
        model(BATCHES[0]).sum().backward()
    np.testing.assert_allclose(tap.sum().to_dense(), model.table.weight.grad.numpy(), rtol=1e-6)


@pytest.mark.filterwarnings("ignore:.gradient_checkpointing_enable")
@pytest.mark.parametrize("reentrant", [None, False, True])
@pytest.mark.parametrize("name", ["Bert", "GPT2", "Llama"])
def test_training_models_of_transformers(name: str, reentrant: bool | None) -> None:
    architecture = ARCHITECTURES[name]
    received: dict[str, Any] = {}
    models = []
    for captured in (False, True):
        model = architecture.build().train()
        if reentrant is not None:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        optimiser = torch.optim.SGD(model.parameters(), 0.01)
        torch.manual_seed(7)
        with contextlib.ExitStack() as stack:
            if captured:
                received = {
                    at: stack.enter_context(embgrad.capture(model, at=at)) for at in ("word", "layer.0", "layer.-1")
                }
            for _ in range(2):
                optimiser.zero_grad()
                model(**native(architecture.batch())).last_hidden_state.square().mean().backward()
                expected = model.get_input_embeddings().weight.grad.numpy().copy()
                optimiser.step()
        models.append(model)
    expect_same_weights(*models)
    assert [tap.count for tap in received.values()] == [2, 2, 2]
    kept = np.arange(40) != (model.get_input_embeddings().padding_idx or 0)
    last = received["word"].steps[1].table().to_dense()
    np.testing.assert_allclose(last[kept], expected[kept], rtol=1e-9, atol=1e-12)
    assert received["word"].steps[0].mask is not None
    assert received["layer.-1"].steps[0].values.any()
