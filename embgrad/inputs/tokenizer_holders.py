"""Read the tokenizer and length limit of objects that hold a tokenizer: pipelines, sentence encoders, cross-encoders."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["own_length", "own_tokenizer"]

#: Attributes that hold the number of tokens to which an object cuts its texts.
LENGTHS: Final = ("max_seq_length", "max_length")


def own_tokenizer(holder: Any) -> Any:
    """Return the object's attribute `tokenizer`; None where it has none."""
    return getattr(holder, "tokenizer", None)


def own_length(holder: Any) -> int | None:
    """Return the number of tokens to which the object cuts its texts; None where it does not cut them."""
    lengths = (getattr(holder, name, None) for name in LENGTHS)
    return next(
        (length for length in lengths if isinstance(length, int) and not isinstance(length, bool) and length > 0), None
    )
