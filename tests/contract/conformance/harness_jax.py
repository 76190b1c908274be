"""The conformance suite's models in Flax NNX: modules with the suite's weights, and a look at their state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from embgrad.testing.faults import obtain

__all__ = ["Harness"]


class Frozen(nnx.Variable[Any]):
    """A variable that is no parameter, which is how NNX says that it is not trained."""


@jax.custom_vjp
def _doubled(x: jax.Array) -> jax.Array:
    return x


_doubled.defvjp(lambda x: (x, None), lambda _, gradient: (2 * gradient,))


@jax.custom_vjp
def _telling(x: jax.Array) -> jax.Array:
    obtain("forward")
    return x


def _told(x: jax.Array) -> tuple[jax.Array, None]:
    obtain("forward")
    return x, None


def _telling_back(_: None, gradient: jax.Array) -> tuple[jax.Array]:
    obtain("backward")
    return (gradient,)


_telling.defvjp(_told, _telling_back)


class _Model(nnx.Module):
    """The layers that the suite's weights fill; each architecture is a way through them."""

    def __init__(self, weights: Mapping[str, np.ndarray], dtype: str) -> None:
        rngs = nnx.Rngs(3)
        self.table = _embed(weights["E"], dtype)
        self.second = _embed(weights["E2"], dtype)
        self.inner = _linear(weights["W1"], weights["b1"], dtype)
        self.outer = _linear(weights["W"], weights["b"], dtype)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)


class _Mean(_Model):
    def __call__(self, input_ids: Any) -> Any:
        return self.outer(self.table(input_ids).mean(1))


class _Hidden(_Model):
    def __call__(self, input_ids: Any) -> Any:
        return self.outer(jnp.tanh(self.inner(self.table(input_ids).mean(1))))


class _Probabilities(_Model):
    def __call__(self, input_ids: Any) -> Any:
        return nnx.softmax(self.outer(self.table(input_ids).mean(1)))


class _Masked(_Model):
    def __call__(self, input_ids: Any, attention_mask: Any = None) -> Any:
        rows = self.table(input_ids)
        mask = jnp.ones_like(input_ids) if attention_mask is None else attention_mask
        mask = mask[..., None].astype(rows.dtype)
        return self.outer((mask * rows).sum(1) / mask.sum(1))


class _Positions(_Model):
    def __call__(self, input_ids: Any) -> Any:
        return self.outer(jnp.tanh(self.inner(self.table(input_ids))))


class _Named(_Model):
    def __call__(self, input_ids: Any) -> Any:
        sequence = jnp.tanh(self.inner(self.table(input_ids)))
        return {"last_hidden_state": sequence, "pooler_output": sequence.mean(1)}


class _Twice(_Model):
    def __call__(self, input_ids: Any) -> Any:
        plain = self.table(input_ids).mean(1)
        return self.outer(plain + jnp.tanh(self.table(input_ids)).mean(1))


class _TwoTables(_Model):
    def __call__(self, input_ids: Any) -> Any:
        plain = self.table(input_ids).mean(1)
        return self.outer(plain + jnp.tanh(self.second(input_ids)).mean(1))


class _Flat(_Model):
    def __call__(self, input_ids: Any) -> Any:
        return self.outer(self.table(input_ids.reshape(-1)).reshape(*input_ids.shape, -1).mean(1))


class _TimeMajor(_Model):
    def __call__(self, input_ids: Any) -> Any:
        return self.outer(self.table(input_ids.T).mean(0))


class _Scaled(_Model):
    def __call__(self, input_ids: Any) -> Any:
        return self.outer((3 * self.table(input_ids)).mean(1))


class _Positional(_Model):
    def __call__(self, input_ids: Any) -> Any:
        places = self.second(jnp.arange(input_ids.shape[1]))
        return self.outer(jnp.tanh(self.table(input_ids) + places).mean(1))


class _Dropout(_Model):
    def __call__(self, input_ids: Any) -> Any:
        return self.outer(self.dropout(jnp.tanh(self.inner(self.table(input_ids).mean(1)))))


class _Detached(_Model):
    def __call__(self, input_ids: Any) -> Any:
        return self.outer(jax.lax.stop_gradient(self.table(input_ids).mean(1)))


class _NoLookup(_Model):
    def __call__(self, input_ids: Any) -> Any:
        kernel = self.outer.kernel[...]
        return input_ids.astype(kernel.dtype).mean(1, keepdims=True) @ kernel[:1] + self.outer.bias[...]


