"""The call: the gradient of an objective with respect to the output of a lookup, in any framework."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np

from embgrad.assembly import assembled, joined
from embgrad.backend import Backend, Call, NativeObjective, Point, Request, Run
from embgrad.batch import TokenBatch
from embgrad.calling import as_parts
from embgrad.disambiguation import could_be_made, expect_ids_followed, native_name, with_layout, word_points
from embgrad.encoding import encode
from embgrad.errors import (
    AmbiguousPointError,
    BatchError,
    EmbgradWarning,
    ObjectiveError,
    PointError,
    UnsupportedError,
    did_you_mean,
    listed,
)
from embgrad.forms import as_batch
from embgrad.objective import Objective, Scalar
from embgrad.points import WORD, split_occurrence
from embgrad.registry import backend_for
from embgrad.result import EmbeddingGradients
from embgrad.validation import count_or_none, is_text
from embgrad.version import __version__

__all__ = ["gradients", "points"]


@overload
def gradients(
    model: Any,
    batch: Any,
    objective: Any,
    *,
    at: str = ...,
    tokenizer: Any = ...,
    call: Call | None = ...,
    training: bool = ...,
    pads: str = ...,
    split: bool = ...,
    batch_size: int | None = ...,
) -> EmbeddingGradients: ...


@overload
def gradients(
    model: Any,
    batch: Any,
    objective: Any,
    *,
    at: Sequence[str],
    tokenizer: Any = ...,
    call: Call | None = ...,
    training: bool = ...,
    pads: str = ...,
    split: bool = ...,
    batch_size: int | None = ...,
) -> dict[str, EmbeddingGradients]: ...


def gradients(
    model: Any,
    batch: Any,
    objective: Any,
    *,
    at: str | Sequence[str] = WORD,
    tokenizer: Any = None,
    call: Call | None = None,
    training: bool = False,
    pads: str = "keep",
    split: bool = False,
    batch_size: int | None = None,
) -> EmbeddingGradients | dict[str, EmbeddingGradients]:
    """The gradient of an objective with respect to a lookup's output, ∂ΣL/∂e, as NumPy. The model stays as it was.

    Args:
        model: a model of PyTorch, TensorFlow, Keras or MXNet Gluon, or a sequence of parts of one framework, with `call`.
        batch: a TokenBatch, a dict of inputs in a known convention, gluonnlp's (ids, types, valid_length), an array of
            ids of shape (example, position), or texts, with `tokenizer`.
        objective: an `embgrad.Objective`; a function that takes the model's own return value and gives a native tensor
            of shape (example,); or `embgrad.Scalar` around one that gives a scalar.
        at: the lookup: "word", the one whose indices are the batch's ids; a table's attribute path; either with
            `#occurrence`. A sequence of names gives a dict, by the names as given.
        tokenizer: makes ids of texts, see `embgrad.encode`.
        call: calls the model, `call(model, inputs) -> outputs`; `inputs` are native tensors in the batch's convention.
        training: run the model in training mode (dropout drops, batch norm takes the batch's averages).
        pads: "keep" what the model computes at masked positions, or set it to "zero"; `pad_leak` tells in both cases.
        split: one pullback an example, for models in which examples meet: `values[i]` is then ∂L_i/∂e[i].
        batch_size: run at most so many examples at once; the result is that of all.

    Raises:
        BackendError: no backend takes the model.
        BatchError: the batch is malformed, or an id lies outside the table.
        PointError: the model makes no such lookup, or the name fits several.
        OutputError: the objective names an output that the model does not have.
        ObjectiveError: the objective does not go with the output, or is not finite.
        NoGradientError: the objective does not depend on the lookup, or its gradient is not finite.
        UnsupportedError: the backend cannot do this for this model.
    """
    names = _names(at)
    tokens = _batch(batch, tokenizer)
    _check_options(pads, call)
    batch_size = count_or_none(batch_size, "batch_size")
    backend = backend_for(model)
    task = _Task(backend, model, _objective(objective), names, call, training, pads, split)
    task.check()
    pieces = [tokens] if batch_size is None else list(tokens.micro_batches(batch_size))
    if len(pieces) > 1 and isinstance(objective, Scalar):
        raise UnsupportedError(
            f"batch_size={batch_size} cuts the batch of {len(tokens)}, and a Scalar objective reduces over the whole of it: "
            "leave batch_size out, or give a function of shape (example,)"
        )
    if len(pieces) == 1:
        done = [task.run(tokens)]
    else:
        starts = range(0, len(tokens), len(pieces[0]))
        done = []
        for start, piece in zip(starts, pieces, strict=True):
            done.append(task.cut(slice(start, start + len(piece)), len(tokens)).run(piece))
    results = {name: joined([one[name] for one in done]) for name in names}
    return results[at] if isinstance(at, str) else results


def points(model: Any, batch: Any, *, tokenizer: Any = None, call: Call | None = None) -> list[Point]:
    """The lookups that a forward pass on the batch makes, in order: what can be named in `at`.

    Args:
        model: as in `gradients`; so are `batch`, `tokenizer` and `call`.

    Raises:
        BackendError: no backend takes the model.
        BatchError: the batch is malformed, or an id lies outside the table.
    """
    return list(backend_for(model).points(model, _batch(batch, tokenizer), call))


@dataclass(frozen=True)
class _Task:
    """What is asked, over all micro-batches."""

    backend: Backend
    model: Any
    objective: Objective | NativeObjective
    names: tuple[str, ...]
    call: Call | None
    training: bool
    pads: str
    split: bool

    def check(self) -> None:
        """Refuse what the backend cannot do, before anything runs."""
        native = isinstance(self.objective, NativeObjective)
        wanted = {"training": self.training, "split": self.split, "native": native}
        for ability, asked in wanted.items():
            if asked and ability not in self.backend.supports:
                raise UnsupportedError(
                    f"the backend {self.backend.name!r} does not support {ability!r}: it supports "
                    f"{listed(sorted(self.backend.supports))}; leave it out"
                )
        if self.split and native:
            raise UnsupportedError(
                "split=True pulls back each example's objective by itself, which needs an embgrad objective, such as "
                "CrossEntropy or Projection: a function of yours is pulled back as a whole"
            )

    def cut(self, examples: slice, count: int) -> _Task:
        """The same for some of the `count` examples."""
        if isinstance(self.objective, NativeObjective):
            return self
        return replace(self, objective=self.objective.take(examples, count))

    def run(self, batch: TokenBatch) -> dict[str, EmbeddingGradients]:
        """The results for one batch, by the names as given."""
        respond: _Respond | NativeObjective
        outputs: tuple[str | None, ...]
        if isinstance(self.objective, NativeObjective):
            respond, outputs = self.objective, ()
        else:
            respond, outputs = _Respond(self.objective, batch, self.split), (self.objective.output,)
        request = Request(self.names, respond, outputs, self.training, self.split, self.call)
        run, native_names = self._run(batch, request)
        objective = respond.values if isinstance(respond, _Respond) else _native_values(run.objective)
        _warn_of_unused(run.unused, batch)
        common = self._provenance(batch, run)
        results = {}
        for name, native in native_names.items():
            if native == WORD:  # else it has been told apart, or named
                expect_ids_followed(self.backend, self.model, batch, self.call, run.points[native])
            values = with_layout(self.backend, self.model, batch, self.call, run.points[native])
            provenance = {**common, "point": name, "path": values.lookup.name}
            results[name] = assembled(name, values, batch, objective, provenance, self.pads)
        return results

    def _run(self, batch: TokenBatch, request: Request) -> tuple[Run, dict[str, str]]:
        """The run, and for each name as given the name under which its point stands in the run."""
        numbered = any(split_occurrence(name)[0] == WORD and name != WORD for name in self.names)
        # A forward pass in training mode draws random numbers: it is made once, so what it may not tell is told before.
        drawing = self.training and WORD in self.names and could_be_made(batch.ids)
        if not (numbered or drawing):
            try:
                return self.backend.run(self.model, batch, request), {name: name for name in self.names}
            except AmbiguousPointError as error:
                if WORD not in self.names:
                    raise
                told = word_points(self.backend, self.model, batch, self.call, error)
        else:
            told = word_points(self.backend, self.model, batch, self.call, None)
        natives = {name: native_name(name, told) for name in self.names}
        return self.backend.run(self.model, batch, replace(request, points=tuple(natives.values()))), natives

    def _provenance(self, batch: TokenBatch, run: Run) -> dict[str, Any]:
        """What the result remembers, less the point."""
        parts = [f"{type(part).__module__}.{type(part).__qualname__}" for part in as_parts(self.model)]
        return {
            "embgrad": __version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "backend": self.backend.name,
            "versions": dict(self.backend.versions()),
            "model": " + ".join(parts),
            "objective": _described(self.objective),
            "compute_dtype": run.compute_dtype,
            "training": self.training,
            "pads": self.pads,
            "split": self.split,
            "unused": list(run.unused),
            "truncated": batch.truncated.tolist(),
        }


class _Respond:
    """The objective as a backend's callback; keeps its values."""

    def __init__(self, objective: Objective, batch: TokenBatch, split: bool) -> None:
        self.values = np.zeros(len(batch))
        self._objective = objective
        self._batch = batch
        self._split = split

    def __call__(self, outputs: Mapping[str | None, np.ndarray]) -> Sequence[Mapping[str | None, np.ndarray]]:
        name = self._objective.output
        self.values, cotangent = self._objective.evaluate(outputs[name], self._batch)
        if not self._split:
            return [{name: cotangent}]
        return [{name: _only(cotangent, example)} for example in range(len(cotangent))]


def _names(at: Any) -> tuple[str, ...]:
    names = (at,) if isinstance(at, str) or not isinstance(at, Iterable) else tuple(at)
    if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) != len(names):
        raise PointError(f"at is {at!r}: expected the name of a point, such as 'word', or several different ones")
    return names


