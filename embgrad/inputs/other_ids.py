"""A batch with other ids, for a pass that shows what follows them."""

from __future__ import annotations

import numpy as np

from embgrad.inputs.batch import TokenBatch

__all__ = ["with_other_ids"]


def with_other_ids(batch: TokenBatch, rows: int) -> TokenBatch | None:
    """Return the batch with every id changed to another valid id; None where there is no other."""
    distinct = np.unique(batch.ids)
    if len(distinct) == 1:
        others = [row for row in range(rows) if row != distinct[0]][:1]
        return batch.replace(ids=np.full_like(batch.ids, others[0]), tokens=None) if others else None
    changed = np.roll(distinct, -1)[np.searchsorted(distinct, batch.ids)]
    return batch.replace(ids=changed, tokens=None)