class _Tied(_Model):
    def __call__(self, input_ids: Any) -> Any:
        return self.table.attend(jnp.tanh(self.inner(self.table(input_ids))))


class _Mixing(_Model):
    def __call__(self, input_ids: Any) -> Any:
        pooled = self.table(input_ids).mean(1)
        return self.outer(pooled - pooled.mean(0, keepdims=True))


class _Broken(_Model):
    def __call__(self, input_ids: Any) -> Any:
        return self.outer(_doubled(self.table(input_ids).mean(1)))


class _Raises(_Model):
    def __call__(self, input_ids: Any) -> Any:
        self.table(input_ids)
        raise RuntimeError("the model broke")


class _Embeddings(nnx.Module):
    """Makes both lookups."""

    def __init__(self, weights: Mapping[str, np.ndarray], dtype: str) -> None:
        self.words, self.places = _embed(weights["E"], dtype), _embed(weights["E2"], dtype)

    def __call__(self, input_ids: Any) -> Any:
        return self.words(input_ids) + self.places(jnp.arange(input_ids.shape[1])[None])


class _Layer(nnx.Module):
    factor = 1.0

    def __init__(self, weights: Mapping[str, np.ndarray], dtype: str) -> None:
        self.inner = _linear(weights["W1"], weights["b1"], dtype)

    def __call__(self, hidden: Any) -> Any:
        bent = self.factor * jnp.tanh(self.inner(hidden))
        return hidden + bent, bent


class _Layers(nnx.Module):
    calls = (1, 1, 1)

    def __init__(self, weights: Mapping[str, np.ndarray], dtype: str) -> None:
        self.embeddings = _Embeddings(weights, dtype)
        self.layers = module_list([_Layer(weights, dtype) for _ in self.calls])
        self.outer = _linear(weights["W"], weights["b"], dtype)

    def behind_the_first(self, hidden: Any) -> Any:
        return hidden

    def __call__(self, input_ids: Any) -> Any:
        first, *others = [layer for layer, calls in zip(self.layers, self.calls, strict=True) for _ in range(calls)]
        hidden = self.behind_the_first(first(self.embeddings(input_ids))[0])
        for layer in others:
            hidden, _ = layer(hidden)
        return self.outer(hidden.mean(1))


class _Repeated(_Layers):
    calls = (3,)


class _Interrupted(_Layers):
    def behind_the_first(self, hidden: Any) -> Any:
        return _telling(hidden)


_MODELS: Mapping[str, Any] = {
    "mean": _Mean, "hidden": _Hidden,
    "probabilities": _Probabilities,
    "masked": _Masked, "positions": _Positions, "named": _Named, "twice": _Twice, "two_tables": _TwoTables,
    "flat": _Flat, "time_major": _TimeMajor, "scaled": _Scaled,
    "positional": _Positional,
    "dropout": _Dropout, "detached": _Detached, "no_lookup": _NoLookup, "layers": _Layers, "repeated": _Repeated,
    "tied": _Tied, "mixing": _Mixing, "broken": _Broken, "raises": _Raises,
    "interrupted": _Interrupted,
}  # fmt: skip

#: Where each weight lies in a `_Model`.
_PLACES: Mapping[str, str] = {
    "E": "table.embedding", "E2": "second.embedding", "W": "outer.kernel", "b": "outer.bias", "W1": "inner.kernel",
    "b1": "inner.bias",
}  # fmt: skip