def _batch(given: Any, tokenizer: Any) -> TokenBatch:
    if tokenizer is None:
        return as_batch(given)
    if not is_text(given):
        raise BatchError(
            f"tokenizer is given and the batch is {type(given).__name__}, not text: expected a text or a list of texts; leave "
            "the tokenizer out for ids"
        )
    return encode(given, tokenizer)


def _check_options(pads: str, call: Call | None) -> None:
    if call is not None and not callable(call):
        raise BatchError(f"call is {call!r}: expected a function, call(model, inputs) -> outputs")
    if not isinstance(pads, str) or pads not in ("keep", "zero"):
        raise BatchError(f"pads is {pads!r}: expected 'keep' or 'zero'.{did_you_mean(str(pads), ('keep', 'zero'))}")


def _objective(given: Any) -> Objective | NativeObjective:
    if isinstance(given, Objective):
        return given
    if isinstance(given, Scalar):
        return NativeObjective(given.function, scalar=True)
    if isinstance(given, type) and issubclass(given, (Objective, Scalar)):
        raise ObjectiveError(
            f"the objective is the class {given.__name__}: expected an instance; write {given.__name__}(...)"
        )
    if callable(given):
        return NativeObjective(given, scalar=False)
    raise ObjectiveError(
        f"the objective is {given!r}: expected CrossEntropy, Logit, Margin, Sum, Projection, Scalar, or a function of the "
        "model's output that gives one number an example"
    )


