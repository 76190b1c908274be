"""`padding_report`: the pad row of a table, the gradients that reach it, and the error of an average over padding."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from embgrad.backend.protocol import Call
from embgrad.common.keywords import explain_arguments
from embgrad.common.metrics import length
from embgrad.engine.gradients import gradients
from embgrad.engine.options import expect_one_name
from embgrad.engine.table_gradients import table_gradients
from embgrad.errors import BatchError, PointError
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.conventions import batch_of
from embgrad.model_points.points import WORD
from embgrad.objectives.objectives import as_objective
from embgrad.results.gradients import EmbeddingGradients

__all__ = ["PaddingReport", "padding_report"]


@dataclass(frozen=True)
class PaddingReport:
    """The effects of padding in one model, on one batch, under one objective. Norms are Euclidean.

    Attributes:
        pad_id: the id at padding.
        pads: the number of padding positions.
        positions: the number of all positions.
        declared: the row that the model declares to be padding (`padding_idx` in PyTorch, `mask_zero` in Keras); None for none.
        row_norm: the norm of the table's row at `pad_id`. PyTorch sets a declared row to zero when the table is created; a
            pretrained row is not zero if a head that shares the table was trained on it as a target.
        at_pads: the norm of the gradient that reaches the row through its lookups at padding.
        at_real: the norm of the gradient through its lookups at real positions, where the id is also a token.
        head: the norm of the gradient through other uses, such as a head that shares the table.
        own: the norm of the framework's own gradient of the row, which omits a declared row's lookups; None where the table
            is not trainable.
        names: the parameters that share the table's memory.
        pad_leak: the largest magnitude of the gradient at padding.
        mask_taken: whether the model accepted the mask.
        average_off: the relative error of the mean gradient over all positions, compared with that over the real ones.
        saliency_off: the same for the gradient's norm at each position: -0.25 means that the plain average is a quarter too
            small.
    """

    pad_id: int
    pads: int
    positions: int
    declared: int | None
    row_norm: float
    at_pads: float
    at_real: float
    head: float
    own: float | None
    names: tuple[str, ...]
    pad_leak: float
    mask_taken: bool
    average_off: float
    saliency_off: float

    @property
    def row_is_zero(self) -> bool:
        """Return whether the table's row at padding is zero."""
        return self.row_norm == 0.0

    @property
    def doors(self) -> tuple[str, ...]:
        """The ways in which a gradient reaches the row: of "lookup at padding", "lookup at real positions", "head"."""
        by = {"lookup at padding": self.at_pads, "lookup at real positions": self.at_real, "head": self.head}
        return tuple(name for name, norm in by.items() if norm > 0)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-compatible values."""
        return {**asdict(self), "row_is_zero": self.row_is_zero, "doors": self.doors}

    def __str__(self) -> str:
        zero = "is zero" if self.row_is_zero else f"is not zero (norm {self.row_norm:.4g})"
        declared = "declared" if self.declared == self.pad_id else "not declared"
        by = "padding_idx in PyTorch, mask_zero in Keras"
        shared = f"shared by {', '.join(self.names)}" if len(self.names) > 1 else "not shared"
        own = "" if self.own is None else f"; the framework's own gradient of the row has norm {self.own:.4g}"
        lines = [
            f"padding: id {self.pad_id}, at {self.pads} of {self.positions} positions; the model "
            f"{'took the mask' if self.mask_taken else 'did not take the mask'}",
            f"row {self.pad_id} of the table {zero}; it is {declared} to be padding ({by}); the table is {shared}",
            f"reached by {', '.join(self.doors) or 'nothing'}: at padding {self.at_pads:.4g}, at real positions "
            f"{self.at_real:.4g}, head {self.head:.4g}{own}",
            f"pad leak {self.pad_leak:.3g}; over all positions the mean gradient is off by {self.average_off:.1%}, the mean "
            f"saliency by {self.saliency_off:+.1%}",
        ]
        return "\n".join(lines)


@explain_arguments
def padding_report(
    model: Any,
    batch: Any,
    objective: Any,
    *,
    at: str = WORD,
    tokenizer: Any = None,
    max_length: int | None = None,
    call: Call | None = None,
    training: bool = False,
) -> PaddingReport:
    """Report whether the pad row is zero, how gradients reach it, and the error of an average over all positions.

    Args:
        model: as in `gradients`; so are `batch`, which must hold padding, `objective`, `tokenizer`, `max_length`,
            `call`, `training`.
        at: the lookup.

    Raises:
        BatchError: the batch has no mask, no padding, nothing but padding, or several ids at padding.
        PointError: the point is no lookup.
        EmbgradError: as `gradients` raises.
    """
    expect_one_name(at, "make one call for each lookup")
    tokens = batch_of(batch, tokenizer, max_length, model)
    pad_id = _pad_id(tokens)
    as_objective(objective)  # refuses a list, which `gradients` takes
    result = gradients(model, tokens, objective, at=at, call=call, training=training)
    of_ids = result.vocab is not None and result.ids is not None and np.array_equal(result.ids, tokens.ids)
    if not of_ids or result.mask is None or result.values.ndim != 3:
        raise PointError(f"the point {at!r} is no lookup of the batch's ids: expected one, such as at='word'")
    ledger = table_gradients(model, tokens, objective, at=at, call=call, training=training)
    pads = result.mask == 0
    there = result.ids == pad_id
    average, real_average = result.values.mean((0, 1), np.float64), result.values[~pads].mean(0, np.float64)
    saliency = np.linalg.norm(result.values.astype(np.float64), axis=-1)
    return PaddingReport(
        pad_id=pad_id,
        pads=int(pads.sum()),
        positions=pads.size,
        declared=ledger.padding,
        row_norm=length(result.activations[there & pads][0]),
        at_pads=_norm(result, there & pads),
        at_real=_norm(result, there & ~pads),
        head=length(ledger.head[pad_id]),
        own=None if ledger.own is None else length(ledger.own[pad_id]),
        names=ledger.names,
        pad_leak=result.pad_leak,
        mask_taken="mask" not in result.provenance["unused"],
        average_off=length(average - real_average) / (length(real_average) or 1.0),
        saliency_off=float(saliency.mean() / (saliency[~pads].mean() or 1.0)) - 1.0,
    )


def _pad_id(batch: TokenBatch) -> int:
    if not batch.padded:
        mask = "no mask" if batch.mask is None else "a mask without zeros"
        raise BatchError(
            f"the batch has {mask}, and the report is about padding: pass texts of different lengths, or a mask with zeros at "
            "the padding"
        )
    if not batch.real.any():
        raise BatchError(
            f"the mask is zero at all {batch.real.size} positions: expected 1 at real positions and 0 at padding"
        )
    ids = np.unique(batch.ids[~batch.real])
    if len(ids) > 1:
        raise BatchError(
            f"the batch has {len(ids)} different ids at masked positions, {ids[:8].tolist()}: expected one, the id of padding"
        )
    return int(ids[0])


def _norm(result: EmbeddingGradients, where: np.ndarray) -> float:
    """Return the norm of the sum of the gradients at these positions, which is their share of the row's gradient."""
    return length(result.values[where].sum(0, np.float64))