class Harness:
    """NNX's models, and their state."""

    backend = "jax"
    precisions = ("float32", "float64", "float16", "bfloat16")

    def build(
        self, architecture: str, weights: Mapping[str, np.ndarray], *, dtype: str | None = None, frozen: bool = False
    ) -> nnx.Module:
        """A module with these weights, in evaluation mode."""
        model = _MODELS[architecture](weights, dtype or weights["W"].dtype.name)
        model.eval()
        if frozen:
            for _, module in _modules(model):
                for name, one in vars(module).items():
                    if isinstance(one, nnx.Param):
                        setattr(module, name, Frozen(one[...]))
        return model

    def train(self, model: nnx.Module) -> None:
        """Put it into training mode."""
        model.train()

    def table_gradient(self, model: Any, ids: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """By `nnx.grad`, compiled, of optax's cross-entropy."""

        @nnx.jit
        @nnx.grad
        def gradients(model: Any) -> Any:
            return optax.softmax_cross_entropy_with_integer_labels(model(jnp.asarray(ids)), jnp.asarray(labels)).sum()

        return np.array(gradients(model)["table"]["embedding"][...])

    def state(self, model: nnx.Module) -> Mapping[str, Any]:
        """The variables, attributes and classes of every module, and JAX's and Flax's settings.

        Where the model is in training mode the counts of its random numbers are left out: a pass in training moves them.
        """
        training = any(not one.deterministic for _, one in _modules(model) if isinstance(one, nnx.Dropout))
        variables = {
            path: (type(one), id(one), _bytes(one[...]), repr(one.get_metadata()))
            for path, one in nnx.iter_graph(model)
            if isinstance(one, nnx.Variable) and not (training and isinstance(one, nnx.RngCount))
        }
        return {
            "variables": variables,
            "modules": {path: _module_state(one) for path, one in _modules(model)},
            "settings": {name: getattr(jax.config, name) for name in ("jax_enable_x64", "jax_disable_jit")},
            "all settings": repr(sorted(jax.config.values.items())),
            "calls": {one: one.__call__ for one in (nnx.Embed, nnx.Linear, nnx.Dropout, *_MODELS.values())},
        }

    def seed(self, seed: int) -> None:
        """There is none beside the models' own, which `state` shows."""

    def draw_states(self) -> None:
        """There is none."""

    def disturb(self, model: Any) -> None:
        """Training mode, a value that the user has stored in the model, and one in a module of its."""
        model.train()
        model.stored = nnx.Intermediate(jnp.full(3, 0.5))
        model.outer.note = "the user's"

    def change_constant(self, model: Any) -> None:
        """An attribute that is no variable, which is a part of what NNX calls the graph."""
        for layer in model.layers:
            layer.factor = 2.0

    def parameter(self, model: nnx.Module, weight: str) -> tuple[str, bool]:
        """The attribute path; `nnx.Linear` holds its kernel as (in, out)."""
        return _PLACES[weight], False

    def step(self, model: nnx.Module, ids: np.ndarray, labels: np.ndarray, rate: float = 0.1) -> None:
        """One step of `optax.sgd`."""

        @nnx.grad
        def gradients(model: Any) -> Any:
            return optax.softmax_cross_entropy_with_integer_labels(model(jnp.asarray(ids)), jnp.asarray(labels)).mean()

        nnx.Optimizer(model, optax.sgd(rate), wrt=nnx.Param).update(model, gradients(model))

    def logit(self, index: int) -> Callable[[Any], Any]:
        """One column of the logits."""
        return lambda logits: logits[:, index]

    def summed_logit(self, index: int) -> Callable[[Any], Any]:
        """The sum of one column."""
        return lambda logits: logits[:, index].sum()


def _embed(table: np.ndarray, dtype: str) -> nnx.Embed:
    embed = nnx.Embed(*table.shape, dtype=jnp.dtype(dtype), param_dtype=jnp.dtype(dtype), rngs=nnx.Rngs(0))
    embed.embedding[...] = jnp.asarray(table, dtype)
    return embed


def _linear(kernel: np.ndarray, bias: np.ndarray, dtype: str) -> nnx.Linear:
    linear = nnx.Linear(*kernel.shape, dtype=jnp.dtype(dtype), param_dtype=jnp.dtype(dtype), rngs=nnx.Rngs(0))
    linear.kernel[...] = jnp.asarray(kernel, dtype)
    linear.bias[...] = jnp.asarray(bias, dtype)
    return linear


def _module_state(module: nnx.Module) -> dict[str, Any]:
    plain = {
        name: repr(one) for name, one in vars(module).items() if isinstance(one, (bool, int, float, str, type(None)))
    }
    return {"class": type(module), "object": id(module), "attributes": plain, "members": sorted(vars(module))}


def _bytes(value: Any) -> bytes:
    keys = jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(value) if keys else value).tobytes()


def _modules(model: nnx.Module) -> Iterator[tuple[Any, nnx.Module]]:
    """Yield the path and object of each module; Flax 0.11 has no `iter_modules`."""
    return ((path, node) for path, node in nnx.iter_graph(model) if isinstance(node, nnx.Module))


def module_list(modules: list[nnx.Module]) -> Any:
    """Return a list of modules as a module holds it; in Flax 0.11 that is a plain list."""
    return nnx.List(modules) if hasattr(nnx, "List") else modules
