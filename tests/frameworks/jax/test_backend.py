"""What is this backend's own: what it sees, what it says of the rest, and that nothing of it is left behind."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from flax import linen, nnx

import embgrad
from embgrad.errors import BatchError, NoGradientError, PointError, PointNotReachedError, UnsupportedError

IDS = np.array([[5, 7, 9], [3, 2, 7]])


class Scaled(nnx.Embed):
    """Looks up and does more to the rows, as the models that multiply by the root of the dimension."""

    def __call__(self, inputs: Any, out_sharding: Any = None) -> Any:
        """Three times the row."""
        return 3 * super().__call__(inputs, out_sharding)


class Tied(nnx.Module):
    """`E[ids] @ E.T`, scaled, with a closed form."""

    def __init__(self, kind: type = nnx.Embed) -> None:
        self.embed = kind(11, 4, param_dtype=jnp.float64, rngs=nnx.Rngs(1))

    def __call__(self, ids: Any) -> Any:
        """(example, position, rows)."""
        return self.embed.attend(self.embed(ids))


class Block(nnx.Module):
    """x + tanh(x @ W + b)."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.dense = nnx.Linear(4, 4, param_dtype=jnp.float64, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        """(example, position, 4)."""
        return x + jnp.tanh(self.dense(x))


class Stacked(nnx.Module):
    """Three blocks in one, their weights stacked, run by `nnx.scan`."""

    def __init__(self) -> None:
        self.embed = nnx.Embed(11, 4, param_dtype=jnp.float64, rngs=nnx.Rngs(1))
        make = nnx.split_rngs(splits=3)(nnx.vmap(Block, in_axes=0, out_axes=0))
        self.blocks = make(nnx.Rngs(2))

    def __call__(self, ids: Any) -> Any:
        """(example, 4)."""
        scan = nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        return scan(lambda x, block: block(x))(self.embed(ids), self.blocks).sum(1)


class Normed(nnx.Module):
    """With averages that training moves, and random numbers that it draws."""

    def __init__(self) -> None:
        rngs = nnx.Rngs(4)
        self.embed = nnx.Embed(11, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, ids: Any) -> Any:
        """(example, 4)."""
        return self.dropout(self.norm(self.embed(ids).mean(1)))


class Mapped(nnx.Module):
    """Looks up one example at a time."""

    def __init__(self) -> None:
        self.embed = nnx.Embed(11, 4, rngs=nnx.Rngs(1))

    def __call__(self, ids: Any) -> Any:
        """(example, 4)."""
        return jax.vmap(lambda one: self.embed(one).sum(0))(ids)


class Remembering(nnx.Module):
    """Its block is computed once more in the backward pass."""

    def __init__(self) -> None:
        self.embed = nnx.Embed(11, 4, param_dtype=jnp.float64, rngs=nnx.Rngs(1))
        self.block = Block(nnx.Rngs(2))

    def __call__(self, ids: Any) -> Any:
        """(example, 4)."""
        return nnx.remat(lambda block, x: block(x))(self.block, self.embed(ids)).sum(1)


class TwoHeads(nnx.Module):
    """Two outputs, of which only one depends on the lookup."""

    def __init__(self) -> None:
        self.embed = nnx.Embed(11, 4, rngs=nnx.Rngs(1))
        self.bias = nnx.Param(jnp.ones(4))

    def __call__(self, ids: Any) -> Any:
        """Both (example, 4)."""
        rows = self.embed(ids).sum(1)
        return {"of_words": rows, "of_bias": jnp.tile(self.bias[...], (len(ids), 1)), "of_both": rows * self.bias[...]}


def test_the_point_of_a_subclass_is_the_raw_row() -> None:
    """Not what the subclass makes of it."""
    model = Tied(Scaled)
    table = np.asarray(model.embed.embedding[...])
    result = embgrad.gradients(model, IDS, embgrad.Sum())
    np.testing.assert_array_equal(result.activations, table[IDS])
    np.testing.assert_allclose(result.values, np.broadcast_to(3 * table.sum(0), (2, 3, 4)), rtol=1e-12)


def test_layers_in_a_scan_are_points() -> None:
    """Against JAX's gradient of the same in a plain loop."""
    model = Stacked()
    kernels, biases = (np.asarray(one[...]) for one in (model.blocks.dense.kernel, model.blocks.dense.bias))

    def from_layer(x: jax.Array, layer: int) -> jax.Array:
        for number in range(layer, 3):
            x = x + jnp.tanh(x @ kernels[number] + biases[number])
        return x.sum()

    found = embgrad.gradients(model, IDS, embgrad.Sum(), at=["word", "layer.0", "layer.1"])
    for layer, result in enumerate(found.values()):
        np.testing.assert_allclose(result.values, jax.grad(from_layer)(result.activations, layer), rtol=1e-12)


