"""Models with PyTorch's gradient checkpoints have the gradients, bit for bit, of the same models without them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed._composable import checkpoint as composable
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointImpl, checkpoint_wrapper
from torch.utils import checkpoint as module
from torch.utils.checkpoint import CheckpointFunction, checkpoint, checkpoint_sequential

import embgrad
from tests.frameworks.torch.checks import IDS, VOCAB, Recomputing

UnsupportedError = embgrad.errors.UnsupportedError
LOSS = embgrad.Logit(1)
NEW = np.random.default_rng(5).normal(size=(2, 4, 4))

#: How a segment is run: takes the function and its arguments.
Run = Callable[..., Any]


def saved_products(context: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
    saved = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}
    return module.CheckpointPolicy.MUST_SAVE if operator in saved else module.CheckpointPolicy.PREFER_RECOMPUTE


def nested(outer: bool, inner: bool) -> Run:
    """Return what runs a function in a segment inside another one."""

    def run(function: Any, *args: Any) -> Any:
        inside = partial(checkpoint, function, use_reentrant=inner)
        return checkpoint(lambda *args: inside(*args), *args, use_reentrant=outer)

    return run


def without_early_stop(function: Any, *args: Any) -> Any:
    with module.set_checkpoint_early_stop(False):
        return checkpoint(function, *args, use_reentrant=False)


KINDS: dict[str, Run] = {
    "reentrant": partial(checkpoint, use_reentrant=True),
    "not reentrant": partial(checkpoint, use_reentrant=False),
    "by its module": lambda function, *args: module.checkpoint(function, *args, use_reentrant=True),
    "its class alone": lambda function, *args: CheckpointFunction.apply(function, True, *args),
    "random state not kept": partial(checkpoint, use_reentrant=True, preserve_rng_state=False),
    "selective": partial(
        checkpoint,
        use_reentrant=False,
        context_fn=lambda: module.create_selective_checkpoint_contexts(saved_products),
    ),
    "no early stop": without_early_stop,
    "no check": partial(checkpoint, use_reentrant=False, determinism_check="none"),
    "by keyword": lambda function, rows: checkpoint(function, rows=rows, use_reentrant=False),
    "nested": nested(outer=False, inner=False),
    "nested, reentrant": nested(outer=True, inner=True),
    "reentrant in the other": nested(outer=False, inner=True),
    "the other in reentrant": nested(outer=True, inner=False),
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.dropout = nn.Linear(4, 4), nn.Dropout(0.3)

    def forward(self, rows: Any) -> Any:
        return rows + self.dropout(self.inner(rows).tanh())


class Model(nn.Module):
    """A table, three blocks, each in a segment if there is a kind, and a head; the lookup may lie in a segment, too."""

    def __init__(self, kind: Run | None = None, *, inside: bool = False) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(VOCAB, 4), nn.Linear(4, 3)
        self.layers = nn.ModuleList([Block() for _ in range(3)])
        self.kind, self.inside = kind, inside

    def run(self, function: Any, *args: Any) -> Any:
        return function(*args) if self.kind is None else self.kind(function, *args)

    def forward(self, input_ids: Any) -> Any:
        hidden = self.run(lambda rows: self.table(rows), input_ids) if self.inside else self.table(input_ids)
        for layer in self.layers:
            hidden = self.run(layer, hidden)
        return self.head(hidden.tanh().mean(1))


def net(kind: Run | None = None, **options: Any) -> Any:
    torch.manual_seed(0)
    return Model(kind, **options).double().train()


def wrapped(implementation: CheckpointImpl) -> Any:
    model = net()
    for number, layer in enumerate(model.layers):
        model.layers[number] = checkpoint_wrapper(layer, implementation)
    return model


def composed() -> Any:
    model = net()
    for layer in model.layers:
        composable(layer)
    return model


class Sequential(Model):
    def forward(self, input_ids: Any) -> Any:
        rows = self.table(input_ids)
        blocks = nn.Sequential(*self.layers)
        return self.head(self.run(blocks, rows).tanh().mean(1))


def in_sequence(kind: Run | None) -> Any:
    torch.manual_seed(0)
    return Sequential(kind).double().train()


MODELS: dict[str, Callable[[], Any]] = {
    **{name: partial(net, kind) for name, kind in KINDS.items()},
    "wrapped": partial(wrapped, CheckpointImpl.NO_REENTRANT),
    "wrapped, reentrant": partial(wrapped, CheckpointImpl.REENTRANT),
    "composable": composed,
    "sequential": partial(
        in_sequence, lambda blocks, rows: checkpoint_sequential(blocks, 2, rows, use_reentrant=False)
    ),
    "sequential, reentrant": partial(
        in_sequence, lambda blocks, rows: checkpoint_sequential(blocks, 2, rows, use_reentrant=True)
    ),
}

CALLS: dict[str, Callable[[Any, str], Any]] = {
    "word": lambda model, path: embgrad.gradients(model, IDS, LOSS),
    "layers": lambda model, path: embgrad.gradients(model, IDS, LOSS, at=["layer.0", "layer.-1", "embeddings"]),
    "inside": lambda model, path: embgrad.gradients(model, IDS, LOSS, at=[path, f"{path}:input"]),
    "override": lambda model, path: embgrad.gradients(model, IDS, LOSS, at=path, override={path: NEW}),
    "add": lambda model, path: embgrad.gradients(model, IDS, LOSS, at=["word", path], add={path: lambda value: value}),
    "edit": lambda model, path: embgrad.gradients(model, IDS, LOSS, edit={path: lambda gradient: gradient * 3 + 1}),
    "split": lambda model, path: embgrad.gradients(model, IDS, LOSS, at=["word", path], split=True),
    "several": lambda model, path: embgrad.gradients(model, IDS, [LOSS, embgrad.Sum()], at=["word", path]),
    "training": lambda model, path: embgrad.gradients(model, IDS, LOSS, at=["word", path], training=True),
    "native": lambda model, path: embgrad.gradients(
        model, IDS, lambda logits: logits.square().sum(1), at=["word", path]
    ),
    "parameters": lambda model, path: list(embgrad.tables.parameter_gradients(model, IDS, LOSS).values()),
    "table": lambda model, path: embgrad.tables.table_gradients(model, IDS, LOSS).total,
    "evaluate": lambda model, path: embgrad.evaluate(model, IDS, LOSS, add={path: NEW}),
}


def arrays(result: Any) -> Iterator[np.ndarray]:
    if isinstance(result, np.ndarray):
        yield result
    elif isinstance(result, embgrad.results.RowSparse):
        yield result.to_dense()
    elif isinstance(result, embgrad.results.EmbeddingGradients):
        yield from (result.values, result.activations, result.objective)
    else:
        for each in result.values() if isinstance(result, dict) else result:
            yield from arrays(each)


def expect_equal(call: Callable[[Any, str], Any], model: Any, plain: Any) -> None:
    """Expect bit-equal results and random states of two models."""
    inner = next(name for name, _ in model.named_modules() if name.endswith("inner") and "1" in name)
    results = []
    for one, path in ((model, inner), (plain, "layers.1.inner")):
        torch.manual_seed(3)
        results.append([*arrays(call(one, path)), torch.get_rng_state().numpy()])
    assert len(results[0]) == len(results[1])
    for given, expected in zip(*results, strict=True):
        np.testing.assert_array_equal(given, expected)


@pytest.mark.sampled(50)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", MODELS)
def test_a_checkpointed_model_has_the_gradients_of_the_plain_model(kind: str, call: str) -> None:
    plain = in_sequence(None) if kind.startswith("sequential") else net()
    expect_equal(CALLS[call], MODELS[kind](), plain)


@pytest.mark.sampled(50)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "by keyword"])
def test_a_lookup_in_a_segment_has_the_gradients_of_the_plain_model(kind: str, call: str) -> None:
    """Also in a reentrant one that is given the ids alone, for which PyTorch's own backward pass has no gradient."""
    expect_equal(CALLS[call], net(KINDS[kind], inside=True), net())


