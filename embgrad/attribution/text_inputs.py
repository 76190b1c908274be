"""The further inputs of a batch that say something of its text, and whether the objective depends on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from embgrad.attribution.passes import Passes
from embgrad.common.tracebacks import errors_of_model
from embgrad.engine.encoder_decoders import further_text, with_decoder
from embgrad.engine.evaluate import evaluate_question
from embgrad.errors import UnsupportedError
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.decoder import IDS, LABELS, decoder_names
from embgrad.inputs.resized import expect_resizable_input, has_positions, is_copy_of_ids, with_numbers

__all__ = ["expect_no_copies", "has_decoder", "inputs_apart"]

#: What whole numbers are changed to, each to another one that is not higher than the highest, to see whether L depends on them.
CHANGES: Final[tuple[Callable[[np.ndarray], np.ndarray], ...]] = (
    lambda numbers: np.where(numbers > 0, numbers - 1, 1),
    lambda numbers: np.zeros_like(numbers) if numbers.any() else np.ones_like(numbers),
)


def has_decoder(passes: Passes) -> bool:
    """Return whether the model has a decoder with positions of its own."""
    return IDS in with_decoder(passes.bound, passes.batch).extras


def inputs_apart(passes: Passes, instead: str) -> frozenset[str]:
    """Return the further inputs that stay where tokens are inserted or deleted: those of another text, or without effect.

    Args:
        instead: what the message proposes where an input can neither stay nor follow.
    """
    batch = passes.batch
    apart = _of_decoder(passes)
    for name in batch.extras:
        if name not in apart:
            try:
                expect_resizable_input(batch, name, instead)
            except UnsupportedError:
                text = further_text(passes.bound, batch)
                is_other_text = text is not None and text.name == name
                if not is_other_text and (has_positions(batch, name) or _has_effect(passes, name, CHANGES)):
                    raise
                apart.add(name)
    return frozenset(apart)


def expect_no_copies(passes: Passes) -> None:
    """Refuse to replace tokens where L depends on a copy of the ids among the further inputs, such as labels."""
    batch = passes.batch
    copies = [name for name in batch.extras if is_copy_of_ids(batch, name)]
    for name in set(copies) - _of_decoder(passes) if copies else ():
        if _has_effect(passes, name, (_roll,)):
            raise UnsupportedError(
                f"the further input {name!r} holds the batch's ids, and whether it follows where a token is replaced is not "
                "known: leave it out, and make it from inputs['input_ids'] in call=lambda model, inputs: ..., or give other "
                "numbers if it stays"
            )


def _of_decoder(passes: Passes) -> set[str]:
    names = passes.batch.extras
    own = {name for name in names if name.startswith("decoder")} | set(decoder_names(names) or ())
    return own | {LABELS} if LABELS in names and has_decoder(passes) else own


def _roll(numbers: np.ndarray) -> np.ndarray:
    """Return ids each of which is replaced by another of them."""
    distinct = np.unique(numbers)
    return np.asarray(np.roll(distinct, 1)[np.searchsorted(distinct, numbers)])


def _has_effect(passes: Passes, name: str, changes: tuple[Callable[[np.ndarray], np.ndarray], ...]) -> bool:
    """Return whether L depends on an input of whole numbers, from passes with other numbers."""
    batch = passes.batch
    before = _objectives(passes, batch)
    try:
        for change in changes:
            with np.errstate(all="ignore"):  # a model of NumPy may divide by a length of zero
                after = _objectives(passes, with_numbers(batch, name, change))
            if not np.array_equal(after, before):
                return True
    except errors_of_model():  # the model does not take other numbers, and so reads them
        return True
    return False


def _objectives(passes: Passes, batch: TokenBatch) -> np.ndarray:
    # Whether L depends on an input is asked in evaluation mode, in which few models draw random numbers.
    question = replace(passes, training=False).forward_question(batch)
    return evaluate_question(question, None if passes.size >= len(batch) else passes.size)
