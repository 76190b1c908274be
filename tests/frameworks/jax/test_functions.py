"""Text models that are plain functions, as (function, parameters) with `call=`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import embgrad
from tests.frameworks.jax.cases import IDS, LABELS, MASK, Case, as_dict, cross_entropies, expected
from tests.frameworks.jax.checks import ModelChecks, by_path, close, known, replaced
from tests.frameworks.jax.function_models import CASES, applied, mean_logits


class TestFunctions(ModelChecks):
    """The checks of every model."""

    cases = CASES

    @pytest.fixture(params=CASES, ids=str)
    def case(self, request: pytest.FixtureRequest) -> Case:
        return request.param

    def gradients_of_parameters(self, case: Case, model: Any) -> Mapping[str, Any]:
        """By `jax.grad`."""
        function, parameters = model
        inputs = {name: jnp.asarray(one) for name, one in as_dict().items()}

        @jax.jit
        @jax.grad
        def gradients(parameters: Any) -> Any:
            return cross_entropies(applied((function, parameters), inputs)).sum()

        return by_path(gradients(parameters))

    def with_table(self, case: Case, table: Any) -> Any:
        """The function, with parameters among which the table stands."""
        function, parameters = known(case)[0]
        return function, replaced(parameters, case.table((function, parameters)), table)

    @pytest.mark.sampled(2)
    @pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 5e-6), ("bfloat16", 0.05)])
    def test_lower_precision(self, case: Case, dtype: str, tolerance: float) -> None:
        """Values are widened behind the pullback, which JAX makes in the model's dtype."""
        model = case.make(dtype)
        own = expected(case, model)
        result = embgrad.gradients(model, case.batch, case.objective, call=case.call)
        close(result.values, own.gradients["word"], tolerance)
        assert result.values.dtype == np.float32
        assert result.provenance["compute_dtype"] == dtype


def test_closed_form_of_a_mean() -> None:
    """The weight of a class over the number of real positions, at each of these, and nothing at the others."""
    parts = CASES[0].make("float64")
    weight = np.asarray(parts[1]["w"])
    result = embgrad.gradients(parts, CASES[0].batch, embgrad.Logit(LABELS), call=applied)
    wanted = weight.T[LABELS][:, None] * (MASK / MASK.sum(1, keepdims=True))[..., None]
    close(result.values, wanted)
    assert result.pad_leak == 0
    rows = np.asarray(parts[1]["embedding"])[IDS]
    means = (rows * MASK[..., None]).sum(1) / MASK.sum(1, keepdims=True)
    close(result.objective, (means @ weight)[np.arange(2), LABELS])


def test_the_function_alone_is_refused_with_what_to_do() -> None:
    """Its parameters are not known."""
    with pytest.raises(
        embgrad.errors.BackendError,
        match="in place of a function that builds a model, pass what it returns, and in place of a function of JAX",
    ):
        embgrad.gradients(mean_logits, IDS, embgrad.Sum())


@pytest.mark.parametrize("kind", [jax.random.key, jax.random.PRNGKey])
def test_a_function_that_holds_a_random_key(kind: Any) -> None:
    """The dropout that the key decides is that of the function itself."""
    table, key = np.random.default_rng(0).normal(size=(20, 4)), kind(0)
    ids = np.array([[3, 4, 5], [6, 7, 8]])

    def call(parameters: Any, ids: Any) -> Any:
        rows = parameters["table"][ids]
        return (rows * jax.random.bernoulli(key, 0.5, rows.shape)).sum(1)

    kept = jax.random.bernoulli(key, 0.5, (2, 3, 4))
    result = embgrad.gradients({"table": jnp.asarray(table)}, ids, embgrad.Sum(), call=call)
    np.testing.assert_array_equal(result.values, kept)
    np.testing.assert_allclose(result.objective, (table[ids] * kept).sum((1, 2)), rtol=1e-5)


@pytest.mark.parametrize("sides", ["bsm,mn->bsn", "bsm,nm->bsn", "bsm,hdm->bshd"])
def test_a_product_with_a_parameter_is_a_point(sides: str) -> None:
    """The point has the product's values, its gradient, and what the function goes on with where it is replaced."""
    random = np.random.default_rng(0)
    shapes = {"bsm,mn->bsn": (4, 6), "bsm,nm->bsn": (6, 4), "bsm,hdm->bshd": (3, 2, 4)}
    table, weight = random.normal(size=(20, 4)), random.normal(size=shapes[sides])

    def function(parameters: Any, ids: Any, mask: Any) -> Any:
        return jnp.tanh(jnp.einsum(sides, parameters["table"][ids], parameters["own"]["w"])).sum(-1)

    parts = function, {"table": jnp.asarray(table), "own": {"w": jnp.asarray(weight)}}
    ids = np.array([[3, 4, 5], [6, 7, 8]])
    product = np.einsum(sides, table[ids], weight)
    given, own = embgrad.gradients(
        parts, embgrad.TokenBatch(ids, np.ones_like(ids)), embgrad.Sum(), at=["own.w:input", "own.w"], call=applied
    ).values()
    np.testing.assert_allclose(given.activations, table[ids], rtol=1e-5)
    np.testing.assert_allclose(own.activations, product, rtol=1e-5)
    np.testing.assert_allclose(own.values, 1 - np.tanh(product) ** 2, rtol=1e-5)


