"""One forward pass of a copy of an NNX model under `jax.vjp`, and its pullbacks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.errors import TraceContextError

from embgrad.backend import (
    Call,
    Lookup,
    ObjectState,
    ParameterValues,
    PassRecorder,
    Point,
    Request,
    Run,
    TokenBatch,
    answered,
    as_parts,
    compute_dtype,
    expect_single,
    model_lock,
    parameters_of,
    plan_call,
    table_rests,
    values_at,
)
from embgrad.errors import BatchError, PointNotReachedError
from embgrad_jax.graph import modules_of, nodes_of, to_numpy, variables_of
from embgrad_jax.observing import Observer, dress

__all__ = ["points", "run"]

#: Arguments of a model that are no part of a batch.
NOT_THE_BATCHS: Final = ("deterministic", "train", "training", "rngs", "decode")

#: Ends the message where a point was not found.
SEEN: Final = (
    "Of lookups, calls of nnx.Embed are seen; and all is seen in a copy of the model alone, which call=... is given: let it call "
    "that, not the model itself"
)


def points(model: Any, batch: TokenBatch, call: Call | None) -> Sequence[Point]:
    """Return the points that a forward pass on the batch reaches."""
    return _Pass(model, batch, Request((), lambda outputs: [], call=call), everything=True).watch.points()


def run(model: Any, batch: TokenBatch, request: Request) -> Run:
    """Run one forward pass, and a pullback for each set of cotangents."""
    passed = _Pass(model, batch, request)
    if request.training:
        _move_on(model, passed.drawn)
    observer, pulled = passed.observer, []
    for cotangents in passed.cotangents:
        gradients, before = passed.pull_back(cotangents)
        reduced = request.reduced(gradients, observer.activations)
        pulled.append((gradients, before, reduced))
    keys = {name: passed.chosen[name] for name in request.points}
    variables = variables_of(model)
    below = {
        path: (pulled[0][0] if pulled else {}).get(path) for path in variables
    }  # `parameters` come with one objective
    found = values_at(
        keys,
        passed.watch,
        observer.activations,
        [{key: reduced.get(key) for key in keys.values()} for _, _, reduced in pulled],
        [before for _, before, _ in pulled],
        table_rests(_table_names(model, passed.watch, keys.values()), below) if request.tables else None,
    )
    read = [*(observer.dtypes[key] for key in keys.values()), *(str(output.dtype) for output in passed.outputs)]
    dtype = compute_dtype(read, (str(variable.dtype) for variable in variables.values()))
    parameters = {
        path: ParameterValues(one.shape, below[path], str(one.dtype))
        for path, one in variables.items()
        if isinstance(one, nnx.Param)
    }
    parameters = parameters if request.parameters else None
    return Run(found, dtype, passed.unused, passed.objective, parameters, further=passed.further)


class _Pass:
    """A forward pass on a copy of the model.

    Under `jax.vjp` and `jax.disable_jit` every operation is made at once, so that ids and values have numbers on the way.

    Attributes:
        watch: has recorded it.
        observer: has observed it.
        chosen: the keys of the points by the names that were asked for.
        unused: the parts of the batch that the model could not take.
        objective: the values of a native objective.
        further: those of the further objectives.
        outputs: the outputs that are pulled back from.
        cotangents: for each pullback the cotangents of the outputs.
        drawn: by path how often the copy has drawn random numbers.
    """

    def __init__(self, model: Any, batch: TokenBatch, request: Request, *, everything: bool = False) -> None:
        self._model, self._batch, self._request, self._everything = model, batch, request, everything
        self.watch = PassRecorder(batch, None if everything else request.reached, request.times)
        with model_lock(as_parts(model)):
            state = ObjectState(map(vars, modules_of(model).values()))
            try:
                with jax.disable_jit():
                    self.outputs, self._pull = jax.vjp(self._forward, jnp.zeros(()))
            except TraceContextError as error:
                raise PointNotReachedError(f"Flax refused the call: {error}. {SEEN}") from error
            finally:  # a copy shares the model's lists and dicts, and `nnx.jit` of the model itself takes its attributes off
                state.restore()

    def _forward(self, seed: jax.Array) -> Sequence[jax.Array]:
        request = self._request
        with model_lock(as_parts(self._model)):
            copied = nnx.clone(self._model)  # in here: Flax lets nobody write into variables that were made outside
        for part in as_parts(copied):
            part.train() if request.training else part.eval()
        self.observer = Observer(self.watch, request, seed)
        dress(copied, self.observer)
        if request.parameters or request.tables:
            for path, variable in variables_of(copied).items():
                variable.set_value(self.observer.heard(path, variable.get_value()))
        returned, self.unused = _called(copied, self._model, self._batch, request.call)
        if self._everything:
            return []
        self.drawn = {path: one.get_value() for path, one in nodes_of(copied, nnx.RngCount).items()}
        self.chosen = self.watch.resolve(SEEN)
        return self._answered(returned)

    def _answered(self, returned: Any) -> Sequence[jax.Array]:
        """Answer the objectives inside the forward pass, where JAX differentiates what is done to the outputs, too.

        JAX pulls back from all outputs at once: from those that an objective does not read, zeros.
        """
        answer = answered(returned, self._batch, self._request, JaxTensors())
        self.objective = answer.objective
        sets = list(answer.sets)  # of all objectives: what they read has to be made in here
        self.further = answer.further
        pairs = [[(id(tensor), tensor, cotangent) for tensor, cotangent in one] for one in sets]
        outputs = {number: tensor for one in pairs for number, tensor, _ in one}
        self.cotangents = [
            [
                jnp.asarray(sum((own for number, _, own in one if number == key), np.zeros(tensor.shape)), tensor.dtype)
                for key, tensor in outputs.items()
            ]
            for one in pairs
        ]
        return list(outputs.values())

    def pull_back(self, cotangents: Sequence[jax.Array]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return the gradients at the points and variables reached, and those that were edited as they were before."""
        self.observer.start_pullback()
        self._pull(cotangents)
        return self.observer.gradients, self.observer.before


