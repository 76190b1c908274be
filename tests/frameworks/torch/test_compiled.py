"""A model that the user has compiled with torch.compile gives what the model gives, and stays compiled."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn

import embgrad
from embgrad.engine.weights import weights_of

IDS = np.array([[5, 2, 9, 4, 1], [3, 8, 7, 6, 0]])
BATCH = {"input_ids": IDS, "attention_mask": np.array([[1] * 5, [1, 1, 1, 1, 0]])}
LOSS = embgrad.CrossEntropy([0, 2])


class Compiler:
    """A compiler that takes no time, and counts the graphs that it compiles and their runs."""

    def __init__(self) -> None:
        self.compiled = self.runs = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.compiled += 1

        def run(*arguments: Any) -> Any:
            self.runs += 1
            return graph(*arguments)

        return run

    def __deepcopy__(self, memo: Any) -> Compiler:
        return self


COMPILER = Compiler()


def compiled(target: Any, **options: Any) -> Any:
    return torch.compile(target, backend=COMPILER, **options)


def compiled_in_place(module: nn.Module) -> nn.Module:
    module.compile(backend=COMPILER)
    return module


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear, self.dropout = nn.LayerNorm(8), nn.Linear(8, 8), nn.Dropout(0.1)

    def forward(self, hidden: Any) -> Any:
        return hidden + self.dropout(self.linear(self.norm(hidden)).tanh())


class Embeddings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(12, 8), nn.Embedding(6, 8)

    def forward(self, ids: Any) -> Any:
        return self.words(ids) + self.positions(torch.arange(ids.shape[1]))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block() for _ in range(3)])

    def forward(self, hidden: Any) -> Any:
        for layer in self.layers:
            hidden = layer(hidden)
        return hidden


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embeddings, self.encoder, self.head = Embeddings(), Encoder(), nn.Linear(8, 3)
        self.double().eval()

    def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
        hidden = self.encoder(self.embeddings(input_ids))
        return self.head(self.mean(hidden, attention_mask))

    def mean(self, hidden: Any, mask: Any) -> Any:
        return (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


class OfCompiledForward(Net):
    @torch.compile(backend=COMPILER)
    def forward(self, input_ids: Any, attention_mask: Any = None) -> Any:
        hidden = self.encoder(self.embeddings(input_ids))
        return self.head(self.mean(hidden, attention_mask))


class OfCompiledFunction(Net):
    @torch.compile(backend=COMPILER, fullgraph=True, dynamic=True)
    def mean(self, hidden: Any, mask: Any) -> Any:
        return (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def of_compiled_parts(change: Callable[[nn.Module], nn.Module], *paths: str) -> Callable[[], nn.Module]:
    """Return a function that builds a model whose modules at these paths are compiled."""

    def build() -> nn.Module:
        model = Net()
        for path in paths:
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, change(model.get_submodule(path)))
        return model

    return build


def of_compiled_method() -> nn.Module:
    model = Net()
    model.forward = compiled(model.forward)
    return model


LAYERS = [f"encoder.layers.{number}" for number in range(3)]

#: Ways in which users compile a model.
WAYS: dict[str, Callable[[], nn.Module]] = {
    "the model": lambda: compiled(Net()),
    "the model, as one graph": lambda: compiled(Net(), fullgraph=True, dynamic=True),
    "the model in place": lambda: compiled_in_place(Net()),
    "a submodule": of_compiled_parts(compiled, "encoder"),
    "each layer": of_compiled_parts(compiled, *LAYERS),
    "each layer in place": of_compiled_parts(compiled_in_place, *LAYERS),
    "the lookups": of_compiled_parts(compiled, "embeddings.words", "embeddings"),
    "the lookups in place": of_compiled_parts(compiled_in_place, "embeddings.words", "embeddings"),
    "the class's forward": OfCompiledForward,
    "the model's forward": of_compiled_method,
    "a function inside": OfCompiledFunction,
    "the model, and the layers inside": lambda: compiled(of_compiled_parts(compiled, *LAYERS)()),
    "a copy of the compiled model": lambda: copy.deepcopy(compiled(Net())),
}


def gradients(model: Any, **options: Any) -> Any:
    return embgrad.gradients(model, BATCH, LOSS, **options)


def in_training(model: Any, at: str = "word") -> Any:
    torch.manual_seed(3)
    return gradients(model, at=at, training=True)


def names_of(model: Any, batch: Any) -> Any:
    return [(point.name, point.roles, point.shape, point.also) for point in embgrad.points(model, batch)]


def doubled(model: Any, inputs: Any) -> Any:
    return model(**inputs) * 2


CALLS: dict[str, Callable[[Any], Any]] = {
    "word": gradients,
    "roles": lambda model: gradients(model, at=["position", "embeddings", "layer.0", "layer.-1"]),
    "paths": lambda model: gradients(model, at=["encoder.layers.1", "encoder.layers.1.linear:input", "head"]),
    "override": lambda model: gradients(model, override={"word": lambda rows: rows * 2}),
    "add": lambda model: gradients(model, add={"layer.0": 0.1}),
    "edit": lambda model: gradients(model, at="layer.0", edit={"layer.-1": lambda gradient: gradient * 2}),
    "split": lambda model: gradients(model, split=True),
    "batch_size": lambda model: gradients(model, batch_size=1),
    "training": in_training,
    "training at a layer": lambda model: in_training(model, "layer.0"),
    "objectives": lambda model: embgrad.gradients(model, BATCH, [LOSS, embgrad.Logit(1)]),
    "a function": lambda model: embgrad.gradients(model, BATCH, lambda logits: logits[:, 1] * logits[:, 0]),
    "a compiled function": lambda model: embgrad.gradients(model, BATCH, compiled(lambda logits: logits[:, 1])),
    "a call": lambda model: gradients(model, call=doubled),
    "a compiled call": lambda model: gradients(model, call=compiled(doubled)),
    "attribute": lambda model: embgrad.attribute(model, BATCH, LOSS, embgrad.methods.IntegratedGradients(steps=12)),
    "evaluate": lambda model: embgrad.evaluate(model, BATCH, LOSS),
    "parameters": lambda model: dict(embgrad.tables.parameter_gradients(model, BATCH, LOSS)),
    "table": lambda model: embgrad.tables.table_gradients(model, BATCH, LOSS).total,
    "points": lambda model: names_of(model, BATCH),
}


def expect_same(actual: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert list(actual) == list(expected)
        for name, value in expected.items():
            expect_same(actual[name], value)
    elif isinstance(expected, np.ndarray):
        np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-14)
    elif hasattr(expected, "values"):
        expect_same(actual.values, expected.values)
        expect_same(actual.objective, expected.objective)
    elif isinstance(expected, list) and hasattr(expected[0], "values"):
        expect_same(dict(enumerate(actual)), dict(enumerate(expected)))
    else:
        assert actual == expected


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    return {name: call(Net()) for name, call in CALLS.items()}


def run(model: Any) -> int:
    """Call the model as its user does, and return how often compiled code ran."""
    before = COMPILER.runs
    with torch.no_grad():
        model(torch.tensor(IDS), torch.tensor(BATCH["attention_mask"]))
    return COMPILER.runs - before


def expect_untouched(model: nn.Module) -> None:
    for module in model.modules():
        assert not module.training
        assert not {*module._forward_hooks, *module._forward_pre_hooks}


@pytest.mark.parametrize("way", WAYS)
def test_a_compiled_model_gives_what_the_model_gives(way: str, expected: dict[str, Any]) -> None:
    torch._dynamo.reset()
    model, runs = WAYS[way](), COMPILER.runs
    for name, call in CALLS.items():
        expect_same(call(model), expected[name])
        expect_untouched(model)
    assert COMPILER.runs == runs
    assert run(model) > 0
    made, runs = COMPILER.compiled, COMPILER.runs
    for name in ("word", "roles", "split", "points"):
        expect_same(CALLS[name](model), expected[name])
    assert COMPILER.runs == runs
    assert run(model) > 0
    assert COMPILER.compiled == made  # the code from before still fits the model


def test_a_compiled_function_is_no_model() -> None:
    model = Net()
    again = compiled(compiled(model))  # a function, as torch.compile makes of a compiled module
    for given in (again, compiled(model.forward), [model, compiled(torch.sin)]):
        with pytest.raises(
            embgrad.errors.BackendError,
            match=r"in place of a function that torch\.compile made, pass the torch\.nn\.Module whose weights it uses",
        ):
            embgrad.gradients(given, BATCH, LOSS)


SIZES = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}

#: By the rest of the class's name, the configurations of models.
TRANSFORMERS: dict[str, tuple[str, dict[str, Any]]] = {
    "Bert": ("ForSequenceClassification", SIZES),
    "GPT2": ("LMHeadModel", {"n_embd": 8, "n_layer": 2, "n_head": 2}),
    "T5": ("ForConditionalGeneration", {"d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 2, "num_heads": 2}),
}


def of_transformers(name: str) -> Any:
    torch.manual_seed(0)
    kind, sizes = TRANSFORMERS[name]
    config = getattr(transformers, f"{name}Config")(vocab_size=12, **sizes)
    return getattr(transformers, f"{name}{kind}")(config).double().eval()


def test_the_names_of_a_checkpoint() -> None:
    bert = of_transformers("Bert").bert
    names = list(embgrad.tables.parameter_gradients(bert, BATCH, embgrad.Sum(output="pooled"), names="canonical"))
    layered = copy.deepcopy(bert)
    layered.encoder.layer[0] = compiled(layered.encoder.layer[0])
    for each in (compiled(bert), layered):
        result = embgrad.tables.parameter_gradients(each, BATCH, embgrad.Sum(output="pooled"), names="canonical")
        assert list(result) == names
        assert [weight.canonical for weight in weights_of(each)] == names


@pytest.mark.slow
def test_pytorchs_own_compiler() -> None:
    """Code compiled for one backward pass is not run for the two of split=True."""
    model = nn.Sequential(nn.Embedding(12, 4), nn.Linear(4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(15, 3))
    whole = torch.compile(model)
    whole(torch.tensor(IDS)).sum().backward()
    plain, result = (embgrad.gradients(each, IDS, LOSS, split=True) for each in (model, whole))
    np.testing.assert_array_equal(result.values, plain.values)


@pytest.mark.parametrize("stance", ["force_eager", "fail_on_recompile"])
def test_the_stance_of_the_user_stays(stance: str) -> None:
    torch._dynamo.reset()
    model, plain = compiled(Net()), gradients(Net())
    run(model)
    with torch.compiler.set_stance(stance):
        expect_same(gradients(model), plain)
        assert (run(model) > 0) is (stance == "fail_on_recompile")


REFUSED = (
    "the backend 'torch' does not support 'compile': it supports 'add', 'capture', 'edit', 'float64', 'load_bert', 'modules', "
    "'native', 'override', 'parameters', 'perturb', 'split', 'tables', 'training', 'weights', 'word'; omit it, and pass "
    "torch.compile(model) itself where you use it: embgrad runs its Python, because compiled code hides its lookups"
)


@pytest.mark.parametrize("call", [embgrad.gradients, embgrad.memory, embgrad.stream])
def test_compile_is_refused_before_anything_runs(call: Any) -> None:
    model = Net()
    model.register_forward_pre_hook(lambda *_: pytest.fail("the model was called"))
    for each in (model, compiled(model)):
        with pytest.raises(embgrad.errors.UnsupportedError, match=f"^{re.escape(REFUSED)}"):
            call(each, [BATCH] if call is embgrad.stream else BATCH, LOSS, compile=True)