def test_the_edited_gradient_of_a_product_reaches_what_is_before_it_once() -> None:
    """A path beside the product is not edited."""
    random = np.random.default_rng(0)
    table, weight = random.normal(size=(20, 4)), random.normal(size=(4, 4))

    def function(parameters: Any, ids: Any, mask: Any) -> Any:
        rows = parameters["table"][ids]
        return (rows + jnp.tanh(rows @ parameters["own"]["w"])).sum(-1)

    parts = function, {"table": jnp.asarray(table), "own": {"w": jnp.asarray(weight)}}
    ids = np.array([[3, 4, 5], [6, 7, 8]])
    batch = embgrad.TokenBatch(ids, np.ones_like(ids))
    found = embgrad.gradients(parts, batch, embgrad.Sum(), call=applied, edit={"own.w": lambda gradient: 3 * gradient})
    np.testing.assert_allclose(
        found.values, 1 + 3 * (1 - np.tanh(table[ids] @ weight) ** 2) @ weight.T, rtol=1e-5, atol=1e-6
    )


def _looped(way: str, weights: Any, x: Any) -> Any:
    """Return x after tanh(x @ weight) with the weight of each layer in turn."""
    step = (
        (lambda x, w: (jnp.tanh(x @ w), None))
        if way != "remat"
        else jax.checkpoint(lambda x, w: (jnp.tanh(x @ w), None))
    )
    if way in ("scan", "remat"):
        return jax.lax.scan(step, x, weights)[0]
    if way == "fori":
        return jax.lax.fori_loop(0, len(weights), lambda index, x: jnp.tanh(x @ weights[index]), x)
    if way == "of einsums":
        return jax.lax.scan(lambda x, w: (jnp.tanh(jnp.einsum("bsm,mn->bsn", x, w)), None), x, weights)[0]
    for index in range(len(weights)):
        x = jnp.tanh(x @ weights[index])
    return x


@pytest.mark.parametrize("way", ["scan", "remat", "fori", "of einsums", "by hand"])
def test_products_with_the_weights_of_all_layers_are_points(way: str) -> None:
    """Each step's product has its number, its values, its gradient, and is replaced by itself."""
    random = np.random.default_rng(0)
    table, weights = random.normal(size=(20, 4)), random.normal(size=(3, 4, 4))

    def function(parameters: Any, ids: Any, mask: Any) -> Any:
        return _looped(way, parameters["blocks"]["w"], parameters["table"][ids]).sum(-1)

    parts = function, {"table": jnp.asarray(table), "blocks": {"w": jnp.asarray(weights)}}
    ids = np.array([[3, 4, 5], [6, 7, 8]])
    batch, objective = embgrad.TokenBatch(ids, np.ones_like(ids)), embgrad.Sum()
    given = [table[ids]]
    for weight in weights:
        given.append(np.tanh(given[-1] @ weight))
    gradient = 1 - given[3] ** 2
    before = (1 - given[2] ** 2) * (gradient @ weights[2].T)
    names = ["blocks.w:input#2", "blocks.w#1", "blocks.w#2"]
    entered, first, last = embgrad.gradients(parts, batch, objective, at=names, call=applied).values()
    np.testing.assert_allclose(entered.activations, given[2], rtol=1e-5)
    np.testing.assert_allclose(first.activations, given[1] @ weights[1], rtol=1e-5)
    np.testing.assert_allclose(first.values, before, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(last.values, gradient, rtol=1e-4, atol=1e-7)
    zero = embgrad.gradients(
        parts, batch, objective, at="blocks.w#2", call=applied, override={"blocks.w#1": np.zeros_like(given[1])}
    )
    np.testing.assert_allclose(zero.activations, np.zeros_like(given[1]), atol=1e-7)
    plain = embgrad.gradients(parts, batch, objective, call=applied)
    np.testing.assert_allclose(
        plain.values, ((1 - given[1] ** 2) * (before @ weights[1].T)) @ weights[0].T, rtol=1e-4, atol=1e-7
    )
