"""Objects that hold a tokenizer beside a model: pipelines, sentence encoders, cross-encoders."""

from __future__ import annotations

from typing import Any, Final

__all__ = ["own_length", "own_tokenizer"]

#: Attributes that say at how many tokens an object cuts its texts off.
LENGTHS: Final = ("max_seq_length", "max_length")


def own_tokenizer(holder: Any) -> Any:
    """Return the object's own tokenizer, which is its attribute of that name; None where it has none."""
    return getattr(holder, "tokenizer", None)


def own_length(holder: Any) -> int | None:
    """Return the number of tokens at which the object cuts its texts off; None where it does not."""
    lengths = (getattr(holder, name, None) for name in LENGTHS)
    return next((one for one in lengths if isinstance(one, int) and not isinstance(one, bool) and one > 0), None)
