"""The call: the gradient of an objective at points of the forward pass, in any framework."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, overload

import numpy as np

from embgrad.backend.protocol import Call
from embgrad.backend.registry import backend_for, model_in
from embgrad.backend.signature import expect_callable
from embgrad.common.keywords import explained
from embgrad.common.options import count_or_none, expect_flag
from embgrad.common.progress import Progress, reporter
from embgrad.engine.assemble import joined
from embgrad.engine.check import certified
from embgrad.engine.decoder import expecting_decoder
from embgrad.engine.interventions import checked_changes
from embgrad.engine.length_errors import expecting_inputs, expecting_length
from embgrad.engine.probe import expecting_parts, with_shared
from embgrad.engine.run import Task, level_of_user
from embgrad.errors import BatchError, EmbgradWarning, PointError, UnsupportedError, did_you_mean
from embgrad.forward.points import WORD, Point
from embgrad.inputs.conventions import batch_of
from embgrad.objectives.native import as_objective, described
from embgrad.objectives.objectives import Scalar
from embgrad.results.gradients import EmbeddingGradients

__all__ = ["asked", "check_options", "gradients", "points"]


@overload
def gradients(
    model: Any,
    batch: Any,
    objective: Any,
    *,
    at: str = ...,
    tokenizer: Any = ...,
    max_length: int | None = ...,
    call: Call | None = ...,
    training: bool = ...,
    pads: str = ...,
    split: bool = ...,
    override: Mapping[str, Any] | None = ...,
    add: Mapping[str, Any] | None = ...,
    edit: Mapping[str, Callable[[np.ndarray], np.ndarray | None]] | None = ...,
    check: bool = ...,
    batch_size: int | None = ...,
    progress: Progress | bool | None = ...,
    compile: bool = ...,
) -> EmbeddingGradients: ...


@overload
def gradients(
    model: Any,
    batch: Any,
    objective: Any,
    *,
    at: Sequence[str],
    tokenizer: Any = ...,
    max_length: int | None = ...,
    call: Call | None = ...,
    training: bool = ...,
    pads: str = ...,
    split: bool = ...,
    override: Mapping[str, Any] | None = ...,
    add: Mapping[str, Any] | None = ...,
    edit: Mapping[str, Callable[[np.ndarray], np.ndarray | None]] | None = ...,
    check: bool = ...,
    batch_size: int | None = ...,
    progress: Progress | bool | None = ...,
    compile: bool = ...,
) -> dict[str, EmbeddingGradients]: ...


@explained
def gradients(
    model: Any,
    batch: Any,
    objective: Any,
    *,
    at: str | Sequence[str] = WORD,
    tokenizer: Any = None,
    max_length: int | None = None,
    call: Call | None = None,
    training: bool = False,
    pads: str = "keep",
    split: bool = False,
    override: Mapping[str, Any] | None = None,
    add: Mapping[str, Any] | None = None,
    edit: Mapping[str, Callable[[np.ndarray], np.ndarray | None]] | None = None,
    check: bool = False,
    batch_size: int | None = None,
    progress: Progress | bool | None = None,
    compile: bool = False,
) -> EmbeddingGradients | dict[str, EmbeddingGradients]:
    """The gradient of an objective at a point of the forward pass, by default ∂ΣL/∂e at the lookup, as NumPy.

    The model stays as it was.

    Args:
        model: a model of PyTorch, TensorFlow, Keras or MXNet Gluon; an object that holds one in its attribute `model`, such as
            a pipeline; or a sequence of parts of one framework, with `call`.
        batch: a TokenBatch, a dict of inputs in a known convention, gluonnlp's (ids, types, valid_length), an array of
            ids of shape (example, position), or texts, with `tokenizer`.
        objective: an `embgrad.Objective`; a function that takes the model's own return value and gives a native tensor
            of shape (example,); or `embgrad.Scalar` around one that gives a scalar.
        at: the point. A role: "word", the lookup whose indices are the batch's ids; "position", "type"; "embeddings", what
            the embedding block gives; "layer.N", what the Nth repeated block gives, "layer.-1" the last. Or an attribute
            path, of a table or a module (`path:input` for what a module is given); with `#occurrence` where it is reached
            several times. See `points`. A sequence of names gives a dict, by the names as given.
        tokenizer: makes ids of texts, see `embgrad.encode`, and names the tokens of ids. Without it texts go through the model's
            own, which is its attribute of that name.
        max_length: the most tokens of a text, special tokens included; how many were cut off is in the provenance, under
            `truncated`. None cuts off nothing with a tokenizer that is given, and where the model's own limit is with its own.
        call: calls the model, `call(model, inputs) -> outputs`; `inputs` are native tensors in the batch's convention, under
            the keys that were given.
        training: run the model in training mode (dropout drops, batch norm takes the batch's averages).
        pads: "keep" what the model computes at masked positions, or set it to "zero"; `pad_leak` tells in both cases.
        split: one pullback an example, for models in which examples meet: `values[i]` is then ∂L_i/∂e[i].
        override: by the names of points what takes the place of their values in the forward pass: an array that broadcasts
            to the point's shape as it is seen (one with an example axis is cut along with the batch), or a function of the
            value, of which it gets a copy that it may write into. The gradient at the point is that at the new value.
        add: likewise what is added to the values, after `override`; the gradient goes on.
        edit: by the names of points a function of the gradient on its way up; what it returns, or has written into its
            argument, goes on in its place. `values` at the point is what goes on, `before` what came.
        check: test the result by finite differences, by the table's own gradient and by running an example alone; the figures
            stand in `certificate`.
        batch_size: run at most so many examples at once; the result is that of all.
        progress: a function that is told (examples done, of how many), at the start and after each micro-batch; or True for a
            line on stderr, where that is a terminal.
        compile: compile the model, or the parts of it that can be, and run the compiled code at later calls, of any length.
            Weights, labels, changes and functions given here may differ from call to call; when a constant or a layer of the
            model changes, it is compiled anew. Where nothing can be compiled, a warning says why, and the model runs as
            without.

    Raises:
        BackendError: no backend takes the model.
        BatchError: the batch is malformed, an id lies outside the table, or an example is longer than the model takes.
        PointError: there is no such point, the name fits several, or a change does not fit the point.
        OutputError: the objective names an output that the model does not have.
        ObjectiveError: the objective does not go with the output, or is not finite.
        NoGradientError: the objective does not depend on the point, or its gradient is not finite.
        CertificationError: with `check`, the result is wrong.
        UnsupportedError: the backend cannot do this for this model.
    """
    names = _names(at)
    expect_flag(check, "check")
    tokens = batch_of(batch, tokenizer, max_length, model)
    batch_size = count_or_none(batch_size, "batch_size")
    given = {"override": override, "add": add, "edit": edit}
    task = asked(
        model, objective, names, call=call, training=training, pads=pads, split=split, changes=given, compile=compile
    )
    model = task.model  # which a pipeline, say, holds
    is_square = names != (WORD,) and tokens.shape[0] == tokens.shape[1]  # of which a part shows which axis is which
    if tokens.extras and (batch_size is not None or split or check or is_square):
        tokens = with_shared(task.backend, model, tokens, call)
    pieces = [tokens] if batch_size is None else list(tokens.micro_batches(batch_size))
    if len(pieces) > 1 and isinstance(objective, Scalar):
        raise UnsupportedError(
            f"batch_size={batch_size} cuts the batch of {len(tokens)}, and a Scalar objective reduces over the whole of it: "
            "leave batch_size out, or give a function of shape (example,)"
        )
    parts = partial(expecting_parts, task.backend, model, tokens, call, batch_size)
    if len(tokens) > 1 and (split or len(pieces) > 1):
        with expecting_length(task.backend, model, tokens, call), parts(), expecting_decoder(model, tokens, call):
            task.expect_examples_first(pieces[0], tokens)
    done, seen = [], 0
    length = expecting_length(task.backend, model, tokens, call)
    with length, reporter(progress) as report, parts() if len(pieces) > 1 else nullcontext():
        report(seen, len(tokens))
        for piece in pieces:
            one = task if len(pieces) == 1 else task.cut(slice(seen, seen + len(piece)), len(tokens))
            results = one.run(piece)
            done.append(certified(one, piece, results) if check else results)
            seen += len(piece)
            report(seen, len(tokens))
    if compile:
        _warn_of_uncompiled(done)
    joint = done[0]
    if len(done) > 1:
        objective_said = described(task.objective)
        joint = {name: joined([one[name] for one in done], objective_said) for name in names}
    return joint[at] if isinstance(at, str) else joint


def asked(
    model: Any,
    objective: Any,
    at: Any,
    *,
    call: Call | None,
    training: bool,
    pads: str,
    split: bool,
    changes: Mapping[str, Any],
    compile: bool,
) -> Task:
    """What a call of `gradients` asks, checked as far as can be without a batch.

    Args:
        model: as in `gradients`; so are `objective`, `at`, `call`, `training`, `pads`, `split` and `compile`.
        changes: by option, "override", "add" and "edit", what was given.

    Raises:
        BackendError, BatchError, ObjectiveError, PointError, UnsupportedError: as `gradients`.
    """
    names = _names(at)
    check_options(pads, call)
    checked = {option: checked_changes(change, option) for option, change in changes.items()}
    model = model_in(model)
    backend = backend_for(model)
    task = Task(backend, model, as_objective(objective), names, call, training, pads, split, checked, compiled=compile)
    task.check()
    return task


@explained
def points(
    model: Any, batch: Any, *, tokenizer: Any = None, max_length: int | None = None, call: Call | None = None
) -> list[Point]:
    """What a forward pass on the batch reaches and `at` can name: its lookups in order, then its modules, with their roles.

    Inputs of modules (`path:input`) can be named too, and are told where they have a role.

    Args:
        model: as in `gradients`; so are `batch`, `tokenizer`, `max_length` and `call`.

    Raises:
        BackendError: no backend takes the model.
        BatchError: the batch is malformed, or an id lies outside the table.
    """
    expect_callable(call)
    tokens = batch_of(batch, tokenizer, max_length, model)
    model = model_in(model)
    backend = backend_for(model)
    with expecting_inputs(backend, model, tokens, call):
        found = backend.points(model, tokens, call)
    return [point for point in found if point.listed]


def _warn_of_uncompiled(done: Sequence[Mapping[str, EmbeddingGradients]]) -> None:
    """Say once why no kept trace was run."""
    whys = [one.provenance.get("uncompiled") for results in done for one in results.values()]
    why = next((one for one in whys if one), None)
    if why is not None:
        warnings.warn(
            f"compile=True: {why}; the model ran without a trace", EmbgradWarning, stacklevel=level_of_user() + 1
        )


def _names(at: Any) -> tuple[str, ...]:
    if isinstance(at, str) and at:
        return (at,)
    names = (at,) if isinstance(at, str) or not isinstance(at, Iterable) else tuple(at)
    if not names or not all(isinstance(name, str) and name for name in names) or len(set(names)) != len(names):
        raise PointError(f"at is {at!r}: expected the name of a point, such as 'word', or several different ones")
    return names


def check_options(pads: str, call: Call | None) -> None:
    """Refuse options of `gradients` that are none, which takes no model to see.

    Raises:
        BatchError: one is.
    """
    expect_callable(call)
    if not isinstance(pads, str) or pads not in ("keep", "zero"):
        raise BatchError(f"pads is {pads!r}: expected 'keep' or 'zero'.{did_you_mean(str(pads), ('keep', 'zero'))}")
