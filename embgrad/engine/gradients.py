"""`embgrad.gradients` and `embgrad.points`: the gradient of an objective at points of the forward pass, in any framework."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from embgrad.backend.protocol import Call
from embgrad.backend.registry import bind
from embgrad.common.keywords import explain_arguments
from embgrad.common.options import count_or_none
from embgrad.common.progress import Progress
from embgrad.engine.assemble import join, warn_of_leak
from embgrad.engine.call_errors import explain_decoder, explain_errors, explain_forward
from embgrad.engine.descent import with_certain_roles
from embgrad.engine.options import Keywords, check_options
from embgrad.engine.probe import with_shared
from embgrad.engine.question import Question
from embgrad.engine.run import expect_examples_first, run_question
from embgrad.engine.sub_batches import run_in_sub_batches
from embgrad.errors import EmbgradWarning, level_of_user
from embgrad.inputs.conventions import batch_of
from embgrad.model_points.points import WORD, Point
from embgrad.objectives.objectives import as_objectives, at_index, describe
from embgrad.results.gradients import EmbeddingGradients

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["gradients", "points", "results_of", "results_of_each"]


@overload
def gradients(
    model: Any, batch: Any, objective: list[Any] | tuple[Any, ...], *, at: str = ..., **options: Unpack[Keywords]
) -> list[EmbeddingGradients]: ...


@overload
def gradients(
    model: Any, batch: Any, objective: list[Any] | tuple[Any, ...], *, at: Sequence[str], **options: Unpack[Keywords]
) -> list[dict[str, EmbeddingGradients]]: ...


@overload
def gradients(
    model: Any, batch: Any, objective: Any, *, at: str = ..., **options: Unpack[Keywords]
) -> EmbeddingGradients: ...


@overload
def gradients(
    model: Any, batch: Any, objective: Any, *, at: Sequence[str], **options: Unpack[Keywords]
) -> dict[str, EmbeddingGradients]: ...


@explain_arguments
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
) -> (
    EmbeddingGradients | dict[str, EmbeddingGradients] | list[EmbeddingGradients] | list[dict[str, EmbeddingGradients]]
):
    """Return the gradient of an objective at a point of the forward pass, by default ∂ΣL/∂e at the lookup, as NumPy.

    The model is restored afterwards, even after an exception.

    Args:
        model: a model of PyTorch, TensorFlow, Keras, JAX or MXNet Gluon; an object that holds a model in its attribute `model`,
            such as a pipeline; or a sequence of parts of one framework, with `call`.
        batch: a TokenBatch, a dict of inputs in a known convention, gluonnlp's (ids, types, valid_length), an array of
            ids of shape (example, position), or texts, with `tokenizer`. A dict may hold ids in one row, one example after
            another, and under `offsets` where each begins; results have the shape (example, position, dim) as well.
        objective: an `embgrad.Objective`; a function that takes the model's own return value and returns a native tensor
            of shape (example,); or `embgrad.Scalar` around a function that returns a scalar. Or a list of these, whose gradients
            take one forward pass together, and a pullback each; an error names the index in the list.
        at: the point. A role: "word", the lookup whose indices are the batch's ids; "position", "type"; "embeddings", the
            output of the embedding block; "layer.N", the output of the Nth repeated block, "layer.-1" of the last. Or an
            attribute path, of a table or a module (`path:input` for the input of a module); with `#occurrence` where it is
            reached several times. See `points`. With a sequence of names the result is a dict by these names.
        tokenizer: makes ids of texts, see `embgrad.encode`, and names the tokens of ids; for ids a vocabulary will
            do, a list of tokens or a mapping of tokens to ids. Without it texts go through the model's
            own tokenizer, which is its attribute of that name.
        max_length: the most tokens of a text, special tokens included; how many were cut off is in the provenance, under
            `truncated`. With None the argument `tokenizer` cuts nothing off, and the model's own tokenizer cuts at the model's
            own limit.
        call: calls the model, `call(model, inputs) -> outputs`; `inputs` are native tensors in the batch's convention, under
            the keys that the batch has.
        training: run the model in training mode (dropout drops, batch norm takes the batch's averages).
        pads: "keep" the gradient that the model computes at masked positions, or set it to "zero"; `pad_leak` reports its size in
            both cases.
        split: make one pullback for each example, for models in which examples depend on one another: `values[i]` is then
            ∂L_i/∂e[i].
        override: by the names of points the values that replace theirs in the forward pass: an array that broadcasts
            to the point's shape as users see it (an array with an example axis is sliced with the batch), or a function of the
            value, which gets a copy that it may write into. The gradient at the point is the gradient at the new value.
        add: likewise arrays or functions to add to the values, after `override`; the gradient flows on.
        edit: by the names of points a function of the gradient during the backward pass. It returns an array that replaces the
            gradient, or writes into its argument and returns None. `values` at the point is the new gradient, `before` the
            original one.
        check: test the result by finite differences, by the table's own gradient and by running an example alone; the figures
            are in `certificate`.
        batch_size: the most examples to run at once; the result is that of all.
        progress: a function that takes (examples done, number of examples), called at the start and after each sub-batch; or True
            for a line on stderr, where that is a terminal.
        compile: compile the model (TensorFlow, Keras, JAX), and run the compiled code at later calls, of any length. Weights,
            labels, changes and functions given here may differ from call to call; when a constant or a layer of the model
            changes, it is compiled again. Where the model cannot be compiled, a warning says why, and it runs uncompiled. Other
            backends refuse it; with PyTorch pass `torch.compile(model)` itself.

    Returns:
        An `EmbeddingGradients`, whose `values` are (example, position, dim), float32, or float64 where the model computes in it;
        with a sequence of names a dict of them. With a list of objectives a list of these, one for each.

    Raises:
        BackendError: no backend takes the model.
        BatchError: the batch is malformed, an id lies outside the table, or an example is longer than the model accepts.
        PointError: there is no such point, the name fits several, or a change does not fit the point.
        OutputError: the objective names an output that the model does not have.
        ObjectiveError: the objective does not fit the output, or is not finite.
        NoGradientError: the objective does not depend on the point, or its gradient is not finite.
        CertificationError: with `check`, the result is wrong.
        UnsupportedError: the backend cannot do this for this model.
    """
    options = check_options(
        at,
        training=training,
        pads=pads,
        split=split,
        override=override,
        add=add,
        edit=edit,
        check=check,
        compile=compile,
    )
    tokens = batch_of(batch, tokenizer, max_length, model)
    size = count_or_none(batch_size, "batch_size")
    objectives, is_list = as_objectives(objective)
    question = Question(bind(model, call), tokens, objectives, options)
    results = results_of_each(question, size, progress)
    if options.single:
        singles = [by_name[options.names[0]] for by_name in results]
        return singles if is_list else singles[0]
    return results if is_list else results[0]


def results_of(
    question: Question, batch_size: int | None = None, progress: Progress | bool | None = None
) -> dict[str, EmbeddingGradients]:
    """Return the results of a question by the points' names, from sub-batches of at most `batch_size` examples."""
    return results_of_each(question, batch_size, progress)[0]


def results_of_each(
    question: Question, batch_size: int | None = None, progress: Progress | bool | None = None
) -> list[dict[str, EmbeddingGradients]]:
    """Return for each objective of a question the results by the points' names, see `results_of`."""
    bound, options, batch, count = question.bound, question.options, question.batch, len(question.batch)
    is_square = options.names != (WORD,) and count == batch.shape[1]  # a probe shows which axis is which
    if batch.extras and (batch_size is not None or options.split or options.check or is_square):
        question = replace(question, batch=with_shared(bound, batch))
    question.expect_cuttable(batch_size)
    by_example = count > 1 and (options.split or question.is_cut(batch_size))
    if by_example:
        with (
            explain_errors(bound, batch, size=min(batch_size or count, count - 1)),
            explain_decoder(bound, batch),
        ):
            expect_examples_first(question, batch_size)

    pieces = run_in_sub_batches(question, batch_size, progress, _run_certified if options.check else run_question)
    if options.compile:
        _warn_of_uncompiled([by_name for results in pieces for by_name in results])
    joint = [
        {name: join([by_name[name] for by_name in results], describe(objective)) for name in options.names}
        for objective, results in zip(question.objectives, zip(*pieces, strict=True), strict=True)
    ]
    if batch.padded and not question.quiet:
        for objective, by_name in zip(question.objectives, joint, strict=True):
            warn_of_leak(by_name[options.names[0]], objective, bound)
    return joint


@explain_arguments
def points(
    model: Any, batch: Any, *, tokenizer: Any = None, max_length: int | None = None, call: Call | None = None
) -> list[Point]:
    """Return the points that a forward pass on the batch reaches and `at` can name: lookups in order, then modules, with roles.

    Inputs of modules (`path:input`) can be named too, and are listed where they have a role.

    Args:
        model: as in `gradients`; so are `batch`, `tokenizer`, `max_length` and `call`.

    Raises:
        BackendError: no backend takes the model.
        BatchError: the batch is malformed, or an id lies outside the table.
    """
    bound = bind(model, call)
    tokens = batch_of(batch, tokenizer, max_length, model)
    with explain_forward(bound, tokens):
        reached = bound.points(tokens)
        reached = with_certain_roles(bound, tokens, reached, reached)
    return [point for point in reached if point.listed]


def _run_certified(question: Question) -> list[dict[str, EmbeddingGradients]]:
    """Return the results of each objective of a sub-batch, tested."""
    from embgrad.engine.check import certify  # much code, for few calls

    checked, results = [], run_question(question)
    for index, by_name in enumerate(results):
        with at_index(index, len(results)):
            checked.append(certify(question.only(index), by_name))
    return checked


def _warn_of_uncompiled(pieces: Sequence[Mapping[str, EmbeddingGradients]]) -> None:
    """Warn once of the reason why no compiled code was run."""
    reasons = [result.provenance.get("uncompiled") for results in pieces for result in results.values()]
    reason = next((reason for reason in reasons if reason), None)
    if reason is not None:
        warnings.warn(
            f"compile=True: {reason}; the model ran without a trace", EmbgradWarning, stacklevel=level_of_user() + 1
        )
