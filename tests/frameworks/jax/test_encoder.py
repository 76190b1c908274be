"""A real encoder: against finite differences and JAX's own gradient, compiled or not, at its word embeddings and layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import embgrad
from tests.frameworks.jax.encoder import Encoder

IDS = np.array([[5, 7, 9, 11, 7], [3, 2, 96, 0, 0]])
BATCH = embgrad.TokenBatch(IDS, mask=np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]))
LABELS = np.array([1, 2])
OBJECTIVE = embgrad.CrossEntropy(LABELS)


class CompiledEncoder(Encoder):
    """The same, whose every call is compiled."""

    @nnx.jit
    def __call__(self, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None) -> dict[str, Any]:
        """As the encoder's own."""
        return Encoder.__call__(self, input_ids, attention_mask, token_type_ids)


@pytest.fixture
def model() -> Encoder:
    """In float64, for evaluation."""
    encoder = Encoder(dtype=jnp.float64)
    encoder.eval()
    return encoder


@nnx.jit
def outputs(model: Encoder, ids: jax.Array, mask: jax.Array) -> Any:
    """A compiled forward pass of the user's own."""
    return model(ids, mask)


def cross_entropy(model: Encoder) -> np.ndarray:
    """By hand, in NumPy, from the model's own compiled forward pass."""
    logits = np.asarray(outputs(model, jnp.asarray(IDS), jnp.asarray(BATCH.mask))["logits"])
    shifted = logits - logits.max(-1, keepdims=True)
    return np.asarray(np.log(np.exp(shifted).sum(-1)) - shifted[np.arange(len(LABELS)), LABELS])


def test_finite_differences_along_the_table(model: Encoder) -> None:
    """The table is looked up once, so that its gradient is the lookup's."""
    table = model.embeddings.word.embedding
    kept, step = table.get_value(), 1e-5
    result = embgrad.gradients(model, BATCH, OBJECTIVE)
    np.testing.assert_allclose(result.objective, cross_entropy(model), rtol=1e-12)
    random = np.random.default_rng(3)
    for _ in range(3):
        direction = random.normal(size=kept.shape)
        sides = []
        for move in (step, -step):
            table.set_value(kept + move * direction)
            sides.append(cross_entropy(model).sum())
        expected = float((result.table().to_dense() * direction).sum())
        assert (sides[0] - sides[1]) / (2 * step) == pytest.approx(expected, rel=1e-7)
    table.set_value(kept)


def functional(model: Encoder, inputs: Any) -> Any:
    """A compiled pure function of the model's state, as code without `nnx.jit` has it."""
    graph, state = nnx.split(model)
    compiled = jax.jit(lambda state, ids, mask: nnx.merge(graph, state)(ids, mask))
    return compiled(state, inputs["input_ids"], inputs["attention_mask"])


@pytest.mark.parametrize(
    "call", [functional, lambda model, inputs: outputs(model, inputs["input_ids"], inputs["attention_mask"])]
)
def test_a_compiled_call(model: Encoder, call: Callable[..., Any]) -> None:
    """What the user has compiled before is run operation by operation, and again compiled when the user calls it."""
    plain = embgrad.gradients(model, BATCH, OBJECTIVE, at=["word", "layer.1"])
    before = cross_entropy(model)
    compiled = embgrad.gradients(model, BATCH, OBJECTIVE, at=["word", "layer.1"], call=call)
    for name, result in compiled.items():
        np.testing.assert_array_equal(result.values, plain[name].values)
    np.testing.assert_array_equal(cross_entropy(model), before)


def test_a_compiled_model() -> None:
    """Whose `__call__` itself is decorated."""
    plain, compiled = (
        embgrad.gradients(kind(dtype=jnp.float64), BATCH, OBJECTIVE) for kind in (Encoder, CompiledEncoder)
    )
    np.testing.assert_array_equal(compiled.values, plain.values)


def test_whole_numbers_among_the_outputs(model: Encoder) -> None:
    """They are no output that has a gradient, and no obstacle to the others'."""
    with pytest.raises(
        embgrad.errors.OutputError, match=r"'likeliest' is of dtype int64.*'logits', 'last_hidden_state', 'words'"
    ):
        embgrad.gradients(model, BATCH, embgrad.Sum(output="likeliest"))
    assert embgrad.gradients(model, BATCH, embgrad.Sum(output="words")).values.any()