def test_points_in_a_computation_that_jax_repeats() -> None:
    model = Remembering()
    plain = embgrad.gradients(model, IDS, embgrad.Sum(), call=lambda m, inputs: m.block(m.embed(inputs)).sum(1))
    found = embgrad.gradients(model, IDS, embgrad.Sum(), at=["word", "block"])
    np.testing.assert_allclose(found["word"].values, plain.values, rtol=1e-12)
    np.testing.assert_array_equal(found["block"].values, np.ones((2, 3, 4)))


class Inside(eqx.Module):
    """A module inside of a function that the user compiles."""

    linear: eqx.nn.Linear

    def __call__(self, x: Any) -> Any:
        """(example, position, 4)."""
        return jax.vmap(jax.vmap(self.linear))(x)


class Compiling(eqx.Module):
    """Calls its block in a compiled function."""

    embed: eqx.nn.Embedding
    block: Inside

    def __call__(self, ids: Any) -> Any:
        """(example, 4)."""
        return _apply(self.block, jax.vmap(jax.vmap(self.embed))(ids)).sum(1)


_apply = eqx.filter_jit(lambda block, x: block(x))


def test_modules_in_a_function_that_the_user_has_compiled_and_run_are_points() -> None:
    first, second = jax.random.split(jax.random.key(0))
    model = Compiling(eqx.nn.Embedding(11, 4, key=first), Inside(eqx.nn.Linear(4, 4, key=second)))
    model(jnp.asarray(IDS))
    rows = embgrad.gradients(model, IDS, embgrad.Sum()).activations
    found = embgrad.gradients(model, IDS, embgrad.Sum(), at="block")
    weight, bias = (np.asarray(array, np.float64) for array in (model.block.linear.weight, model.block.linear.bias))
    np.testing.assert_allclose(found.activations, np.asarray(rows, np.float64) @ weight.T + bias, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(found.values, np.ones((2, 3, 4)))


def test_variables_of_keras_with_one_path_are_numbered() -> None:
    class Repeating(keras.Model):
        def __init__(self) -> None:
            super().__init__(name="repeating")
            self.tables = [keras.layers.Embedding(11, 4, name="table") for _ in range(3)]

        def call(self, ids: Any) -> Any:
            return sum(factor * table(ids) for factor, table in zip((2.0, 3.0, 5.0), self.tables, strict=True))

    model = Repeating()
    model(jnp.asarray(IDS))
    found = embgrad.tables.parameter_gradients(model, IDS, embgrad.Sum())
    path = model.tables[0].embeddings.path
    assert [table.embeddings.path for table in model.tables] == [path] * 3
    assert list(found) == [path, f"{path}#1", f"{path}#2"]
    counts = np.bincount(IDS.ravel(), minlength=11)[:, None] * np.ones(4)
    for values, factor in zip(found.values(), (2.0, 3.0, 5.0), strict=True):
        np.testing.assert_array_equal(values, factor * counts)


def test_a_product_with_rows_that_compare_ids_with_a_range_is_a_lookup() -> None:
    table = np.random.default_rng(0).normal(size=(11, 4))

    def call(parameters: Any, ids: Any) -> Any:
        rows = (ids[..., None] == jnp.arange(11)[None, None]).astype(float)
        return ((rows @ parameters["table"]) ** 2).sum(1)

    found = embgrad.gradients({"table": jnp.asarray(table)}, IDS, embgrad.Sum(), call=call)
    np.testing.assert_allclose(found.values, 2 * table[IDS], rtol=1e-6)
    np.testing.assert_array_equal(found.ids, IDS)


def test_no_way_is_not_zero() -> None:
    """An output that does not depend on the lookup, beside one that does and one whose gradient is zero."""
    model = TwoHeads()
    assert (embgrad.gradients(model, IDS, embgrad.Sum(output="of_words")).values == 1).all()
    with pytest.raises(NoGradientError, match="does not depend on the point 'word'"):
        embgrad.gradients(model, IDS, embgrad.Sum(output="of_bias"))
    model.bias.set_value(jnp.zeros(4))
    assert not embgrad.gradients(model, IDS, embgrad.Sum(output="of_both")).values.any()


def test_a_lookup_inside_vmap() -> None:
    result = embgrad.gradients(Mapped(), IDS, embgrad.Sum())
    np.testing.assert_array_equal(result.values, np.ones((2, 3, 4)))


def test_a_call_of_the_model_itself_has_lookups_but_no_modules() -> None:
    model = Tied()
    before = dict(vars(model.embed))
    expected = embgrad.gradients(model, IDS, embgrad.Sum())
    result = embgrad.gradients(model, IDS, embgrad.Sum(), call=lambda _, inputs: model(inputs))
    np.testing.assert_array_equal(result.values, expected.values)
    assert result.provenance["point"] == expected.provenance["point"]
    with pytest.raises(PointError):
        embgrad.gradients(model, IDS, embgrad.Sum(), at="embed:output#0", call=lambda _, inputs: model(inputs))
    assert vars(model.embed) == before


def test_a_compiled_call_of_the_model_itself_is_refused() -> None:
    model, own = Tied(), nnx.jit(lambda model, ids: model(ids))
    before = dict(vars(model.embed))
    with pytest.raises(UnsupportedError, match=r"Flax refused the call: .* let it call that, not the model itself"):
        embgrad.gradients(model, IDS, embgrad.Sum(), call=lambda _, inputs: own(model, inputs))
    assert vars(model.embed) == before
    assert own(model, jnp.asarray(IDS)).shape == (2, 3, 11)


def test_an_id_outside_the_table_is_an_error_where_jax_gives_nan() -> None:
    """Or, of an id beyond 32 bits, another row."""
    model = Tied()
    assert jnp.isnan(model.embed(jnp.array([11]))).all()
    with pytest.raises(BatchError, match=r"id 11 at example 0, position 1 .*11 rows: expected 0 to 10"):
        embgrad.gradients(model, [[1, 11]], embgrad.Sum())
    with pytest.raises(BatchError, match=r"id 4294967301 at example 0, position 1 is outside the table"):
        embgrad.gradients(model, [[1, 2**32 + 5]], embgrad.Sum())
    with (
        jax.enable_x64(False),
        pytest.raises(BatchError, match="holds 4294967301, which JAX would hold as int32"),
    ):
        embgrad.gradients(model, [[1, 2**32 + 5]], embgrad.Sum())


def test_an_id_outside_the_table_is_an_error_where_the_model_takes_the_last_row() -> None:
    def call(parameters: Any, ids: Any) -> Any:
        return parameters["table"][jnp.clip(ids, 0, 10)].sum(1)

    with pytest.raises(BatchError, match=r"id 11 at example 0, position 1 .*11 rows: expected 0 to 10"):
        embgrad.gradients({"table": jnp.ones((11, 4))}, [[1, 11]], embgrad.Sum(), call=call)


def test_random_numbers_move_with_training_alone_and_averages_never() -> None:
    """As far as in a pass of the user's own, which gives the same."""
    model, own = Normed(), Normed()
    before = {path: np.asarray(one) for path, one in _state(model).items()}
    embgrad.gradients(model, IDS, embgrad.Sum())
    assert _same(_state(model), before)
    for _ in range(2):
        trained = embgrad.gradients(model, IDS, embgrad.Sum(), training=True)
        expected = own(jnp.asarray(IDS))
        np.testing.assert_allclose(trained.objective, expected.sum(1), rtol=1e-5, atol=1e-6)
    moved = {path for path, one in _state(model).items() if not np.array_equal(one, before[path])}
    assert moved == {"dropout.rngs.count"}
    assert np.array_equal(_state(model)["dropout.rngs.count"], _state(own)["dropout.rngs.count"])


@pytest.mark.parametrize("fault", [None, RuntimeError("broken"), KeyboardInterrupt()])
def test_nothing_is_left_behind(fault: BaseException | None) -> None:
    """Classes, attributes, variables and settings are those of before, whatever happens in the pass."""
    model = Normed()
    before, settings = _members(model), dict(jax.config.values)

    def objective(outputs: Any) -> Any:
        if fault is not None:
            raise fault
        return outputs[:, 0]

    run: Callable[[], Any] = lambda: embgrad.gradients(model, IDS, objective, at=["word", "norm"])  # noqa: E731
    if fault is None:
        run()
    else:
        with pytest.raises(type(fault)) as caught:
            run()
        assert caught.value is fault
    assert _members(model) == before
    assert dict(jax.config.values) == settings
    assert not jax.config.jax_disable_jit


def test_the_entry_point_imports_no_framework() -> None:
    """Discovery costs nothing. The second line is the proof of the first: the same question after an import."""
    code = (
        "import sys, embgrad; embgrad.backend.list_backends()['jax'].owns(3); print('jax' in sys.modules, 'flax' in sys.modules);"
        "import embgrad_jax.run; print('jax' in sys.modules, 'flax' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["False", "False", "True", "False"]


def _state(model: Any) -> dict[str, Any]:
    """The variables' values by path, keys left out."""
    found = {".".join(map(str, path)): one for path, one in nnx.iter_graph(model) if isinstance(one, nnx.Variable)}
    return {path: np.asarray(one.get_value()) for path, one in found.items() if not isinstance(one, nnx.RngKey)}


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[path], other[path]) for path in one)


