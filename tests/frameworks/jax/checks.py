"""What embgrad has to do with each of the tests' models, whatever the library they are written in."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import embgrad
from tests.frameworks.jax.cases import IDS, MASK, VOCAB, Case, Expected, expected

__all__ = ["ModelChecks", "by_path", "close", "known", "replaced"]

#: The largest difference, relative to the largest entry.
EXACT = 1e-9

random = functools.partial(np.random.default_rng, 5)


def close(actual: Any, wanted: Any, tolerance: float = EXACT, what: str = "") -> None:
    """Expect arrays of equal shape, none of them zero throughout, that differ by a rounding error at most."""
    actual, wanted = np.asarray(actual, np.float64), np.asarray(wanted, np.float64)
    assert actual.shape == wanted.shape, what
    largest = np.abs(wanted).max()
    assert largest > 0, what
    assert np.abs(actual - wanted).max() <= tolerance * largest, what


@functools.cache
def known(case: Case) -> tuple[Any, Expected]:
    """Return a model in float64 and what is expected of it, made once for all tests, which leave it as it is."""
    model = case.make("float64")
    return model, expected(case, model)


class ModelChecks:
    """The checks, for a file of models to inherit; `cases` and what follows are the file's own.

    Attributes:
        cases: the models.
    """

    cases: Sequence[Case]

    def gradients_of_parameters(self, case: Case, model: Any) -> Mapping[str, Any]:
        """Return the library's own gradients of the summed objective by the names of the parameters."""
        raise NotImplementedError

    def state(self, model: Any) -> Any:
        """Return the model's state as something comparable: objects by identity, arrays by identity and contents."""
        leaves = jax.tree_util.tree_leaves_with_path(model, is_leaf=lambda one: one is None)
        return [(jax.tree_util.keystr(path), id(leaf), _contents(leaf)) for path, leaf in leaves]

    def run(self, case: Case, **options: Any) -> Any:
        """Return embgrad's gradients of a model in float64."""
        return embgrad.gradients(known(case)[0], case.batch, case.objective, call=case.call, **options)

    # Numbers

    def test_gradients_at_every_role_are_jaxs_own(self, case: Case) -> None:
        own = known(case)[1]
        results = self.run(case, at=case.roles)
        for role in case.roles:
            close(results[role].objective, own.objective)
            close(results[role].activations, own.activations[role], what=role)
            close(results[role].values, own.gradients[role], what=role)
        np.testing.assert_array_equal(results["word"].activations, own.activations["word"])
        assert results["word"].values.dtype == np.float64

    def test_the_points_have_the_roles(self, case: Case) -> None:
        found = embgrad.points(known(case)[0], case.batch, call=case.call)
        roles = [role for point in found for role in point.roles]
        assert set(case.roles) <= set(roles)
        assert ("position" in roles) == (case.places is not None)
        assert len(roles) == len(set(roles))

    def test_gradients_of_parameters_and_the_table_are_jaxs_own(self, case: Case) -> None:
        model = known(case)[0]
        own = {name: np.asarray(one) for name, one in self.gradients_of_parameters(case, model).items()}
        result = embgrad.tables.parameter_gradients(model, case.batch, case.objective, call=case.call)
        assert set(result) == set(own)
        largest = max(np.abs(gradient).max() for gradient in own.values())
        for name, gradient in own.items():
            np.testing.assert_allclose(result[name], gradient, rtol=EXACT, atol=EXACT * largest, err_msg=name)
        ledger = embgrad.tables.table_gradients(model, case.batch, case.objective, call=case.call)
        assert ledger.tied == case.tied
        total = next(np.asarray(own[name]) for name in own if _is_table(own[name], ledger.total))
        close(ledger.total, total)
        at_ids = np.zeros_like(total)
        np.add.at(at_ids, IDS, known(case)[1].gradients["word"])
        close(self.run(case).table().to_dense(), at_ids)

    def test_the_table_is_returned(self, case: Case) -> None:
        model = known(case)[0]
        table = embgrad.tables.embedding_table(model, case.batch, call=case.call)
        np.testing.assert_array_equal(table, np.asarray(case.table(model)))

    # Changes

    @pytest.mark.sampled(2)
    def test_rows_that_are_overridden_or_added_to(self, case: Case) -> None:
        model, own = known(case)
        rows = own.activations["word"]
        moved = rows + 0.3 * random().normal(size=rows.shape)
        changed = expected(case, model, rows=moved)
        for options in ({"override": {"word": moved}}, {"add": {"word": moved - rows}}):
            result = self.run(case, **options)
            close(result.activations, moved)
            close(result.objective, changed.objective)
            close(result.values, changed.gradients["word"])
            found = embgrad.evaluate(model, case.batch, case.objective, call=case.call, **options)
            close(found, changed.objective)

    @pytest.mark.sampled(2)
    def test_a_layer_that_is_overridden_or_edited(self, case: Case) -> None:
        own = known(case)[1]
        place = "layer.0" if case.layers else "word"
        gradient = own.gradients[place]
        edited = self.run(case, at=[*dict.fromkeys((place, "word"))], edit={place: lambda upstream: upstream * 2})
        close(edited[place].before, gradient)
        close(edited[place].values, 2 * gradient)
        close(edited["word"].values, 2 * own.gradients["word"])
        if case.layers:
            again = self.run(case, at="layer.1", override={"layer.0": own.activations["layer.0"]})
            close(again.values, own.gradients["layer.1"])
            added = self.run(case, at="layer.1", add={"layer.0": np.zeros(gradient.shape[-1])})
            close(added.values, own.gradients["layer.1"])

    # Ways of running

    @pytest.mark.sampled(2)
    def test_a_compiled_pass_gives_the_same(self, case: Case) -> None:
        own = known(case)[1]
        for _ in range(2):
            results = self.run(case, at=case.roles, compile=True)
            for role in case.roles:
                close(results[role].values, own.gradients[role], what=role)

    # What stays as it is, and what is refused

    @pytest.mark.sampled(1)
    def test_nothing_is_changed(self, case: Case) -> None:
        model = case.make("float64")
        before = self.state(model)
        self.run_everything(case, model)
        assert self.state(model) == before

    def run_everything(self, case: Case, model: Any) -> None:
        """Run what could leave something behind."""
        for options in ({}, {"at": case.roles}, {"compile": True}, {"add": {"word": 0.1}}):
            embgrad.gradients(model, case.batch, case.objective, call=case.call, **options)
        embgrad.tables.parameter_gradients(model, case.batch, case.objective, call=case.call)
        embgrad.evaluate(model, case.batch, case.objective, call=case.call)
        embgrad.points(model, case.batch, call=case.call)
        with pytest.raises(RuntimeError, match="of the user's"):
            embgrad.gradients(model, case.batch, _broken, call=case.call)

    def test_an_id_outside_the_table_is_refused(self, case: Case) -> None:
        model = known(case)[0]
        for number in (VOCAB, -1):
            ids = IDS.copy()
            ids[1, 2] = number
            batch = {"input_ids": ids, "attention_mask": MASK, **(case.further or {})}
            with pytest.raises(embgrad.errors.BatchError, match=rf"id(s holds)? {number} at example 1, position 2"):
                embgrad.gradients(model, batch, case.objective, call=case.call)

    @pytest.mark.parametrize("transformation", ["jit", "vmap"])
    def test_ids_from_inside_of_a_transformation_are_refused(self, transformation: str) -> None:
        case = self.cases[0]
        model = known(case)[0]

        def inside(ids: Any) -> Any:
            ids = ids.astype(int)
            batch = {"input_ids": ids, "attention_mask": jnp.ones_like(ids), **(case.further or {})}
            embgrad.gradients(model, batch, case.objective, call=case.call)
            return ids.sum()

        with pytest.raises(embgrad.errors.BatchError, match=INSIDE):
            transformed(transformation, inside, jnp.asarray(IDS))

    @pytest.mark.parametrize("transformation", ["jit", "grad", "vmap"])
    def test_a_model_from_inside_of_a_transformation_is_refused(self, transformation: str) -> None:
        case = self.cases[0]

        def inside(weights: Any) -> Any:
            embgrad.gradients(self.with_table(case, weights), case.batch, case.objective, call=case.call)
            return weights.sum()

        model = known(case)[0]
        with pytest.raises(embgrad.errors.UnsupportedError, match=INSIDE):
            transformed(transformation, inside, jnp.asarray(case.table(model)))

    def with_table(self, case: Case, table: Any) -> Any:
        """Return a model with this table, which may be a tracer."""
        raise NotImplementedError


#: What a user reads who calls embgrad where arrays have no numbers.
INSIDE = r"embgrad was called inside jax\.jit \(or grad, vmap\)"


def transformed(name: str, function: Any, array: Any) -> None:
    """Run a function inside a transformation of JAX's."""
    if name == "jit":
        jax.jit(function)(array)
    elif name == "grad":
        jax.grad(lambda weights: function(weights) * 1.0)(array.astype(float))
    else:
        jax.vmap(function)(jnp.stack([array, array]))


def by_path(tree: Any) -> dict[str, Any]:
    """Return the arrays of a tree by their paths, of attributes, keys and numbers with dots between."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): one for path, one in leaves}


def replaced(tree: Any, leaf: Any, other: Any) -> Any:
    """Return a tree in which another array stands in place of one."""
    return jax.tree.map(lambda one: other if one is leaf else one, tree)


def _contents(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array):
        keys = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return str(leaf.dtype), leaf.shape, np.asarray(jax.random.key_data(leaf) if keys else leaf).tobytes()
    return repr(leaf)


def _is_table(one: Any, other: Any) -> bool:
    return np.shape(one) == np.shape(other)


def _broken(outputs: Any) -> Any:
    raise RuntimeError("of the user's")
