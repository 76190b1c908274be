"""Which objects of JAX are models alone, which are only together, and what is said of the others."""

from __future__ import annotations

from typing import Any

import equinox
import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax.training.train_state import TrainState

import embgrad
from embgrad.backend.registry import backend_for, is_model

IDS = np.array([[1, 2, 0], [3, 3, 1]])
TABLE = np.arange(8.0, dtype=np.float32).reshape(4, 2)


class Linen(flax.linen.Module):
    @flax.linen.compact
    def __call__(self, ids: Any) -> Any:
        return flax.linen.Embed(4, 2, name="table")(ids).mean(1)


def function(parameters: Any, ids: Any) -> Any:
    return parameters["table"][ids].mean(1)


def module() -> Any:
    return nnx.Embed(4, 2, rngs=nnx.Rngs(0))


def parameters() -> Any:
    return {"table": jnp.asarray(TABLE)}


def variables() -> Any:
    return {"params": {"table": {"embedding": jnp.asarray(TABLE)}}}


@pytest.mark.parametrize("build", [module, lambda: equinox.nn.Embedding(4, 2, key=jax.random.key(0))])
def test_a_module_with_its_arrays_is_a_model(build: Any) -> None:
    assert is_model(build())
    assert backend_for(build()).name == "jax"


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (Linen,
            r"a Flax Linen module, which holds no weights\. Pass \(module, variables\) with call=lambda parts, inputs"),
        (lambda: jax.jit(function),
            r"a function under jit, which holds no weights\. Pass the module that it calls, or its param"),
        (lambda: nnx.jit(function),
            r"a function under jit, which holds no weights\. Pass the module that it calls, or its param"),
        (lambda: nnx.split(module())[0],
            r"an nnx\.GraphDef, a module without its variables\. Pass .* nnx\.merge\(graphdef, state"),
        (lambda: function,
            "in place of a function that builds a model, pass what it returns, and in place of a function of JAX"),
        (lambda: jnp.zeros(3),
            "it is from the same package as a JAX function, but is not one; the backend 'jax' expects a model"),
    ],
    ids=["linen", "jit", "nnx.jit", "graphdef", "function", "array"],
)  # fmt: skip
def test_an_object_without_arrays_is_no_model(build: Any, message: str) -> None:
    assert not is_model(build())
    with pytest.raises(embgrad.errors.BackendError, match=message):
        embgrad.gradients(build(), IDS, embgrad.Sum())


@pytest.mark.parametrize(
    ("build", "call"),
    [
        (lambda: (Linen(), variables()), lambda parts, inputs: parts[0].apply(parts[1], inputs)),
        (lambda: (function, parameters()), lambda parts, inputs: parts[0](parts[1], inputs)),
        (lambda: (jax.jit(function), parameters()), lambda parts, inputs: parts[0](parts[1], inputs)),
        (parameters, lambda parameters, inputs: function(parameters, inputs)),
        (
            lambda: TrainState(0, Linen().apply, variables()["params"], None, None),
            lambda state, inputs: state.apply_fn({"params": state.params}, inputs),
        ),
    ],
    ids=["linen", "function", "jit", "parameters", "train state"],
)
def test_what_the_messages_advise_works(build: Any, call: Any) -> None:
    result = embgrad.gradients(build(), IDS, embgrad.Sum(), call=call)
    np.testing.assert_array_equal(result.activations, TABLE[IDS])
    np.testing.assert_allclose(result.values, np.full((2, 3, 2), 1 / 3), rtol=1e-6)


def test_a_graphdef_is_merged_with_its_state() -> None:
    embed = module()
    graphdef, state = nnx.split(embed)
    result = embgrad.gradients(nnx.merge(graphdef, state), IDS, embgrad.Sum(position=0))
    np.testing.assert_array_equal(result.activations, embed.embedding[...][IDS])
