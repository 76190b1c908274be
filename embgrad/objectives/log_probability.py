"""The log-probability of tokens under a language model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from embgrad.common.options import expect_flag
from embgrad.errors import ObjectiveError, brief
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.checks import IGNORED
from embgrad.inputs.encode import encode_examples
from embgrad.inputs.special_tokens import special_ids
from embgrad.objectives.objective import Objective
from embgrad.objectives.probabilities import refuse_probabilities, surprisals
from embgrad.objectives.selection import (
    Rows,
    choose_entries,
    entries,
    expect_inside,
    expect_one_per_example,
    one_hot,
    whole,
)

__all__ = ["LogProbability", "ids_of_text"]


class LogProbability(Objective):
    """The log-probability of tokens, the sum over an example's labels, in nats.

    With `shift`, as for causal language models, the label at a position is predicted by the logits at the position before. The
    first real token of an example has none before it and does not count, so that `LogProbability(batch.ids)` is the
    log-probability of the texts. Without `shift` the logits at the label's own position predict it, as in masked language models,
    and in encoder-decoders whose labels are those of training.

    Args:
        labels: ids of shape (example, position), where -100 and padding are ignored; in an encoder-decoder of the decoder's
            positions. With `position`, or where the output has one row for each example, one id for all examples or one for each,
            shape (example,).
        shift: see above.
        against: ids of the same shape: L is the difference of the label's log-probability and that of this id, so how much more
            likely the label is. Yin and Neubig, "Interpreting language models with contrastive explanations", 2022.
        output: see `Objective`.
        position: the position of the one label that counts, see `Objective`.

    Raises:
        ObjectiveError: see `Objective`; or the labels do not fit the output, or it holds probabilities.
    """

    def __init__(
        self,
        labels: Any,
        shift: bool = True,
        against: Any = None,
        *,
        output: str | None = None,
        position: Any = None,
    ) -> None:
        super().__init__(output=output, position=position)
        expect_flag(shift, "shift")
        self.labels = whole(labels, "labels")
        self.shift = shift
        self.against = None if against is None else whole(against, "against")
        self.at_end = False
        self._special: frozenset[int] = frozenset()
        if self.against is not None and self.against.shape != self.labels.shape:
            raise ObjectiveError(
                f"against has shape {self.against.shape}: expected that of the labels, {self.labels.shape}"
            )

    @classmethod
    def of(cls, text: str | Sequence[str], tokenizer: Any, *, output: str | None = None) -> LogProbability:
        """Return the log-probability of a text at the end of each example, such as " a great film" after a prompt.

        The batch holds the prompts with their continuations, `embgrad.encode([prompt + text for prompt in prompts], tokenizer)`.
        Special tokens after the continuation do not count.

        Args:
            text: the continuation, with the white space before it, for all examples, or one for each.
            tokenizer: the tokenizer that encoded the batch.
            output: see `Objective`.

        Raises:
            ObjectiveError: there is no text, or it has no tokens; or, when it is evaluated, an example does not end with the
                text's tokens, or the output is not per position.
        """
        texts = [text] if isinstance(text, str) else list(text) if isinstance(text, Sequence) else []
        if not texts or not all(isinstance(entry, str) for entry in texts):
            raise ObjectiveError(f"text is {brief(text)}: expected the continuation, or a list of one for each example")
        rows = [ids_of_text(entry, tokenizer) for entry in texts]
        longest = max(map(len, rows))
        padded = np.array([row + [IGNORED] * (longest - len(row)) for row in rows])
        made = cls(padded[0] if isinstance(text, str) else padded, output=output)
        made.at_end, made._special = True, _special(tokenizer)
        return made

    def _argument_names(self) -> tuple[str, ...]:
        return ("labels", "shift", "against", *super()._argument_names())

    def describe(self) -> dict[str, Any]:
        """Return the class name and the arguments as JSON-compatible values; those made by `of` say so by `at_end`."""
        return {**super().describe(), **({"at_end": True} if self.at_end else {})}

    def _cut(self, name: str, examples: slice | np.ndarray, count: int) -> Any:
        is_shared = self.at_end and name == "labels" and self.labels.ndim == 1
        return self.labels if is_shared else super()._cut(name, examples, count)

    def _places(self, shape: tuple[int, ...], batch: TokenBatch) -> tuple[np.ndarray, np.ndarray]:
        before = int(self.shift)
        if self.at_end:
            examples, positions = self._ends(batch)
        elif (self.position is None or self.labels.ndim > 1) and self.labels.shape != batch.shape:
            raise ObjectiveError(
                f"labels have shape {self.labels.shape} and the output is per position, {shape}: expected labels of shape "
                f"{batch.shape} (-100 ignores a position), or position=... and one label for each example"
            )
        elif self.position is not None:
            examples, positions = super()._places(shape, batch)
        else:
            examples, positions = np.nonzero(batch.real & (self.labels != IGNORED))
        preceded = positions >= before
        preceded[preceded] = batch.real[examples[preceded], positions[preceded] - before]
        if (self.at_end or self.position is not None) and not preceded.all():
            missing = int(np.flatnonzero(~preceded)[0])
            raise ObjectiveError(
                f"the label of example {examples[missing]} is at position {positions[missing]}, and no real token before it "
                "predicts it: expected a later position, or shift=False for a model that is not causal"
            )
        return examples[preceded], positions[preceded] - before

    def targets(self, batch: TokenBatch) -> np.ndarray:
        """Return the positions whose tokens have a label, bool, shape (example, position); none where labels have no positions.

        Raises:
            ObjectiveError: an example does not end with the tokens of the text.
        """
        result = np.zeros(batch.shape, bool)
        if self.at_end:
            result[self._ends(batch)] = True
        elif self.labels.shape == batch.shape:
            result |= self.labels != IGNORED
        return result

    def _ends(self, batch: TokenBatch) -> tuple[np.ndarray, np.ndarray]:
        """Return the examples and positions of the continuations."""
        if self.labels.ndim == 2:
            expect_one_per_example(self.labels, len(batch), "text")
        rows = np.broadcast_to(self.labels, (len(batch), self.labels.shape[-1]))
        examples: list[int] = []
        positions: list[int] = []
        for example, row in enumerate(rows):
            wanted = row[row != IGNORED]
            real = np.flatnonzero(batch.real[example])
            while len(real) and int(batch.ids[example, real[-1]]) in self._special:
                real = real[:-1]
            end = real[-len(wanted) :]
            if not np.array_equal(batch.ids[example, end], wanted):
                raise ObjectiveError(
                    f"example {example} ends with the ids {brief(batch.ids[example, end].tolist())}, and the continuation has "
                    f"{brief(wanted.tolist())}: encode prompt and continuation as one text. If their tokens merge, or the "
                    "continuation's first space is a token of its own, omit the space or give labels"
                )
            examples += [example] * len(end)
            positions += end.tolist()
        return np.array(examples, np.int64), np.array(positions, np.int64)

    def _rows(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        labels = self._of_rows(self.labels, rows, "label")
        refuse_probabilities(rows.values)
        if self.against is None:
            values, slopes = surprisals(rows.values, labels)
            return -values, -slopes
        others = self._of_rows(self.against, rows, "against")
        difference = entries(rows.values, labels) - entries(rows.values, others)
        return difference, one_hot(rows.values, labels) - one_hot(rows.values, others)

    def _of_rows(self, labels: np.ndarray, rows: Rows, name: str) -> np.ndarray:
        """Return the label of each row."""
        if rows.classes == 1:
            raise ObjectiveError(
                "the output has one entry for each position or example: the log-probability of a single class is always 0; for a "
                "single logit use Sum(), or give a callable"
            )
        if self.at_end:
            if rows.positions is None or rows.columns is not None:
                raise ObjectiveError(
                    "the output has one row for each example, and a continuation needs one for each position: name another "
                    "output with output=..., or give labels"
                )
            padded = np.broadcast_to(labels, (rows.count, labels.shape[-1]))
            return expect_inside(padded[padded != IGNORED], rows, name)
        if labels.ndim == 2 and rows.positions is not None:
            return expect_inside(labels[rows.examples, rows.positions + int(self.shift)], rows, name)
        return choose_entries(labels, rows, name)


def _special(tokenizer: Any) -> frozenset[int]:
    return frozenset(special_ids(tokenizer) or ())


def ids_of_text(text: str, tokenizer: Any) -> list[int]:
    """Return the ids of a text without the special tokens around it."""
    special = _special(tokenizer)
    ids = list(encode_examples([(text,)], tokenizer)[0].ids)  # without a warning of special tokens, which are cut off
    while ids and ids[0] in special:
        ids = ids[1:]
    while ids and ids[-1] in special:
        ids = ids[:-1]
    if not ids:
        raise ObjectiveError(f"the continuation {brief(text)} has no tokens: expected a text that is not empty")
    return ids
