"""Tells which lookup or call of the forward pass it is that a checkpointed segment makes again in the backward pass."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from embgrad.errors import UnsupportedError

__all__ = ["Made", "made_again"]


class Made(NamedTuple):
    """A lookup, or a side of a module's call, as the forward pass came by it.

    Attributes:
        key: of the point, where it is asked for.
        traced: whether gradients were on. They are off in a segment of the older, reentrant kind of checkpointing, whose
            gradients come from the second time; else the second time gives the backward pass its values alone.
    """

    key: str | None
    traced: bool


def made_again(what: str, made: Sequence[Made], changed: Collection[str], *, seen: int) -> str | None:
    """The key of the one that is made again; None where it is not asked for.

    Args:
        what: what is made again, for the message.
        made: those of the forward pass that had the same inputs.
        changed: the keys of points whose values are changed.
        seen: how many the forward pass made in all, whatever their inputs were.

    Raises:
        UnsupportedError: it may be several, and it matters which; or the segment does something else than the first time.
    """
    if seen and not made:
        raise UnsupportedError(
            f"a checkpointed segment makes a {what} in the backward pass with other inputs than the forward pass did: expected a "
            "segment that does the same each time; run the model without gradient checkpointing"
        )
    asked = [one for one in made if one.key is not None]
    if not asked:
        return None
    if len(made) == 1 or (all(one.traced for one in made) and not any(one.key in changed for one in asked)):
        return asked[0].key
    raise UnsupportedError(
        f"a checkpointed segment makes a {what} again in the backward pass, and the forward pass made {len(made)} such with "
        f"the same inputs, so that {asked[0].key!r} cannot be told among them: expected different inputs; run the model without "
        "gradient checkpointing (model.gradient_checkpointing_disable() in transformers)"
    )
