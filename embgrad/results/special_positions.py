"""The positions of special tokens, such as "[CLS]", by all that is known of a batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.special_tokens import special_ids
from embgrad.results.words import is_special

__all__ = ["special_positions"]


def special_positions(batch: TokenBatch, tokenizer: Any) -> np.ndarray | None:
    """Return where special tokens stand, bool, shape (example, position); None where nothing shows which tokens are special.

    Args:
        batch: shows it by its offsets, since special tokens stand for no characters of the text, or else by its tokens.
        tokenizer: shows it by its ids of special tokens where there are no offsets; None where there is none.
    """
    if batch.parts is not None:
        return np.asarray(batch.parts < 0)
    ids = special_ids(tokenizer)
    if ids is not None:
        return np.asarray(np.isin(batch.ids, ids))
    if batch.tokens is None:
        return None
    examples, positions = batch.shape
    return np.array(
        [[is_special(batch, example, position) for position in range(positions)] for example in range(examples)]
    )