def casting() -> Any:
    return torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", torch.bfloat16)


def test_a_segment_runs_in_the_context_of_its_context_fn() -> None:
    def in_casting(function: Any, *args: Any) -> Any:
        with casting()[0]:
            return function(*args)

    checkpointed = net(partial(checkpoint, use_reentrant=False, context_fn=casting)).float()
    for call in ("word", "inside", "training"):
        expect_equal(CALLS[call], checkpointed, net(in_casting).float())
    assert embgrad.gradients(checkpointed, IDS, LOSS).provenance["compute_dtype"] == "bfloat16"
    with pytest.raises(AssertionError):
        expect_equal(CALLS["word"], checkpointed, net().float())


def test_a_segment_runs_once() -> None:
    runs: list[str] = []
    model = net(KINDS["reentrant"])
    model.layers[0].register_forward_hook(lambda *given: runs.append("a layer"))
    for at in ("word", "layers.0"):
        embgrad.gradients(model, IDS, LOSS, at=at)
        assert runs.pop() == "a layer"
        assert not runs


def test_nothing_is_left_of_an_exception_in_a_segment() -> None:
    def raising(rows: Any) -> Any:
        raise OSError("on purpose")

    before = module._checkpoint_hook
    for kind in KINDS.values():
        model = net(kind)
        model.layers[1].register_forward_pre_hook(lambda *given: raising(given))
        with pytest.raises(OSError, match="on purpose") as held:
            embgrad.gradients(model, IDS, LOSS)
        assert module._checkpoint_hook is before
        assert "apply" not in vars(CheckpointFunction)
        assert not torch.utils._python_dispatch._get_current_dispatch_mode_stack()
        x = torch.full((3,), 2.0, requires_grad=True)
        (x * x).sum().backward()
        np.testing.assert_array_equal(x.grad, [4.0, 4.0, 4.0])
        assert held.value.args == ("on purpose",)


