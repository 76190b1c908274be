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
        vocab_size=60, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=20,
        initializer_range=0.15,
    )  # fmt: skip
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


def named(models: dict[str, Any], one: str, other: str, name: str) -> tuple[str, ...]:
    """Return the names of a weight of the checkpoint in two models."""
    return tuple(next(w.name for w in weights_of(models[side]) if w.canonical == name) for side in (one, other))


@pytest.mark.parametrize(("one", "other"), [*PAIRS, *NEWER])
def test_one_checkpoint_agrees(models: dict[str, Any], one: str, other: str) -> None:
    found = embgrad.bisect(models[one], models[other], BATCH, POOLED)
    assert found.agrees
    assert max(step.forward for step in found.steps) < 3e-6
    assert max(step.backward for step in found.steps if step.backward) < 3e-6
    assert found.labels[0].startswith(BACKENDS.get(one, one))


@pytest.mark.parametrize(
    ("one", "other", "module"),
    [(*PAIRS[1], "attention.self.query"), (*PAIRS[2], "attention.output.LayerNorm"), (*NEWER[0], "intermediate.dense"),
        (*NEWER[1], "attention.self.query")],
)  # fmt: skip
def test_a_perturbed_weight(models: dict[str, Any], one: str, other: str, module: str) -> None:
    name = f"encoder.layer.2.{module}.weight"
    with changed(models[other], name, lambda value: value * 1.001):
        found = embgrad.bisect(models[one], models[other], BATCH, POOLED)
    assert (found.first, found.direction, found.after) == ("layer.2", "forward", "layer.1")
    (differing,) = (parameter for parameter in found.parameters if parameter.differs)
    assert (differing.a, differing.b, differing.relation) == (*named(models, one, other, name), "different")
    assert differing.relative_l2 == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize(("one", "other"), [PAIRS[0], PAIRS[3], NEWER[2]])
def test_a_transposed_weight(models: dict[str, Any], one: str, other: str) -> None:
    name = "encoder.layer.1.attention.self.key.weight"
    with changed(models[other], name, lambda value: value.T):
        found = embgrad.bisect(models[one], models[other], BATCH, POOLED)
    assert found.first == "layer.1"
    # By its values the matrix agrees, in the frameworks' other layout.
    assert named(models, one, other, name)[0] in {weight.a for weight in found.parameters}
    assert " transposed" in found.text


@pytest.mark.parametrize(
    ("one", "other", "name", "first"),
    [
        (*PAIRS[1], "embeddings.token_type_embeddings.weight", "type"),
        (*PAIRS[2], "embeddings.LayerNorm.bias", "embeddings"),
        (*NEWER[0], "pooler.dense.weight", None),  # behind the last role
        (*NEWER[1], "embeddings.LayerNorm.bias", "embeddings"),
    ],
)
def test_a_changed_weight_outside_the_layers(
    models: dict[str, Any], one: str, other: str, name: str, first: str | None
) -> None:
    with changed(models[other], name, lambda value: value * 1.01):
        found = embgrad.bisect(models[one], models[other], BATCH, POOLED)
    assert found.first == first or (first is None and "pool" in str(found.first))
    assert [(weight.a, weight.b) for weight in found.parameters if weight.differs] == [named(models, one, other, name)]


def test_a_computation_that_differs(models: dict[str, Any]) -> None:
    layer = models["torch"].encoder.layer[2]
    faults: list[tuple[Any, str, Any, str, tuple[str, ...]]] = [
        (layer.intermediate, "intermediate_act_fn", torch.nn.ReLU(), "the activation is", ("tensorflow", "jax")),
        (layer.output.LayerNorm, "eps", 1e-2, "epsilon ", ("gluon", "keras")),
    ]
    for holder, attribute, value, cause, others in faults:
        found = getattr(holder, attribute)
        setattr(holder, attribute, value)
        try:
            for other in others:
                parting = embgrad.bisect(models[other], models["torch"], BATCH, POOLED)
                assert (parting.first, parting.after) == ("layer.2", "layer.1")
                assert f"Cause: {cause}" in parting.text
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
        for other in ("gluon", "jax"):
            found = embgrad.bisect(models[other], models["torch"], BATCH, POOLED)
            assert (found.first, found.direction, found.after) == ("layer.1", "backward", "layer.2")
            assert found.module is not None
    finally:
        intermediate.intermediate_act_fn = right


def test_a_layer_that_only_one_model_has(models: dict[str, Any]) -> None:
    config = BertConfig(**{**models["torch"].config.to_dict(), "num_hidden_layers": 3})
    shallow = BertModel(config)
    shallow.load_state_dict(models["torch"].state_dict(), strict=False)
    found = embgrad.bisect(shallow, models["tensorflow"], BATCH, POOLED)
    assert (found.first, found.after, found.direction) == ("layer.-1", "layer.2", "forward")
    assert {one.relation for one in found.parameters if one.differs} == {"only in b"}
    assert "A has 3 layers, b 4." in found.text