def _members(model: Any) -> list[Any]:
    """Of every module its class and attributes, the variables with the arrays that they hold."""
    modules = [(path, type(one), {**vars(one)}) for path, one in nnx.iter_modules(model)]
    arrays = [
        (path, id(one), id(one.get_raw_value())) for path, one in nnx.iter_graph(model) if isinstance(one, nnx.Variable)
    ]
    return [[(path, kind, {name: id(value) for name, value in own.items()}) for path, kind, own in modules], arrays]


@pytest.mark.parametrize("base", [nnx.Module, eqx.Module])
def test_a_module_without_arrays_is_a_model_without_a_lookup(base: type) -> None:
    class Hollow(base):  # type: ignore[misc]
        def __call__(self, ids: Any) -> Any:
            return ids * 2.0

    with pytest.raises(PointNotReachedError, match="lookups seen: none"):
        embgrad.gradients(Hollow(), IDS, embgrad.Logit(0))


def test_parts_without_a_call_are_refused_with_what_to_pass() -> None:
    module = linen.Embed(11, 4)
    variables = module.init(jax.random.key(0), jnp.asarray(IDS))
    with pytest.raises(UnsupportedError, match=r"a Flax Linen module with its variables.*parts\[0\]\.apply"):
        embgrad.gradients((module, variables), IDS, embgrad.Sum())
    with pytest.raises(
        UnsupportedError, match=r"the model is a dict of arrays, which cannot be called.*forward\(params"
    ):
        embgrad.gradients(variables, IDS, embgrad.Sum())