class JaxTensors:
    """The reading of JAX's arrays, see `embgrad.backend.cotangents.Tensors`."""

    kind = "a jax.Array"
    scalars: tuple[tuple[int, ...], ...] = ((),)

    def is_tensor(self, value: object) -> bool:
        """Return whether a value is a `jax.Array`."""
        return isinstance(value, jax.Array)

    def dtype(self, tensor: Any) -> str:
        """Return the dtype's name."""
        return str(tensor.dtype)

    def to_numpy(self, tensor: Any) -> np.ndarray:
        """Return a copy of the values."""
        return to_numpy(tensor)

    def rows(self, tensor: Any, examples: np.ndarray, positions: np.ndarray) -> Any:
        """Return the rows, which JAX pulls back as it does everything else."""
        return tensor[examples, positions]


def _called(copied: Any, model: Any, batch: TokenBatch, call: Call | None) -> tuple[Any, tuple[str, ...]]:
    """Call the copy; return its outputs, and the names of the batch's parts that it could not take."""
    if call is not None:
        return call(copied, jax.tree.map(_native, batch.inputs())), ()  # a dict, or the ids alone
    expect_single(model)
    plan = plan_call(parameters_of(model.__call__, NOT_THE_BATCHS), batch)
    args, kwargs = jax.tree.map(_native, (plan.args, dict(plan.kwargs)))
    return copied(*args, **kwargs), plan.unused


def _native(value: Any) -> Any:
    """Return a JAX array; refuse numbers that JAX, which holds whole numbers in 32 bits, would wrap round to another id."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
        return value
    array = jnp.asarray(value)
    if value.dtype.kind in "iu" and value.size and value.max() > np.iinfo(array.dtype).max:
        raise BatchError(
            f"the batch holds {value.max()}, which JAX would hold as {array.dtype} and so make another number: expected at most "
            f"{np.iinfo(array.dtype).max}; use the tokenizer that belongs to this model"
        )
    return array


def _table_names(model: Any, watch: PassRecorder, keys: Iterable[str]) -> dict[str, list[str]]:
    """Return by the lookups' keys the names of their tables."""
    modules, names = modules_of(model), {id(variable): path for path, variable in variables_of(model).items()}
    lookups = {key: point for key in keys if isinstance(point := watch.recorded(key), Lookup)}
    return {key: [names[id(modules[lookup.path].embedding)]] for key, lookup in lookups.items()}


def _move_on(model: Any, drawn: Mapping[str, Any]) -> None:
    """Move the model's random numbers on to where the copy's are, as a pass by hand would."""
    with model_lock(as_parts(model)):
        for path, count in nodes_of(model, nnx.RngCount).items():
            count.set_value(drawn[path])
