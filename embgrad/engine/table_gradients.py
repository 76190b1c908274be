"""`table_gradients`: a table's gradient through its lookups, and through other uses, such as a head that shares it."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from embgrad.backend.parameters import ParameterValues
from embgrad.backend.protocol import Call, PointValues
from embgrad.backend.registry import bind
from embgrad.backend.replay import agreeing
from embgrad.common.finite import not_finite
from embgrad.common.keywords import explain_arguments
from embgrad.common.metrics import length
from embgrad.common.options import expect_flag
from embgrad.engine.call_errors import explain_forward
from embgrad.engine.options import GradientOptions, expect_one_name
from embgrad.engine.probe import word_resolved
from embgrad.engine.question import Question
from embgrad.errors import EmbgradWarning, NoGradientError, PointError, UnsupportedError, level_of_user
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.conventions import batch_of
from embgrad.model_points.names import point_of
from embgrad.model_points.points import WORD, Point
from embgrad.objectives.objectives import as_objective
from embgrad.results.row_sparse import scatter

__all__ = ["TableGradients", "gradients_of_table", "sum_tolerance", "table_gradients"]

#: The smallest tolerance for the difference of a table's gradient from the sum over its uses: it exceeds float32's rounding,
#: since parts of a float64 model may compute in float32.
LEAST: Final = 1e-6


@dataclass(frozen=True, eq=False)
class TableGradients:
    """The gradient of ΣL with respect to a table, (vocab, dim), by the uses of the table; total = lookup + head.

    Attributes:
        lookup: through all lookups in the table.
        head: through all other uses, such as a head that shares the table or a penalty on it. Zeros where there is none.
        names: the parameters that share the table's memory, the table's own name first, as `parameter_gradients` has them.
        path: the table's path as `points` has it.
        lookups: the number of lookups in the table.
        padding: the row that the model declares as padding, whose lookups the framework's own gradient omits; None where it
            declares none.
        own: the framework's own gradient of the table; None where the table is not trainable, and in training mode, where
            each pass draws other random numbers.
        provenance: as of `EmbeddingGradients`.
    """

    lookup: np.ndarray
    head: np.ndarray
    names: tuple[str, ...]
    path: str
    lookups: int
    padding: int | None
    own: np.ndarray | None
    provenance: Mapping[str, Any]

    @property
    def total(self) -> np.ndarray:
        """The whole gradient of the table, (vocab, dim)."""
        return np.asarray(self.lookup + self.head)

    @property
    def tied(self) -> bool:
        """Return whether something else uses the table: a parameter that shares its memory, or a head that reads it directly."""
        return len(self.names) > 1 or bool(self.head.any())

    @property
    def apart(self) -> float | None:
        """The difference of `total` from the framework's own gradient, without the row of padding; None where that is unknown.

        It is relative to the largest of `own`, `lookup` and `head`: the last two may cancel in the total.
        """
        if self.own is None:
            return None
        kept = np.arange(len(self.own)) != (-1 if self.padding is None else self.padding)
        scale = max(length(gradient[kept]) for gradient in (self.own, self.lookup, self.head)) or 1.0
        return length((self.total - self.own)[kept]) / scale

    def __repr__(self) -> str:
        lookup, head, total = map(length, (self.lookup, self.head, self.total))
        shared = f"shared by {', '.join(self.names)}" if len(self.names) > 1 else "tied" if self.tied else "not shared"
        return (
            f"TableGradients({self.path!r}, {' × '.join(map(str, self.lookup.shape))}, norms: lookup {lookup:.4g}, head "
            f"{head:.4g}, total {total:.4g}; {shared})"
        )


@explain_arguments
def table_gradients(
    model: Any,
    batch: Any,
    objective: Any,
    *,
    at: str = WORD,
    tokenizer: Any = None,
    max_length: int | None = None,
    call: Call | None = None,
    training: bool = False,
) -> TableGradients:
    """Return the gradient of ΣL with respect to a whole table, separated by the uses of the table.

    In a BERT with its masked-language-model head, or a GPT-2, the head's matrix is the table, so that the table's gradient is
    that of the lookups plus that of the head, which reaches every row.

    Args:
        model: as in `gradients`; so are `batch`, `objective`, `tokenizer`, `max_length`, `call` and
            `training`.
        at: a lookup in the table; all lookups in the same table are counted.

    Raises:
        PointError: there is no such lookup, or its table is no parameter of the model.
        NoGradientError: the objective does not depend on the table.
        EmbgradError: as `gradients` raises.
    """
    expect_one_name(at, "make one call for each table")
    expect_flag(training, "training")
    tokens = batch_of(batch, tokenizer, max_length, model)
    bound = bind(model, call)
    question = Question(bound, tokens, (as_objective(objective),), GradientOptions((at,), training=training))
    for ability in ("tables", "parameters"):
        bound.expect_ability(ability)
    with explain_forward(bound, tokens):
        reached = bound.points(tokens)
    points = word_resolved(bound, tokens, reached)
    words = [point for point in points if WORD in point.roles]
    point = _lookup_at(at, points, words, tokens)
    ledger = gradients_of_table(question, point.path, points)
    if ledger is None:
        raise PointError(
            f"the table of {at!r}, {point.path!r}, is no parameter of the model: it is computed in the forward pass, or "
            "loaded for it. embgrad.tables.parameter_gradients has the gradients of the parameters from which it is computed"
        )
    question.warn(ledger.provenance["unused"], ledger.provenance.get("masked_id"))
    tolerance = sum_tolerance(ledger.provenance["compute_dtype"])
    is_apart = ledger.apart is not None and ledger.apart > tolerance
    if is_apart:
        warnings.warn(
            f"the gradients of the table {point.path!r} through its lookups and other uses differ by {ledger.apart:.1e} in sum "
            "from the framework's own gradient, `own`: the table is detached from a lookup or rescales its gradient "
            "(scale_grad_by_freq), or the model or the objective differentiates with respect to the table itself, or computes "
            "something else in each pass",
            EmbgradWarning,
            stacklevel=level_of_user() + 1,
        )
    return ledger


def sum_tolerance(dtype: str) -> float:
    """Return the value of `TableGradients.apart` that rounding explains, since the same numbers are added in another order.

    Args:
        dtype: the dtype in which the model computes; a float64 model may cast to float32 in between.
    """
    return max(agreeing([dtype]), LEAST)


def _lookup_at(at: str, points: Sequence[Point], words: Sequence[Point], batch: TokenBatch) -> Point:
    # Several lookups of the ids may read one table.
    if at == WORD and len({point.path for point in words}) == 1:
        return words[0]
    point, _ = point_of(at, points, words, batch)
    if point.lookup is None:
        raise PointError(
            f"the point {at!r} is {point}: expected a lookup, such as 'word', since only lookups have a table"
        )
    return point


def gradients_of_table(question: Question, path: str, points: Sequence[Point]) -> TableGradients | None:
    """Return the gradient of a table by the table's uses; None for a table that is no parameter.

    Args:
        question: the model, the batch and the objective; its changes are not made.
    """
    keys = [point.key for point in points if point.lookup is not None and point.path == path]
    request = question.request()
    run = question.run(replace(request, points=tuple(keys), tables=True))
    values = [run.points[key] for key in keys]
    rest, lookup = values[0].rest, values[0].lookup
    if rest is None or lookup is None:
        return None
    through = [_scatter(value) for value in values]
    if rest.gradient is None and all(table is None for table in through):
        raise NoGradientError(
            f"the objective does not depend on the table {path!r}: no path in the graph leads from it to a lookup "
            "or another use"
        )
    shape = (lookup.rows, lookup.dim)
    zeros = np.zeros(shape, np.float64 if run.compute_dtype == "float64" else np.float32)
    by_lookups = np.sum([zeros, *(table for table in through if table is not None)], axis=0)
    head = zeros if rest.gradient is None else np.ascontiguousarray(rest.gradient)
    _expect_finite(path, by_lookups, head)
    own = None
    if not question.options.training:
        with contextlib.suppress(UnsupportedError):  # the gradients of some parameters cannot be read
            whole = question.run(replace(request, parameters=True))
            own = _own(whole.parameters or {}, rest.names)
    return TableGradients(
        lookup=by_lookups,
        head=head,
        names=rest.names,
        path=path,
        lookups=len(keys),
        padding=lookup.padding,
        own=own,
        provenance=question.provenance(run),
    )


def _expect_finite(path: str, lookup: np.ndarray, head: np.ndarray) -> None:
    for use, gradient in {"lookups": lookup, "other uses": head}.items():
        wrong = not_finite(gradient)
        if wrong is not None:
            raise NoGradientError(
                f"the gradient of the table {path!r} through its {use} is {wrong.at('row')}: expected finite numbers. Check the "
                "model's inputs, mask and dtype"
            )


def _own(parameters: Mapping[str, ParameterValues], names: Sequence[str]) -> np.ndarray | None:
    """Return the framework's own gradient: the sum over the parameters that share the memory, where all have one shape."""
    if not names or names[0] not in parameters:
        return None
    sharing = [parameters[name] for name in names if name in parameters]
    if any(parameter.shape != sharing[0].shape for parameter in sharing):
        return None
    return np.asarray(np.sum([parameter.fill() for parameter in sharing], axis=0))


def _scatter(values: PointValues) -> np.ndarray | None:
    gradient, lookup = values.gradients[0], values.lookup
    assert lookup is not None
    return None if gradient is None else scatter(lookup.indices, gradient, lookup.rows).to_dense(limit=None)
