"""The objectives of a batch from which tokens are removed: deleted, so that texts are shorter, or replaced."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from embgrad.attribution.baselines import NAMES, absent_positions, baseline_values
from embgrad.attribution.passes import Passes, Rows, size_of_pass
from embgrad.attribution.text_inputs import has_decoder, inputs_apart
from embgrad.common.options import expect_flag
from embgrad.engine.company import Company
from embgrad.engine.evaluate import evaluate_question
from embgrad.engine.run import run_located
from embgrad.errors import EmbgradError, ObjectiveError, UnsupportedError, brief, did_you_mean
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.resized import resize
from embgrad.objectives.native import NativeObjective
from embgrad.objectives.objective import SCORES
from embgrad.objectives.objectives import Objective, Sum
from embgrad.objectives.selection import resolve_positions

__all__ = ["DELETE", "Removal", "columns_read", "expect_deletable", "removal_of"]

#: The way to remove tokens that makes texts shorter.
DELETE: Final = "delete"

#: What a message proposes where tokens cannot be deleted.
INSTEAD: Final = "give remove='mask', 'pad' or 'zero', which keep the text's length"


def _check_removal(remove: Any) -> str | int:
    """Return the way in which tokens are removed: "delete", "pad", "mask", "zero", or the id that replaces them."""
    known = (DELETE, *NAMES)
    if isinstance(remove, str) and remove in known:
        return remove
    if isinstance(remove, (int, np.integer)) and not isinstance(remove, bool) and remove >= 0:
        return int(remove)
    raise EmbgradError(
        f"remove is {brief(remove)}: expected 'delete', 'pad', 'mask', 'zero', or the id that replaces tokens."
        f"{did_you_mean(str(remove), known)}"
    )


def removal_of(passes: Passes, remove: Any, keep_special: bool, tokenizer: Any) -> Removal:
    """Return a `Removal`, after one pass on the unchanged batch, which raises for unsupported inputs."""
    removal = Removal(passes, _check_removal(remove), keep_special, tokenizer)
    expect_flag(keep_special, "keep_special")
    _ = removal.removable
    if removal.remove == DELETE:
        size = None if passes.size >= len(passes.batch) else passes.size
        evaluate_question(passes.forward_question(passes.batch, quiet=False), size)
    else:
        _ = passes.inputs
    return removal


@dataclass(frozen=True)
class Removal:
    """A way to remove tokens from the examples of a batch, and the objectives without them.

    Attributes:
        tokenizer: knows the ids of special tokens, of the padding and of the mask; None where there is none.
    """

    passes: Passes
    remove: str | int
    keep_special: bool
    tokenizer: Any

    @cached_property
    def removable(self) -> np.ndarray:
        """The positions whose tokens can be removed, bool, (example, position).

        Padding cannot; special tokens cannot with `keep_special`; a token at whose position an objective reads the output cannot
        be deleted.
        """
        removable = absent_positions(self.passes, self.tokenizer, self.keep_special)
        if self.remove != DELETE:
            return removable
        _ = self._apart
        columns = columns_read(self.passes)
        if columns is not None:
            removable[np.flatnonzero(columns >= 0), columns[columns >= 0]] = False
        return removable

    @cached_property
    def _apart(self) -> frozenset[str]:
        return expect_deletable(self.passes)

    def key(self, example: int, stays: np.ndarray) -> bytes:
        """Return bytes that two texts of an example share if the model cannot tell them apart, as without one of two equal words.

        Args:
            stays: the positions that stay, bool, (position,).
        """
        if self.remove != DELETE:
            return stays.tobytes()
        batch, columns = self.passes.batch, columns_read(self.passes)
        parts = [batch.ids[example, stays], *(() if batch.types is None else [batch.types[example, stays]])]
        if columns is not None:
            parts.append(np.array([stays[: max(0, int(columns[example]))].sum()]))
        return np.concatenate(parts).astype(np.int64).tobytes()

    def objectives(self, kept: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the objectives of each example with some of its tokens removed.

        Args:
            kept: for each example the positions that stay, bool, (variant, position).

        Returns:
            For each example float64, (variant,).
        """
        return self._delete(kept) if self.remove == DELETE else self._replace(kept)

    def _replace(self, kept: Sequence[np.ndarray]) -> list[np.ndarray]:
        inputs = self.passes.inputs
        absent = baseline_values(self.passes, self.remove, self.tokenizer, self.keep_special)
        most, count = max(map(len, kept)), len(kept)
        present = np.ones((most, *self.removable.shape), bool)
        for example, rows in enumerate(kept):
            present[: len(rows), example] = rows | ~self.removable[example]
        stays = present.reshape(-1, present.shape[-1], 1)

        def values(start: int, end: int) -> np.ndarray:
            examples = np.arange(start, end) % count
            return np.where(stays[start:end], inputs[examples], absent[examples])

        objectives = self.passes.objectives(Rows(most, values)).reshape(most, count)
        return [objectives[: len(rows), example] for example, rows in enumerate(kept)]

    def _delete(self, kept: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Run texts of equal length together, so that no padding is added, which not every model ignores."""
        counts = np.array([len(rows) for rows in kept])
        examples, rows = np.repeat(np.arange(len(kept)), counts), np.concatenate(list(kept))
        lengths = rows.sum(1)
        if not lengths.all():
            raise UnsupportedError(
                f"no token of example {examples[lengths.argmin()]} stays where all that can be removed are, and a model takes no "
                f"empty text: {INSTEAD}, or add a special token to the text"
            )
        company = replace(self.passes, quiet=True).company
        _expect_free(company, len(counts))
        objectives = np.empty(len(rows))
        for length in np.unique(lengths):
            same = np.flatnonzero(lengths == length)
            size = 1 if company is Company.WHOLE else size_of_pass(self.passes.batch_size, int(length))
            for start in range(0, len(same), size):
                piece = same[start : start + size]
                objectives[piece] = self._of_shorter(examples[piece], rows[piece])
        return np.split(objectives, counts.cumsum()[:-1])

    @cached_property
    def _width(self) -> int | None:
        """The number of entries in a row of the output; None for a sum, which may have any, and is over real positions."""
        passes = self.passes
        assert isinstance(passes.objective, Objective), "a function as objective is refused before"
        if isinstance(passes.objective, Sum):
            return None
        some = slice(0, min(passes.size, len(passes.batch)))
        objective = passes.objective.take(some, len(passes.batch))
        run, _ = run_located(passes.forward_question(passes.batch[some], objective))
        shape = run.objectives[0].shape
        return shape[-1] if shape else None

    def _of_shorter(self, examples: np.ndarray, kept: np.ndarray) -> np.ndarray:
        """Return the objectives of examples of which equally many tokens are kept, (row,)."""
        passes = self.passes
        assert isinstance(passes.objective, Objective), "a function as objective is refused before"
        objective = passes.objective.take(examples, len(passes.batch))
        objective.width = self._width
        columns = columns_read(passes)
        if columns is not None:
            before = np.arange(kept.shape[1]) < columns[examples, None]
            moved = np.where(columns[examples] < 0, columns[examples], (kept & before).sum(1))
            objective.position = moved
        try:
            return evaluate_question(
                passes.forward_question(_shorter(passes.batch, examples, kept, self._apart), objective)
            )
        except ObjectiveError as error:
            numbers = sorted(set(examples.tolist()))
            raise ObjectiveError(
                f"with tokens deleted from the examples {brief(numbers)}, numbered in the pass: {error.message}"
            ) from error
        except EmbgradError:
            raise
        except Exception as error:
            raise UnsupportedError(
                f"the model takes {kept.shape[1]} positions, and raised {type(error).__name__} for {len(examples)} texts of "
                f"{int(kept[0].sum())}, from which tokens were deleted: {INSTEAD}"
            ) from error


def _shorter(batch: TokenBatch, examples: np.ndarray, kept: np.ndarray, apart: Collection[str]) -> TokenBatch:
    """Return the batch of these examples with the kept positions alone, equally many for each."""
    columns = np.nonzero(kept)[1].reshape(len(kept), -1)

    def cut(array: np.ndarray) -> np.ndarray:
        return np.take_along_axis(array[examples], columns, 1)

    types = None if batch.types is None else cut(batch.types)
    return resize(batch, examples, cut(batch.ids), np.ones(columns.shape, bool), types, INSTEAD, apart)


def columns_read(passes: Passes) -> np.ndarray | None:
    """Return the column at which the objective reads each example, (example,); None where it reads no columns of the text.

    Negative ones count back from the last position that stays.
    """
    position = passes.objective.position if isinstance(passes.objective, Objective) else None
    if position is None or not _reads_text(passes):
        return None
    resolve_positions(np.asarray(position), passes.batch)  # it refuses a position outside the text
    return np.broadcast_to(position, (len(passes.batch),))


def _reads_text(passes: Passes) -> bool:
    """Return whether positions of the objective are those of the text, not of an encoder-decoder's decoder."""
    output = getattr(passes.objective, "output", None)
    return not has_decoder(passes) or (output is not None and output.startswith("encoder"))


def _expect_free(company: Company, count: int) -> None:
    """Refuse to run examples without the batch's others where their objectives are then others."""
    if company in (Company.WHOLE, Company.HELD) and count > 1:
        raise UnsupportedError(
            f"the objective of an example depends on the other {count - 1} of the batch, or on their number, and texts "
            f"of different lengths are run apart: {INSTEAD}, or pass one example at a time"
        )


def expect_deletable(passes: Passes, instead: str = INSTEAD) -> frozenset[str]:
    """Refuse to delete or insert tokens where something has an entry for each position and would have to follow.

    Returns:
        The names of the further inputs that stay as they are, see `inputs_apart`.
    """
    if isinstance(passes.objective, NativeObjective):
        raise UnsupportedError(
            "the objective is a function, which may know the whole batch in order, and texts of different lengths are run apart: "
            f"{instead}, or give an embgrad objective, such as embgrad.Probability(label)"
        )
    labels = getattr(passes.objective, "labels", None)
    follows = getattr(passes.objective, "at_end", False)  # labels of a continuation, wherever it is
    if isinstance(labels, np.ndarray) and labels.ndim == 2 and not follows and _reads_text(passes):
        raise UnsupportedError(
            f"the objective has a label for each position, {labels.shape}, which would have to follow the tokens: {instead}"
        )
    if passes.objective.output in SCORES and not isinstance(passes.objective, Sum) and _reads_text(passes):
        raise UnsupportedError(
            f"the objective chooses positions of {passes.objective.output!r}, which would have to follow the tokens: {instead}"
        )
    return inputs_apart(passes, instead)
