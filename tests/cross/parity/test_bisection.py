"""Bisection across frameworks: one checkpoint in two of them, a fault in one, and its own layer and sub-module named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

import embgrad
from embgrad.engine.weights import substitute, weights_of
from embgrad.loading.models import FRAMEWORKS

PAIRS = [("torch", "tensorflow"), ("torch", "gluon"), ("gluon", "tensorflow"), ("tensorflow", "torch")]
#: Pairs with keras-hub's BERT and with embgrad's own for JAX.
NEWER = [("torch", "keras"), ("keras", "jax"), ("jax", "torch")]
#: The backends' names where they differ from the frameworks'.
BACKENDS = {"keras": "tensorflow"}
RANDOM = np.random.default_rng(0)
BATCH = embgrad.TokenBatch(RANDOM.integers(3, 60, (3, 6)), [[1] * 6, [1] * 4 + [0] * 2, [1] * 3 + [0] * 3])
POOLED = embgrad.Projection(RANDOM.normal(size=32), output="pooled")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=60,
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=20,
        initializer_range=0.15,
    )
    model = BertModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    folder = tmp_path_factory.mktemp("bert")
    model.save_pretrained(folder, safe_serialization=True)
    return {framework: embgrad.zoo.load_bert(folder, framework) for framework in FRAMEWORKS}


def changed(model: Any, name: str, change: Any) -> Any:
    """With one weight changed as the checkpoint has it."""
    (weight,) = (one for one in weights_of(model) if one.canonical == name)
    value = weight.get().T if weight.transposed else weight.get()
    value = change(value)
    return substitute(model, {weight.name: value.T if weight.transposed else value})


@pytest.mark.parametrize(("one", "other"), [*PAIRS, *NEWER])
def test_one_checkpoint_agrees(models: dict[str, Any], one: str, other: str) -> None:
    found = embgrad.bisect(models[one], models[other], BATCH, POOLED)
    assert found.agrees
    assert max(step.forward.relative_l2 for step in found.steps if step.forward) < 3e-6
    assert max(step.backward.relative_l2 for step in found.steps if step.backward) < 3e-6
    assert found.labels[0].startswith(BACKENDS.get(one, one))


@pytest.mark.parametrize(("one", "other"), [*PAIRS[1:3], *NEWER[:2]])
@pytest.mark.parametrize(
    ("module", "piece"),
    [
        ("attention.self.query", "query"),
        ("attention.self.value", "value"),
        ("attention.output.dense", "attention output"),
        ("attention.output.LayerNorm", "attention norm"),
        ("intermediate.dense", "feed-forward in"),
        ("output.dense", "feed-forward out"),
        ("output.LayerNorm", "output norm"),
    ],
)
def test_a_perturbed_weight(models: dict[str, Any], one: str, other: str, module: str, piece: str) -> None:
    name = f"encoder.layer.2.{module}.weight"
    with changed(models[other], name, lambda value: value * 1.001):
        found = embgrad.bisect(models[one], models[other], BATCH, POOLED)
    assert (found.first, found.direction, found.after) == ("layer.2", "forward", "layer.1")
    assert (found.module, found.piece) == (f"encoder.layer.2.{module}", piece)
    (differing,) = (parameter for parameter in found.parameters if parameter.differs)
    assert (differing.canonical, differing.relation) == (name, "differs")
    assert differing.relative_l2 == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize(("one", "other"), [*PAIRS[::3], *NEWER])
def test_a_transposed_weight(models: dict[str, Any], one: str, other: str) -> None:
    name = "encoder.layer.1.attention.self.key.weight"
    with changed(models[other], name, lambda value: value.T):
        found = embgrad.bisect(models[one], models[other], BATCH, POOLED)
    assert (found.first, found.module) == ("layer.1", "encoder.layer.1.attention.self.key")
    assert [parameter.relation for parameter in found.parameters if parameter.differs] == ["transposed"]


@pytest.mark.parametrize(
    ("name", "first", "module"),
    [
        ("embeddings.token_type_embeddings.weight", "type", "embeddings.token_type_embeddings"),
        ("embeddings.LayerNorm.bias", "embeddings", "embeddings.LayerNorm"),
        ("pooler.dense.weight", "objective", "pooler.dense"),
    ],
)
def test_a_changed_weight_outside_the_layers(models: dict[str, Any], name: str, first: str, module: str) -> None:
    for one, other in (*PAIRS[1:3], *NEWER[:2]):
        with changed(models[other], name, lambda value: value * 1.01):
            found = embgrad.bisect(models[one], models[other], BATCH, POOLED)
        assert (found.first, found.module) == (first, module)
        assert [parameter.canonical for parameter in found.parameters if parameter.differs] == [name]


def test_a_computation_that_differs(models: dict[str, Any]) -> None:
    layer = models["torch"].encoder.layer[2]
    faults: dict[str, tuple[Any, str, Any]] = {
        "activation": (layer.intermediate, "intermediate_act_fn", torch.nn.ReLU()),
        "output norm": (layer.output.LayerNorm, "eps", 1e-2),
    }
    for piece, (holder, attribute, value) in faults.items():
        found = getattr(holder, attribute)
        setattr(holder, attribute, value)
        try:
            for other in ("tensorflow", "gluon", "jax", "keras"):
                parting = embgrad.bisect(models[other], models["torch"], BATCH, POOLED)
                assert (parting.first, parting.piece) == ("layer.2", piece)
                assert not any(parameter.differs for parameter in parting.parameters)
        finally:
            setattr(holder, attribute, found)


def test_a_backward_pass_that_differs(models: dict[str, Any]) -> None:
    class Pulled(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, x: Any) -> Any:
            return torch.nn.functional.gelu(x)

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            return gradient

    class Wrong(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return Pulled.apply(x)

    intermediate = models["torch"].encoder.layer[2].intermediate
    right, intermediate.intermediate_act_fn = intermediate.intermediate_act_fn, Wrong()
    try:
        for other in ("tensorflow", "gluon", "jax", "keras"):
            found = embgrad.bisect(models[other], models["torch"], BATCH, POOLED)
            assert (found.first, found.direction, found.after) == ("layer.1", "backward", "layer.2")
            # keras-hub's dense layer applies the activation itself, so that there is no point between the two.
            piece = "feed-forward in or activation" if other == "keras" else "activation"
            assert (found.module, found.piece) == ("encoder.layer.2.intermediate", piece)
    finally:
        intermediate.intermediate_act_fn = right


def test_a_layer_that_only_one_model_has(models: dict[str, Any]) -> None:
    """The points that both have lie far apart; the weights that one of them lacks say which module it is."""
    config = BertConfig(**{**models["torch"].config.to_dict(), "num_hidden_layers": 3})
    shallow = BertModel(config)
    shallow.load_state_dict(models["torch"].state_dict(), strict=False)
    found = embgrad.bisect(shallow, models["tensorflow"], BATCH, POOLED)
    assert (found.module, found.piece) == ("encoder.layer.3", None)
    assert {one.relation for one in found.parameters if one.differs} == {"only in b"}
    assert "A has 3 layers, b 4." in found.text