def _native_values(values: np.ndarray | None) -> np.ndarray:
    assert values is not None, "a backend returns the values of a native objective"
    array = np.asarray(values, np.float64)
    wrong = np.flatnonzero(~np.isfinite(np.atleast_1d(array)))
    if wrong.size:
        where = f" for example {wrong[0]}" if array.ndim else ""
        raise ObjectiveError(
            f"the objective is {np.atleast_1d(array)[wrong[0]]}{where}: expected finite numbers; look at the function and at "
            "the model's outputs"
        )
    return array


def _warn_of_unused(unused: Sequence[str], batch: TokenBatch) -> None:
    said = []
    if "mask" in unused and batch.padded:
        said.append("the mask, so that it reads padding as text")
    if "types" in unused and batch.types is not None and batch.types.any():
        said.append("the types, so that it cannot tell the segments")
    said += [f"the input {name!r}" for name in unused if name in batch.extras]
    if said:
        warnings.warn(
            f"the model cannot take {' and '.join(said)}; if it can under another name, pass call=lambda model, inputs: ...",
            EmbgradWarning,
            stacklevel=4,
        )


def _described(objective: Objective | NativeObjective) -> dict[str, Any]:
    if isinstance(objective, Objective):
        return objective.describe()
    function = objective.function
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return {"class": "Scalar" if objective.scalar else "callable", "name": name}


def _only(cotangent: np.ndarray, example: int) -> np.ndarray:
    alone = np.zeros_like(cotangent)
    alone[example] = cotangent[example]
    return alone
