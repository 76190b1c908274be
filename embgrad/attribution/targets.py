"""The output tokens whose log-probabilities are attributed, and what they are compared with."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from embgrad.common.arrays import to_numpy, whole_numbers
from embgrad.errors import EmbgradError, EmbgradWarning, ObjectiveError, brief, level_of_user
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.encode import with_known_tokens
from embgrad.objectives.log_probability import LogProbability, ids_of_text
from embgrad.results.pieces import STARTS
from embgrad.results.spans import places_in_text

__all__ = ["NONE", "Targets", "ids_at", "pad_outputs", "targets_of"]

#: The position and the id of an output token that an example does not have.
NONE: Final = -1


@dataclass(frozen=True)
class Targets:
    """The outputs of each example: tokens, or spans of several tokens.

    Attributes:
        positions: the positions of the output tokens, int64, (example, output), `NONE` beyond an example's last output; with a
            span among them (example, output, token), `NONE` beyond an output's last token too.
        ids: their ids, likewise.
        contrast: the ids that they are compared with, int64, (example, output), or with several for an output (example, output,
            token); None where L is the log-probability itself.
    """

    positions: np.ndarray
    ids: np.ndarray
    contrast: np.ndarray | None

    @property
    def spans(self) -> np.ndarray:
        """The positions with an axis of tokens, (example, output, token)."""
        return _with_tokens(self.positions)

    @property
    def contrasts(self) -> np.ndarray:
        """The ids of the contrast with an axis of tokens, (example, output, token)."""
        assert self.contrast is not None
        return _with_tokens(self.contrast)

    @property
    def last(self) -> np.ndarray:
        """The position of each output's last token, (example, output), `NONE` where the example has no such output."""
        return np.asarray(self.spans.max(-1))

    @property
    def present(self) -> np.ndarray:
        """A bool array, (example, output): true where the example has such an output."""
        return np.asarray(self.last != NONE)

    @property
    def needs_continuations(self) -> bool:
        """Return whether an output and its contrast are not read from one row of logits, since one of them has several tokens."""
        return self.contrast is not None and max(self.positions.ndim, self.contrast.ndim) > 2

    def objectives(self, batch: TokenBatch) -> tuple[LogProbability, ...]:
        """Return for each column of outputs the log-probabilities of the examples' tokens there.

        They are compared with single tokens; continuations have objectives of their own.

        Args:
            batch: the ids in which the positions count.
        """
        made = []
        spans, ids = self.spans, _with_tokens(self.ids)
        for output in range(spans.shape[1]):
            examples, tokens = np.nonzero(spans[:, output] != NONE)
            positions = spans[examples, output, tokens]
            labels = np.full(batch.shape, -100)
            labels[examples, positions] = ids[examples, output, tokens]
            against = None
            if self.contrast is not None and not self.needs_continuations:
                against = np.full(batch.shape, -100)
                against[examples, positions] = self.contrast[examples, output]
            made.append(LogProbability(labels, against=against))
        return tuple(made)


def _with_tokens(array: np.ndarray) -> np.ndarray:
    return array if array.ndim == 3 else array[..., None]


def targets_of(targets: Any, contrast: Any, batch: TokenBatch, tokenizer: Any, start: int = 0) -> Targets:
    """Return the outputs that the arguments of `attribute_tokens` name.

    Args:
        batch: the ids in which the positions count, those of the decoder in an encoder-decoder.
        start: the first position that is an output where the user names none.
    """
    rows = []
    for example in range(len(batch)):
        real = np.flatnonzero(batch.real[example])
        preceded = real[1:][np.diff(real) == 1]
        found = _Example(targets, example, batch, real, preceded, preceded[preceded >= start], tokenizer)
        rows.append(found.outputs())
    if not any(rows):
        raise EmbgradError("no example has an output token: expected at least one real token after an example's first")
    positions = pad_outputs([[output.tolist() for output in row] for row in rows])
    ids = ids_at(batch.ids, positions)
    if contrast is None:
        return Targets(_single(positions), _single(ids), None)
    compared = _contrast(contrast, positions[..., 0], tokenizer)
    _warn_of_missing_space(contrast, compared[..., 0], positions[..., 0], batch, tokenizer)
    made = Targets(_single(positions), _single(ids), _single(compared))
    if made.needs_continuations:
        _expect_runs(positions)
    return made