# Functions of the user's that run a segment again by themselves


class Subclass(CheckpointFunction):
    """A checkpoint with another forward pass than PyTorch's own."""

    @staticmethod
    def forward(ctx: Any, function: Any, preserve: bool, *args: Any) -> Any:
        return CheckpointFunction.forward(ctx, lambda *args: function(*args) * 2, preserve, *args)


class Own(torch.autograd.Function):
    """A checkpoint as other libraries have it, which allows only plain backward passes."""

    @staticmethod
    def forward(ctx: Any, function: Any, *args: Any) -> Any:
        ctx.run_function = function
        ctx.save_for_backward(*args)
        with torch.no_grad():
            return function(*args)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        if not torch.autograd._is_checkpoint_valid():
            raise RuntimeError("Checkpointing is not compatible with .grad()")
        inputs = [value.detach().requires_grad_(value.is_floating_point()) for value in ctx.saved_tensors]
        with torch.enable_grad():
            again = ctx.run_function(*inputs)
        torch.autograd.backward(again, gradient)
        return (None, *(value.grad for value in inputs))


OWN: dict[str, tuple[Run, Run]] = {
    "a subclass": (
        lambda function, *args: Subclass.apply(function, True, *args),
        lambda function, *args: function(*args) * 2,
    ),
    "as DeepSpeed's": (Own.apply, lambda function, *args: function(*args)),
    "of one argument": (
        lambda function, rows: Recomputing.apply(rows, function),
        lambda function, *args: function(*args),
    ),
}


