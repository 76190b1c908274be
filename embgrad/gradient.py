"""The call: the gradient of an objective with respect to the output of a lookup, in any framework."""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np

from embgrad.arrays import owned
from embgrad.backend import Backend, NativeObjective, Point, PointValues, Request, Run
from embgrad.batch import TokenBatch, as_batch, count_or_none, is_text
from embgrad.calling import as_parts
from embgrad.encoding import encode
from embgrad.errors import (
    AmbiguousPointError,
    BatchError,
    EmbgradWarning,
    NoGradientError,
    ObjectiveError,
    PointError,
    UnsupportedError,
    did_you_mean,
    listed,
)
from embgrad.objective import Objective, Scalar
from embgrad.points import WORD, layout_is_open, split_occurrence
from embgrad.registry import backend_for
from embgrad.result import EmbeddingGradients
from embgrad.rowsparse import RowSparse, scatter
from embgrad.version import __version__

__all__ = ["gradients", "points"]

Call = Callable[[Any, Any], Any]


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
    results = {name: _joined([one[name] for one in done]) for name in names}
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
        source = _Source(self, batch, run, objective)
        found = {name: self._laid_out(run.points[native], batch) for name, native in native_names.items()}
        return {name: source.result(name, values) for name, values in found.items()}

    def _laid_out(self, values: PointValues, batch: TokenBatch) -> PointValues:
        """The point with its layout, from a forward pass with one id changed where the batch's own ids leave it open."""
        lookup = values.lookup
        if lookup.layout is None or not layout_is_open(lookup.indices, batch.ids):
            return values
        layout = None
        if lookup.rows > 1:
            seen = self.backend.points(self.model, _with_one_other_id(batch), self.call)
            layout = next((point.lookup.layout for point in seen if point.name == lookup.name), None)
        if layout is None:
            raise AmbiguousPointError(
                f"the ids are the same read by example and by position, so that they do not tell which axis of {lookup} is the "
                "examples, and a forward pass with another id did not either: run the examples one at a time, batch_size=1",
                [lookup],
            )
        return replace(values, lookup=replace(lookup, layout=layout))

    def _run(self, batch: TokenBatch, request: Request) -> tuple[Run, dict[str, str]]:
        """The run, and for each name as given the name under which its point stands in the run."""
        numbered = any(split_occurrence(name)[0] == WORD and name != WORD for name in self.names)
        if not numbered:
            try:
                return self.backend.run(self.model, batch, request), {name: name for name in self.names}
            except AmbiguousPointError as error:
                if WORD not in self.names:
                    raise
                told = _told_apart(self.backend, self.model, batch, self.call, error)
        else:
            told = _told_apart(self.backend, self.model, batch, self.call, None)
        natives = {name: _native_name(name, told) for name in self.names}
        return self.backend.run(self.model, batch, replace(request, points=tuple(natives.values()))), natives


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


@dataclass(frozen=True)
class _Source:
    """Where results come from: the task, the batch and the run."""

    task: _Task
    batch: TokenBatch
    run: Run
    objective: np.ndarray

    def result(self, name: str, values: PointValues) -> EmbeddingGradients:
        """The result at one point, arranged, checked and owned."""
        arrange, ids, is_batch = _arrangement(name, values, self.batch)
        pullbacks = [owned(arrange(_present(name, values, gradient))) for gradient in values.gradients]
        activations = owned(arrange(values.activation))
        mask = self.batch.mask if is_batch else None
        leak = max(_leak(pullback, mask) for pullback in pullbacks)
        for pullback in pullbacks:
            _expect_finite(name, values, pullback)
            if self.task.pads == "zero" and mask is not None:
                pullback[mask == 0] = 0
        split = self.task.split
        gradient = np.stack([pullback[i] for i, pullback in enumerate(pullbacks)]) if split else pullbacks[0]
        return EmbeddingGradients(
            values=gradient,
            activations=activations,
            objective=np.array(self.objective, np.float64),
            ids=ids.copy(),
            mask=None if mask is None else mask.copy(),
            types=_copied(self.batch.types if is_batch else None),
            tokens=self.batch.tokens if is_batch else None,
            words_of=_copied(self.batch.words if is_batch else None),
            vocab=values.lookup.rows,
            pad_leak=leak,
            provenance=self._provenance(name, values),
            tables=tuple(scatter(ids, one, values.lookup.rows) for one in pullbacks) if split else None,
        )

    def _provenance(self, name: str, values: PointValues) -> dict[str, Any]:
        task = self.task
        parts = [f"{type(part).__module__}.{type(part).__qualname__}" for part in as_parts(task.model)]
        return {
            "embgrad": __version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "backend": task.backend.name,
            "versions": dict(task.backend.versions()),
            "model": " + ".join(parts),
            "point": name,
            "path": values.lookup.name,
            "objective": _described(task.objective),
            "compute_dtype": self.run.compute_dtype,
            "training": task.training,
            "pads": task.pads,
            "split": task.split,
            "unused": list(self.run.unused),
            "truncated": self.batch.truncated.tolist(),
        }


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