def ids_at(ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return the ids, (example, position), at positions, (example, …), with `NONE` where there is no position."""
    at = np.maximum(positions, 0).reshape(len(ids), -1)
    return np.where(positions == NONE, NONE, np.take_along_axis(ids, at, 1).reshape(positions.shape))


def pad_outputs(rows: Sequence[Sequence[Sequence[int]]]) -> np.ndarray:
    """Return lists of outputs, each a list of numbers, as an array of (example, output, number), with `NONE` for missing ones."""
    shape = len(rows), max(map(len, rows)), max(len(output) for row in rows for output in row)
    array = np.full(shape, NONE, np.int64)
    for example, row in enumerate(rows):
        for number, output in enumerate(row):
            array[example, number, : len(output)] = output
    return array


def _single(array: np.ndarray) -> np.ndarray:
    """Return an array without its axis of tokens, where each output has a single token."""
    return array[..., 0] if array.shape[-1] == 1 else array


def _expect_runs(positions: np.ndarray) -> None:
    """Refuse outputs to be compared with continuations if they are not tokens one after the other."""
    apart = (np.diff(positions, axis=-1) != 1) & (positions[..., 1:] != NONE)
    if apart.any():
        example, output, _ = np.argwhere(apart)[0].tolist()
        row = positions[example, output]
        raise EmbgradError(
            f"the target at the positions {brief(row[row != NONE].tolist())} of example {example} has other tokens between its "
            "own, so that nothing can stand in its place: give a slice without a step, or omit contrast=..."
        )


@dataclass(frozen=True)
class _Example:
    """An example, and what names its outputs.

    Attributes:
        batch: the ids in which the positions count.
        preceded: those with a real token before them.
        default: those that are outputs where the user names none.
    """

    targets: Any
    example: int
    batch: TokenBatch
    real: np.ndarray
    preceded: np.ndarray
    default: np.ndarray
    tokenizer: Any

    def outputs(self) -> list[np.ndarray]:
        """Return the positions of each output."""
        row = self.targets
        nested = isinstance(row, (list, tuple)) and any(isinstance(entry, (list, tuple)) for entry in row)
        if nested:
            _expect_rows(len(row), self.batch, row)
            row = row[self.example]
        if row is None:
            return list(self.default[:, None])
        if isinstance(row, slice):
            return list(self._cut(row)[:, None])
        if isinstance(row, str):
            return [self._of_text(row)]
        if isinstance(row, (list, tuple)) and any(entry is None or isinstance(entry, (slice, str)) for entry in row):
            return [output for entry in row for output in self._of_entry(entry)]
        return list(self._of_numbers(row, nested)[:, None])

    def _of_entry(self, entry: Any) -> Iterator[np.ndarray]:
        """Yield the output that an entry of a list names; none where it is None, and the example has no outputs."""
        if isinstance(entry, str):
            yield self._of_text(entry)
        elif isinstance(entry, slice):
            span = np.sort(self._cut(entry))
            if not span.size:
                raise EmbgradError(
                    f"the target {entry} has no token of example {self.example} with a real token before it: expected a slice of "
                    f"its {len(self.real)} real tokens"
                )
            yield span
        elif entry is None:
            yield from [self.default] * bool(self.default.size)
        else:
            yield self._of_numbers(entry, True)[:1]

    def _cut(self, entry: slice) -> np.ndarray:
        try:
            chosen = self.real[entry]
        except (TypeError, ValueError) as error:
            raise EmbgradError(
                f"targets is {entry}: expected a slice of whole numbers, with a step that is not 0, of an example's real tokens"
            ) from error
        return np.asarray(chosen[np.isin(chosen, self.preceded)])

    def _of_numbers(self, row: Any, nested: bool) -> np.ndarray:
        """Return the positions of outputs, of which each is one of the positions that have a real token before them."""
        try:
            array = whole_numbers(to_numpy(row))
        except ValueError:
            array = None
        if array is not None and array.ndim == 2 and not nested:
            _expect_rows(len(array), self.batch, self.targets)
            array = array[self.example]
        if array is None or array.ndim > 1:
            raise EmbgradError(
                f"targets is {brief(self.targets)}: expected positions, slices or texts, a list of them for each example, or "
                "None for every real token after the first"
            )
        wanted = np.atleast_1d(array)
        end = self.real[-1] + 1 if len(self.real) else 0
        positions = np.where(wanted < 0, end + wanted, wanted)
        for position, given in zip(positions.tolist(), wanted.tolist(), strict=True):
            if position not in self.preceded:
                raise EmbgradError(
                    f"the target {given} of example {self.example} is not a token with a real token before it: expected one of "
                    f"{brief(self.preceded.tolist())}, or a negative number, which counts back from the last"
                )
        return np.asarray(positions)

    def _of_text(self, text: str) -> np.ndarray:
        """Return the positions of the tokens that stand for a text."""
        places = [
            place
            for place in places_of_text(text, self.example, self.batch, self.tokenizer)
            if place[0] in self.preceded
        ]
        if len(places) != 1:
            found = "does not have as whole tokens after its first"
            if places:
                found = f"has at the positions {brief([int(place[0]) for place in places])}"
            raise EmbgradError(
                f"the target {brief(text)} is a text that example {self.example} {found}: expected a text that is there once. "
                "Give slice(start, stop) in a list, which counts an example's real tokens"
            )
        return places[0]


def places_of_text(text: str, example: int, batch: TokenBatch, tokenizer: Any) -> list[np.ndarray]:
    """Return the positions of the tokens that stand for a text, at each of its places in an example."""
    wanted = text.strip()
    if not wanted:
        raise EmbgradError(f"the text {brief(text)} has no characters but white space: expected those of some tokens")
    real = np.flatnonzero(batch.real[example])
    if batch.texts is not None and batch.offsets is not None and batch.parts is not None:
        return places_in_text(wanted, batch.texts[example], batch.offsets[example], batch.parts[example], real)
    if tokenizer is None:
        raise EmbgradError(
            f"the text {brief(text)} names tokens of a batch of ids, and there is no tokenizer: give tokenizer=..., or positions"
        )
    runs: dict[int, np.ndarray] = {}
    for spelled in (text, wanted, f" {wanted}"):  # with the space before it, where the tokens have it
        ids = ids_of_text(spelled, tokenizer)
        for start in range(len(real) - len(ids) + 1):
            if batch.ids[example, real[start : start + len(ids)]].tolist() == ids:
                runs.setdefault(int(real[start]), real[start : start + len(ids)])
    return list(runs.values())


def _expect_rows(count: int, batch: TokenBatch, targets: Any) -> None:
    if count != len(batch):
        raise EmbgradError(f"targets is {brief(targets)}: expected {len(batch)} rows, one for each example")


def _contrast(contrast: Any, positions: np.ndarray, tokenizer: Any) -> np.ndarray:
    """Return the ids that the outputs are compared with, (example, output, token).

    Args:
        positions: the first position of each output, (example, output), `NONE` where there is none.
    """
    continuations = _continuations(contrast, tokenizer)
    try:
        grid = np.broadcast_to(continuations, positions.shape)
    except ValueError:
        raise EmbgradError(
            f"contrast has the shape {continuations.shape}: expected one id or text, or one for each output token, (example, "
            f"output) = {positions.shape}"
        ) from None
    return pad_outputs(
        [
            [ids if position != NONE else () for ids, position in zip(row, at, strict=True)]
            for row, at in zip(grid.tolist(), positions.tolist(), strict=True)
        ]
    )


def _warn_of_missing_space(
    contrast: Any, ids: np.ndarray, positions: np.ndarray, batch: TokenBatch, tokenizer: Any
) -> None:
    """Warn of a text without the space that the output in whose place it stands begins with: the tokens are others then.

    Args:
        ids: the first id of each contrast, (example, output).
        positions: the first position of each output, likewise, `NONE` where there is none.
        batch: the ids in which the positions count.
    """
    texts = _rectangle(contrast, lambda entry: isinstance(entry, str))
    if texts is None or batch.tokens is None:
        return
    grid = np.broadcast_to(texts, positions.shape)
    named = with_known_tokens(TokenBatch(np.where(positions == NONE, ids.max(), ids)), tokenizer).tokens
    if named is None:
        return
    for example, output in np.argwhere(positions != NONE).tolist():
        text, token = grid[example, output], batch.tokens[example][positions[example, output]]
        if text[0].isalnum() and token.startswith(STARTS) and not named[example][output].startswith(STARTS):
            warnings.warn(
                f"the contrast {text!r} begins without the space of {token!r}, in whose place it stands, so that its tokens are "
                f"those of the end of a word. Give {' ' + text!r} for the word",
                EmbgradWarning,
                stacklevel=level_of_user() + 1,
            )
            return


def _continuations(contrast: Any, tokenizer: Any) -> np.ndarray:
    """Return an array of tuples of ids, (), (output,) or (example, output)."""
    texts = _rectangle(contrast, lambda entry: isinstance(entry, str))
    if texts is not None:
        return _objects([_ids_of(text, contrast, tokenizer) for text in texts.ravel().tolist()], texts.shape)
    try:
        array = whole_numbers(to_numpy(contrast))
    except ValueError:
        array = None
    if array is not None and array.ndim < 3 and not (array.size and array.min() < 0):
        return _objects([(id_,) for id_ in array.ravel().tolist()], array.shape)
    rows = _rectangle(contrast if array is None else array.tolist(), _are_ids)
    if rows is None or rows.ndim != 2:
        raise EmbgradError(
            f"contrast is {brief(contrast)}: expected an id or a text, one for each output token, (output,) or (example, output)"
            "; or ids of continuations, (example, output, token)"
        )
    return rows


def _are_ids(entry: Any) -> bool:
    return isinstance(entry, (list, tuple)) and bool(entry) and all(type(id_) is int and id_ >= 0 for id_ in entry)


def _rectangle(value: Any, is_leaf: Callable[[Any], bool]) -> np.ndarray | None:
    """Return nested lists as an array of their leaves of at most two axes; None where they are not a rectangle of leaves."""
    if is_leaf(value):
        return _objects([value], ())
    rows = value if isinstance(value, (list, tuple)) else ()
    if rows and all(map(is_leaf, rows)):
        return _objects(rows, (len(rows),))
    lengths = {len(row) if isinstance(row, (list, tuple)) and all(map(is_leaf, row)) else 0 for row in rows}
    if len(lengths) != 1 or 0 in lengths:
        return None
    return _objects([leaf for row in rows for leaf in row], (len(rows), *lengths))


def _objects(leaves: Sequence[Any], shape: tuple[int, ...]) -> np.ndarray:
    array = np.empty(len(leaves), object)
    for number, leaf in enumerate(leaves):
        array[number] = leaf
    return array.reshape(shape)


def _ids_of(text: str, contrast: Any, tokenizer: Any) -> tuple[int, ...]:
    if tokenizer is None:
        raise EmbgradError(f"contrast is {brief(contrast)}, and there is no tokenizer: give tokenizer=..., or ids")
    try:
        return tuple(ids_of_text(text, tokenizer))
    except ObjectiveError as error:
        raise EmbgradError(
            f"contrast is {brief(contrast)}, which has no tokens but special ones: expected a text of some tokens, or ids"
        ) from error