@pytest.mark.parametrize("call", ["word", "split", "several", "training", "parameters"])
@pytest.mark.parametrize("kind", OWN)
def test_a_function_that_runs_a_segment_again_has_the_gradients_of_the_plain_model(kind: str, call: str) -> None:
    model, plain = (net(run) for run in OWN[kind])
    for layer in (*model.layers, *plain.layers):
        layer.dropout.p = 0.0  # such functions draw other numbers the second time
    calls = {"split": partial(embgrad.gradients, split=True), "training": partial(embgrad.gradients, training=True)}
    if call in ("word", "split", "training"):
        function = calls.get(call, embgrad.gradients)
        np.testing.assert_allclose(function(model, IDS, LOSS).values, function(plain, IDS, LOSS).values, rtol=1e-12)
    elif call == "several":
        for given, expected in zip(
            *(embgrad.gradients(one, IDS, [LOSS, embgrad.Sum()]) for one in (model, plain)), strict=True
        ):
            np.testing.assert_allclose(given.values, expected.values, rtol=1e-12)
    else:
        given, expected = (embgrad.tables.parameter_gradients(one, IDS, LOSS) for one in (model, plain))
        for name, value in given.items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("kind", OWN)
@pytest.mark.parametrize(
    "options",
    [
        {"at": ["word", "layers.1.inner"]},
        {"at": ["word", "layer.0"]},
        {"at": "word", "add": {"layers.1": NEW}},
        {"at": "word", "add": {"layers.1.inner:input": NEW}},
        {"at": "word", "override": {"layers.1.inner": lambda value: value * 2}},
        {"at": "word", "edit": {"layers.1.inner": lambda gradient: gradient * 2}},
    ],
)
def test_a_point_in_a_function_that_runs_a_segment_again_is_refused(kind: str, options: Any) -> None:
    with pytest.raises(
        UnsupportedError,
        match=r"a torch\.autograd\.Function of the model makes the call of the module 'layers\..* again in the backward pass, as "
        r".*cannot be taken\. Use torch\.utils\.checkpoint there, which embgrad switches off, or name a point outside",
    ):
        embgrad.gradients(net(OWN[kind][0]), IDS, LOSS, **options)


def test_a_lookup_in_a_function_that_looks_up_again_is_refused() -> None:
    class Lever(Model):
        def forward(self, input_ids: Any) -> Any:
            lever = torch.zeros((), dtype=torch.float64, requires_grad=True)
            rows = Own.apply(lambda ids, lever: self.table(ids) + lever, input_ids, lever)
            return self.head(self.layers[0](rows).tanh().mean(1))

    torch.manual_seed(0)
    model = Lever().double()
    with pytest.raises(UnsupportedError, match=r"of the model makes the lookup in 'table' again in the backward pass"):
        embgrad.gradients(model, IDS, LOSS)
    assert embgrad.gradients(model, IDS, LOSS, at="layers.0").values.any()


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("kind", OWN)
def test_a_function_that_uses_a_tensor_that_is_no_argument_is_refused(kind: str, training: bool) -> None:
    """A part of the gradient arrives in a backward pass of the function's own."""

    class Beside(Model):
        def forward(self, input_ids: Any) -> Any:
            rows = self.table(input_ids)
            return self.head((self.run(lambda states: states.tanh() * rows, rows * 1) + rows).mean(1))

    torch.manual_seed(0)
    model = Beside(OWN[kind][0]).double()
    message = (
        r"the gradient at the point 'table#0' arrived in several parts in one backward pass, because a torch\.autograd\.Function "
        r"of the model .* without taking it as an argument\. Pass the tensor to the function's apply"
    )
    with pytest.raises(UnsupportedError, match=message):
        embgrad.gradients(model, IDS, LOSS, training=training)
    for reentrant in (False, True):
        model.kind = partial(checkpoint, use_reentrant=reentrant)
        given = embgrad.gradients(model, IDS, LOSS, training=training)
        model.kind = None
        np.testing.assert_array_equal(given.values, embgrad.gradients(model, IDS, LOSS, training=training).values)
