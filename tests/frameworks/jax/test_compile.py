"""Kept traces: what has changed in a model or in the function that calls it is noticed."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import types
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from embgrad_jax.fingerprint import Fingerprint
from embgrad_jax.graphs import trace_model
from embgrad_jax.lookup import survey
from embgrad_jax.walk import Structure
from flax import nnx

import embgrad
from embgrad.backend import PassRecorder, TokenBatch

IDS = np.array([[5, 7, 9], [3, 2, 7]])


class Settings:
    """Holds what a model reads."""

    def __init__(self, scale: float) -> None:
        self.scale = scale


class Scaled(nnx.Module):
    factor = 1.0

    def __init__(self) -> None:
        self.embed = nnx.Embed(11, 4, param_dtype=jnp.float64, rngs=nnx.Rngs(1))
        self.settings = Settings(1.0)

    def __call__(self, ids: Any) -> Any:
        return self.factor * self.settings.scale * self.embed(ids).sum(1)


class Equinox(eqx.Module):
    embed: eqx.nn.Embedding
    settings: Any = eqx.field(static=True)

    def __call__(self, ids: Any) -> Any:
        return self.settings.scale * jax.vmap(jax.vmap(self.embed))(ids).sum(1)


def set_scale(model: Any) -> None:
    model.settings.scale = 3.0


def set_factor(model: Any) -> None:
    type(model).factor = 5.0


def replace_call(model: Any) -> None:
    type(model).__call__ = lambda self, ids: 7 * self.embed(ids).sum(1)


def both(model: Any, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    plain = embgrad.gradients(model, IDS, embgrad.Sum(), **options)
    compiled = embgrad.gradients(model, IDS, embgrad.Sum(), compile=True, **options)
    assert compiled.provenance["compiled"] is True
    return plain.values, compiled.values


@pytest.mark.parametrize("change", [set_scale, set_factor, replace_call])
def test_a_change_of_an_nnx_module_is_noticed(change: Callable[[Any], None]) -> None:
    own = type("Own", (Scaled,), {"__module__": __name__})  # of this test alone, since the class is changed
    model = own()
    both(model)
    change(model)
    plain, compiled = both(model)
    assert plain.flat[0] > 1
    np.testing.assert_allclose(compiled, plain, rtol=1e-12)


def test_a_changed_static_field_of_equinox_is_noticed() -> None:
    model = Equinox(eqx.nn.Embedding(11, 4, key=jax.random.key(0)), Settings(1.0))
    both(model)
    set_scale(model)
    plain, compiled = both(model)
    assert plain.flat[0] == 3
    np.testing.assert_allclose(compiled, plain, rtol=1e-12)


class Holding(nnx.Module):
    """Holds an object, which is no part of the model and reads an array."""

    def __init__(self, settings: Settings) -> None:
        self.embed = nnx.Embed(11, 4, param_dtype=jnp.float64, rngs=nnx.Rngs(1))
        self.settings = settings

    def __call__(self, ids: Any) -> Any:
        return self.settings.scale * self.embed(ids).sum(1)


@pytest.mark.parametrize(
    "made",
    [Holding, lambda settings: Equinox(eqx.nn.Embedding(11, 4, key=jax.random.key(0)), settings)],
    ids=["nnx", "equinox"],
)
@pytest.mark.parametrize("array", [np.array, jnp.array], ids=["numpy", "jax"])
def test_a_changed_array_that_is_no_part_of_the_model_is_noticed(made: Any, array: Any) -> None:
    settings = Settings(array(2.0, "float32"))
    model = made(settings)
    values = [embgrad.gradients(model, IDS, embgrad.Sum(), compile=True).values for _ in range(2)]
    np.testing.assert_array_equal(values, np.full((2, 2, 3, 4), 2.0))
    if array is np.array:
        settings.scale[...] = 3.0
    else:
        settings.scale = settings.scale + 1
    changed = embgrad.gradients(model, IDS, embgrad.Sum(), compile=True)
    np.testing.assert_array_equal(changed.values, np.full((2, 3, 4), 3.0))
    assert changed.provenance["compiled"]


def test_an_array_of_numpy_among_the_parameters_needs_no_new_trace() -> None:
    traces = itertools.count()
    parameters = {"table": jnp.ones((11, 4)), "scale": np.array(0.0)}

    def call(parameters: Any, ids: Any) -> Any:
        next(traces)
        return parameters["scale"] * parameters["table"][ids].sum(1)

    for scale in (1.0, 2.0, 3.0):
        parameters["scale"][...] = scale
        compiled = embgrad.gradients(parameters, IDS, embgrad.Sum(), call=call, compile=True)
        np.testing.assert_array_equal(compiled.values, np.full((2, 3, 4), scale))
    assert next(traces) == 2  # of the model, and of the trace that was compared with it


@jax.tree_util.register_dataclass
@dataclasses.dataclass(slots=True)
class Slotted:
    """Parameters in an object to which nothing refers weakly."""

    table: Any


def test_parameters_in_an_object_with_slots_keep_their_trace() -> None:
    traces = itertools.count()

    def call(parameters: Any, ids: Any) -> Any:
        next(traces)
        return (parameters.table[ids] ** 2).sum(1)

    for scale in (1.0, 2.0, 3.0):
        parameters = Slotted(scale * jnp.ones((11, 4)))
        compiled = embgrad.gradients(parameters, IDS, embgrad.Sum(), call=call, compile=True)
        np.testing.assert_array_equal(compiled.values, np.full((2, 3, 4), 2 * scale))
    assert next(traces) == 2


class Dropping(nnx.Module):
    def __init__(self) -> None:
        self.embed = nnx.Embed(11, 4, param_dtype=jnp.float64, rngs=nnx.Rngs(1))
        self.dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(2))

    def __call__(self, ids: Any) -> Any:
        return self.dropout(self.embed(ids)).sum(1)


def test_a_compiled_pass_of_training_draws_the_next_random_numbers_as_a_plain_one_does() -> None:
    models = Dropping(), Dropping()
    drawn = []
    for _ in range(3):
        plain, compiled = (
            embgrad.gradients(model, IDS, embgrad.Sum(), training=True, compile=way)
            for model, way in zip(models, (False, True), strict=True)
        )
        assert compiled.provenance["compiled"] is True
        np.testing.assert_array_equal(compiled.values, plain.values)
        drawn.append(plain.values)
    assert (drawn[0] != drawn[1]).any()


def test_a_partial_function_made_anew_for_each_call_keeps_its_trace() -> None:
    traces = itertools.count()

    def call(parameters: Any, ids: Any, factor: float) -> Any:
        next(traces)
        return factor * (parameters["table"][ids] ** 2).sum(1)

    parameters = {"table": jnp.ones((11, 4))}
    for _ in range(20):
        both(parameters, call=functools.partial(call, factor=3.0))
    assert next(traces) == 20 + 2  # the plain passes, the model's of the first trace, and that trace


class Alike:
    """An object that equals all others of its class."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Alike)

    def __hash__(self) -> int:
        return 0


