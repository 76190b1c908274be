"""The output tokens whose log-probabilities are attributed, and the ids that they are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from embgrad.common.arrays import to_numpy, whole_numbers
from embgrad.errors import EmbgradError, ObjectiveError, brief
from embgrad.inputs.batch import TokenBatch
from embgrad.objectives.log_probability import LogProbability, ids_of_text

__all__ = ["NONE", "Targets", "targets_of"]

#: The position and the id of an output token that an example does not have.
NONE: Final = -1


@dataclass(frozen=True)
class Targets:
    """The output tokens of each example.

    Attributes:
        positions: the positions of the output tokens, int64, (example, output), `NONE` beyond an example's last.
        ids: their ids, likewise.
        contrast: the ids that they are compared with, likewise; None where L is the log-probability itself.
    """

    positions: np.ndarray
    ids: np.ndarray
    contrast: np.ndarray | None

    @property
    def present(self) -> np.ndarray:
        """A bool array, (example, output): true where the example has such an output."""
        return np.asarray(self.positions != NONE)

    def objectives(self, batch: TokenBatch) -> tuple[LogProbability, ...]:
        """Return for each column of outputs the log-probabilities of the examples' tokens there.

        Args:
            batch: the ids in which the positions count.
        """
        made = []
        for output in range(self.positions.shape[1]):
            examples = np.flatnonzero(self.present[:, output])
            positions = self.positions[examples, output]
            labels = np.full(batch.shape, -100)
            labels[examples, positions] = self.ids[examples, output]
            against = None
            if self.contrast is not None:
                against = np.full(batch.shape, -100)
                against[examples, positions] = self.contrast[examples, output]
            made.append(LogProbability(labels, against=against))
        return tuple(made)


def targets_of(targets: Any, contrast: Any, batch: TokenBatch, tokenizer: Any, start: int = 0) -> Targets:
    """Return the output tokens that the arguments of `attribute_tokens` name.

    Args:
        targets: see `attribute_tokens`; so is `contrast`.
        batch: the ids in which the positions count, those of the decoder in an encoder-decoder.
        tokenizer: makes ids of texts; None where there is none.
        start: the first position that is an output where the user names none.

    Raises:
        EmbgradError: a position is outside the batch, is padding, or has no real token before it; or there is none at all.
    """
    rows = []
    for example in range(len(batch)):
        real = np.flatnonzero(batch.real[example])
        preceded = real[1:][np.diff(real) == 1]
        rows.append(
            preceded[preceded >= start] if targets is None else _of_example(targets, example, batch, real, preceded)
        )
    most = max(map(len, rows))
    if not most:
        raise EmbgradError("no example has an output token: expected at least one real token after an example's first")
    positions = np.full((len(batch), most), NONE)
    for example, row in enumerate(rows):
        positions[example, : len(row)] = row
    ids = np.where(positions == NONE, NONE, np.take_along_axis(batch.ids, np.maximum(positions, 0), 1))
    return Targets(positions, ids, None if contrast is None else _contrast(contrast, positions, tokenizer))


def _of_example(targets: Any, example: int, batch: TokenBatch, real: np.ndarray, preceded: np.ndarray) -> np.ndarray:
    """Return the output positions of one example, of which each is one of the positions that have a real token before them."""
    if isinstance(targets, slice):
        try:
            chosen = real[targets]
        except (TypeError, ValueError) as error:
            raise EmbgradError(
                f"targets is {targets}: expected a slice of whole numbers, with a step that is not 0, of an example's real tokens"
            ) from error
        return np.asarray(chosen[np.isin(chosen, preceded)])
    row = targets
    nested = isinstance(targets, (list, tuple)) and any(isinstance(entry, (list, tuple)) for entry in targets)
    if nested:
        _expect_rows(len(targets), batch, targets)
        row = targets[example]
    try:
        array = whole_numbers(to_numpy(row))
    except ValueError:
        array = None
    if array is not None and array.ndim == 2 and not nested:
        _expect_rows(len(array), batch, targets)
        array = array[example]
    if array is None or array.ndim > 1:
        raise EmbgradError(
            f"targets is {brief(targets)}: expected positions, a list of them for each example, a slice of an example's real "
            "tokens, or None for every real token after the first"
        )
    wanted = np.atleast_1d(array)
    positions = np.where(wanted < 0, (real[-1] + 1 if len(real) else 0) + wanted, wanted)
    for position, given in zip(positions.tolist(), wanted.tolist(), strict=True):
        if position not in preceded:
            raise EmbgradError(
                f"the target {given} of example {example} is not a token with a real token before it: expected one of "
                f"{brief(preceded.tolist())}, or a negative number, which counts back from the last"
            )
    return np.asarray(positions)


def _expect_rows(count: int, batch: TokenBatch, targets: Any) -> None:
    if count != len(batch):
        raise EmbgradError(f"targets is {brief(targets)}: expected {len(batch)} rows, one for each example")


def _contrast(contrast: Any, positions: np.ndarray, tokenizer: Any) -> np.ndarray:
    """Return the ids that the output tokens are compared with, (example, output)."""
    texts = isinstance(contrast, str) or (
        isinstance(contrast, Sequence) and bool(contrast) and all(isinstance(entry, str) for entry in contrast)
    )
    value = _ids_of_texts(contrast, tokenizer) if texts else contrast
    try:
        array = whole_numbers(to_numpy(value))
    except ValueError:
        array = None
    if array is None or array.ndim > 2 or (array.size and array.min() < 0):
        raise EmbgradError(
            f"contrast is {brief(contrast)}: expected an id or a token's text, one for each output token, or ids of shape "
            "(example, output)"
        )
    try:
        ids = np.broadcast_to(array, positions.shape)
    except ValueError:
        raise EmbgradError(
            f"contrast has the shape {array.shape}: expected one id, or one for each output token, (example, output) = "
            f"{positions.shape}"
        ) from None
    return np.where(positions == NONE, NONE, ids)


def _ids_of_texts(contrast: Any, tokenizer: Any) -> list[int] | int:
    texts = [contrast] if isinstance(contrast, str) else list(contrast)
    if tokenizer is None:
        raise EmbgradError(f"contrast is {brief(contrast)}, and there is no tokenizer: give tokenizer=..., or ids")
    try:
        ids = [ids_of_text(text, tokenizer) for text in texts]
    except ObjectiveError as error:
        raise EmbgradError(
            f"contrast is {brief(contrast)}, which has no tokens but special ones: expected the text of one token, or its id"
        ) from error
    for text, row in zip(texts, ids, strict=True):
        if len(row) != 1:
            raise EmbgradError(
                f"contrast {text!r} has {len(row)} tokens, {brief(row)}: expected a text of a single token, "
                "with the space before "
                "it where the tokens have it"
            )
    return ids[0][0] if isinstance(contrast, str) else [row[0] for row in ids]