def _told_apart(
    backend: Backend, model: Any, batch: TokenBatch, call: Call | None, error: AmbiguousPointError | None
) -> list[Point]:
    """The points that are `word`: their indices are the batch's ids, and follow when the ids change.

    Other lookups' indices can equal the ids by chance: positions 0, 1, 2, … or types of zeros. A second forward pass
    with other ids tells them apart.
    """
    found = [point for point in backend.points(model, batch, call) if point.role == WORD]
    if len(found) < 2:
        return found
    other = _with_other_ids(batch, min(point.lookup.rows for point in found))
    if other is None:
        return found
    try:
        again = {point.name for point in backend.points(model, other, call) if point.role == WORD}
    except Exception as failure:
        raise AmbiguousPointError(
            f"'word' fits {len(found)} lookups, {', '.join(str(point.lookup) for point in found)}, and a forward pass with "
            f"other ids, which would tell them apart, raised {type(failure).__name__}: name one of them in at=...",
            [point.lookup for point in found],
        ) from (error or failure)
    return [point for point in found if point.name in again]


def _with_other_ids(batch: TokenBatch, rows: int) -> TokenBatch | None:
    """The batch with every id changed to another valid one, or None where there is no other."""
    distinct = np.unique(batch.ids)
    if len(distinct) == 1:
        others = [row for row in range(rows) if row != distinct[0]][:1]
        return batch.replace(ids=np.full_like(batch.ids, others[0]), tokens=None) if others else None
    changed = np.roll(distinct, -1)[np.searchsorted(distinct, batch.ids)]
    return batch.replace(ids=changed, tokens=None)


def _with_one_other_id(batch: TokenBatch) -> TokenBatch:
    """The batch with the last id of the first example changed, to one of the batch's own where there are others."""
    ids = batch.ids.copy()
    here = ids[0, -1]
    others = ids[ids != here]
    ids[0, -1] = others[0] if others.size else int(here == 0)
    return batch.replace(ids=ids, tokens=None)


def _native_name(name: str, words: Sequence[Point]) -> str:
    path, occurrence = split_occurrence(name)
    if path != WORD:
        return name
    several = ", ".join(f"word#{k} = {point.lookup}" for k, point in enumerate(words))
    if occurrence is None and len(words) > 1:
        raise AmbiguousPointError(
            f"'word' fits {len(words)} lookups: {several}; name one of them, or give a list of names to get each",
            [point.lookup for point in words],
        )
    if (occurrence or 0) >= len(words):
        raise PointError(f"there is no point {name!r}: the ids are looked up {len(words)} time(s): {several or 'none'}")
    return words[occurrence or 0].name


def _arrangement(
    name: str, values: PointValues, batch: TokenBatch
) -> tuple[Callable[[np.ndarray], np.ndarray], np.ndarray, bool]:
    """How the point's arrays become (example, position, dim), its ids, and whether these are the batch's."""
    lookup = values.lookup
    if lookup.layout is not None:
        return lookup.layout.vectors, batch.ids, True
    if lookup.indices.ndim == 2 and len(lookup.indices) == len(batch):
        return lambda array: array, lookup.indices, False
    raise UnsupportedError(
        f"the point {name!r} is {lookup}: expected indices of shape (example, position) with {len(batch)} examples; a lookup "
        "that all examples share has no gradient for each of them"
    )


def _present(name: str, values: PointValues, gradient: np.ndarray | None) -> np.ndarray:
    if gradient is None:
        raise NoGradientError(
            f"the objective does not depend on the point {name!r} ({values.lookup}): the graph has no way from it to the "
            "lookup; does the model detach it, turn it into integers, or use another output than the objective reads?"
        )
    return gradient


def _expect_finite(name: str, values: PointValues, gradient: np.ndarray) -> None:
    wrong = np.argwhere(~np.isfinite(gradient))
    if wrong.size:
        example, position, dim = (int(i) for i in wrong[0])
        raise NoGradientError(
            f"the gradient at {name!r} ({values.lookup.path}) is {gradient[example, position, dim]} at example {example}, "
            f"position {position}, and in {len(wrong)} of {gradient.size} entries: expected finite numbers; the model's "
            "backward pass overflows or divides by zero there, look at its inputs, its mask and its dtype"
        )


def _leak(gradient: np.ndarray, mask: np.ndarray | None) -> float:
    if mask is None or mask.all():
        return 0.0
    return float(np.abs(gradient[mask == 0]).max())


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


def _copied(array: np.ndarray | None) -> np.ndarray | None:
    return None if array is None else array.copy()


def _joined(pieces: Sequence[EmbeddingGradients]) -> EmbeddingGradients:
    """One result from those of the micro-batches, in order."""
    first = pieces[0]
    if len(pieces) == 1:
        return first

    def together(name: str) -> Any:
        parts = [getattr(piece, name) for piece in pieces]
        return None if parts[0] is None else np.concatenate(parts)

    tables: tuple[RowSparse, ...] = tuple(table for piece in pieces for table in piece.tables or ())
    truncated = [count for piece in pieces for count in piece.provenance["truncated"]]
    return replace(
        first,
        **{name: together(name) for name in ("values", "activations", "objective", "ids", "mask", "types", "words_of")},
        tokens=None if first.tokens is None else tuple(row for piece in pieces for row in piece.tokens or ()),
        pad_leak=max(piece.pad_leak for piece in pieces),
        provenance={**first.provenance, "truncated": truncated, "batch_size": len(first.ids)},
        tables=tables or None,
    )