def test_a_model_that_reads_the_values_of_arrays_is_refused() -> None:
    """As jax.jit refuses it: what the model's Python decides by the values of one batch is not what it does on another."""

    class Deciding(Tied):
        def __call__(self, ids: Any) -> Any:
            rows = self.embed(ids)
            return rows if rows.sum() > 0 else -rows

    with pytest.raises(
        UnsupportedError,
        match=r"the model's Python reads the values of arrays, which jax\.jit does not allow either \(.+\)\. Write it with",
    ):
        embgrad.gradients(Deciding(), IDS, embgrad.Sum())


def test_a_keras_model_that_was_never_called_is_refused() -> None:
    class Unbuilt(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.words = keras.layers.Embedding(11, 4)

        def call(self, ids: Any) -> Any:
            return self.words(ids)

    model = Unbuilt()
    with pytest.raises(UnsupportedError, match=r"the Keras model Unbuilt has no weights yet, .* Call it once on a"):
        embgrad.gradients(model, IDS, embgrad.Sum())
    assert not model.weights
    model(jnp.asarray(IDS))
    np.testing.assert_array_equal(embgrad.gradients(model, IDS, embgrad.Sum()).values, np.ones((2, 3, 4)))


def test_a_mask_that_keras_makes_itself_is_no_warning() -> None:
    ids = np.array([[3, 1, 4, 5], [9, 2, 6, 0]])
    model = keras.Sequential(
        [keras.layers.Embedding(11, 3, mask_zero=True), keras.layers.LSTM(4), keras.layers.Dense(2)]
    )
    model(jnp.asarray(ids))
    batch = embgrad.TokenBatch(ids, (ids != 0).astype(int))
    with warnings.catch_warnings():
        warnings.simplefilter("error", embgrad.EmbgradWarning)
        each: list[dict[str, Any]] = [{}, {"compile": True}, {"batch_size": 1}]
        for options in each:
            found = embgrad.gradients(model, batch, embgrad.Logit(0), **options)
            assert (found.pad_leak, found.provenance["masked_id"], found.provenance["unused"]) == (0, 0, [])
    other = embgrad.TokenBatch(ids, [[1, 1, 1, 1], [1, 1, 0, 0]])
    with pytest.warns(
        embgrad.EmbgradWarning, match=r"makes its own, 0 where the id is 0, which differs from it at 1 pos"
    ):
        embgrad.gradients(model, other, embgrad.Logit(0))


def test_points_are_those_of_evaluation_mode() -> None:
    class Net(nnx.Module):
        def __init__(self) -> None:
            self.table, self.more = nnx.Embed(11, 4, rngs=nnx.Rngs(0)), nnx.Linear(4, 4, rngs=nnx.Rngs(1))
            self.drop = nnx.Dropout(0.5, rngs=nnx.Rngs(2))

        def __call__(self, ids: Any) -> Any:
            rows = self.table(ids)
            return self.drop(rows if self.drop.deterministic else self.more(rows)).sum(1)

    model = Net()
    model.train()
    assert [point.name for point in embgrad.points(model, IDS)] == ["table#0", "drop#0"]


@pytest.mark.parametrize("dynamic", [False, True])
def test_vectors_of_positions_that_are_sliced_off_their_table_are_a_lookup(dynamic: bool) -> None:
    random = np.random.default_rng(0)
    table, places = random.normal(size=(11, 4)), random.normal(size=(6, 4))

    def call(parameters: Any, ids: Any) -> Any:
        length, held = ids.shape[1], parameters["places"]
        vectors = jax.lax.dynamic_slice_in_dim(held, 0, length) if dynamic else held[:length]
        return ((parameters["table"][ids] + vectors) ** 2).sum(1)

    parameters = {"table": jnp.asarray(table), "places": jnp.asarray(places)}
    found = embgrad.gradients(parameters, IDS, embgrad.Sum(), at=["word", "position"], call=call)
    for result in found.values():
        np.testing.assert_allclose(result.values, 2 * (table[IDS] + places[:3]), rtol=1e-6)
    np.testing.assert_allclose(found["position"].activations, np.broadcast_to(places[:3], (2, 3, 4)))