def test_sets_are_compared_by_numbers_and_texts_and_by_the_identity_of_objects() -> None:
    def fingerprint(value: Any) -> Fingerprint:
        nothing: Any = types.SimpleNamespace(structure=None, leaves=())
        return Fingerprint(nothing, (), value)

    kept, other = Alike(), Alike()
    assert fingerprint({int("1000000"), kept}).is_that_of(fingerprint({int("1000000"), kept}))
    assert not fingerprint({int("1000000"), kept}).is_that_of(fingerprint({int("1000001"), kept}))
    assert not fingerprint({kept}).is_that_of(fingerprint({other}))


def test_an_array_of_the_batch_where_a_freed_one_of_the_model_was_is_no_array_of_the_model() -> None:
    """A kept graph knows the model's arrays by where they were, which those of a later batch may be."""
    weights, batch = {"table": jnp.ones((11, 4)), "out": jnp.ones((4, 3))}, TokenBatch(IDS)
    structure = Structure(weights)
    graph, inputs = trace_model(
        structure,
        weights,
        batch,
        lambda held, ids: held["table"][ids["input_ids"]].sum(1) @ held["out"],
        training=False,
    )
    kept = dataclasses.replace(graph, ids=tuple(id(inputs[0]) for _ in graph.ids))
    for either in (graph, kept):
        watch = PassRecorder(batch, None)
        survey(either, structure.leaves, inputs, watch)
        assert [lookup.path for lookup in watch.lookups] == ["table"]
