"""The result of `embgrad.attribute`: how much each position contributes to each example's objective."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from embgrad.common.metrics import length
from embgrad.common.text import visible
from embgrad.errors import EmbgradError, brief, did_you_mean
from embgrad.inputs.checks import Text
from embgrad.results.displayed import Displayed
from embgrad.results.file_format import Saved, write_results
from embgrad.results.pieces import pieces_of, unit_of
from embgrad.results.scores import Scores
from embgrad.results.spans import Merge, Span, sentences_of, spans_of
from embgrad.results.table_rows import attribution_columns
from embgrad.results.tabular import Columns, Tabular, stack
from embgrad.results.words import Word, words_of_examples

__all__ = ["Attribution", "Attributions"]


@dataclass(frozen=True, eq=False)
class Attribution(Scores, Displayed, Tabular, Saved):
    """The contributions of positions to each example's objective L, by one method.

    Attributes:
        values: the contributions of single dimensions, shape (example, position, dim), in the model's dtype, float32 or float64;
            None where the method has none, such as `Occlusion`.
        scores: the contributions of positions, float64, shape (example, position): the sum of `values` over dim, for `Saliency`
            and `SmoothGrad` of it their L2 norm.
        objective: L of each example, float64, shape (example,).
        baseline_objective: L of each example at the baseline, likewise; None where the method has no single baseline.
        delta: the error of completeness, likewise: the sum of an example's contributions minus what they should add up to,
            `objective - baseline_objective`; None where a method does not promise that.
        error: a bound of the size of `delta` that holds on each stretch of the path too, so that errors of two stretches do not
            cancel: how much of L's change the contributions may miss, likewise; None where a method has no `delta`.
        ids: the batch's ids, int64, shape (example, position).
        mask: 1 at real positions, int64, likewise; None where none was given.
        types: segment numbers, likewise.
        tokens: the tokens' texts, one tuple for each example; None where they are not known.
        words_of: for each position the number of its word, -1 for none; None where the tokenizer returned none.
        provenance: the versions, the model, the objective, the point, the method with its arguments, and more, as
            JSON-compatible values.
        texts: the user's text of each example, or a pair of texts; None where the batch was given as ids.
        offsets: for each token the characters of its text that it stands for, from `start` up to `end`, int64, shape (example,
            position, 2), -1 for none; None where the tokenizer returned none.
        parts: for each position the index of the text in a pair that its offsets count in, int64, shape (example, position),
            -1 for none; None without offsets.
    """

    values: np.ndarray | None
    scores: np.ndarray
    objective: np.ndarray
    baseline_objective: np.ndarray | None
    delta: np.ndarray | None
    ids: np.ndarray
    mask: np.ndarray | None
    types: np.ndarray | None
    tokens: tuple[tuple[str, ...], ...] | None
    words_of: np.ndarray | None
    provenance: Mapping[str, Any]
    texts: tuple[Text, ...] | None = None
    offsets: np.ndarray | None = None
    parts: np.ndarray | None = None
    error: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The scores' shape, (examples, positions)."""
        return tuple(self.scores.shape)

    def __repr__(self) -> str:
        source = self.provenance
        delta = "" if self.delta is None else f", |delta| ≤ {np.abs(self.delta).max():.2g}"
        return visible(
            f"Attribution({' × '.join(map(str, self.shape))}, {self.method} at {source.get('point')!r} of "
            f"{source.get('model')} ({source.get('backend')}), norm {length(self.scores):.4g}{delta})"
        )

    def words(self) -> list[list[Word]]:
        """Return the words of each example with their scores; sub-word tokens are merged, padding is skipped.

        A word's score is the sum of its tokens' scores, for `Saliency` and `SmoothGrad` of it the root of their sum of squares.
        Each special token is a word. Tokens are grouped as in `EmbeddingGradients.words`. A word's text is that of its tokens,
        with the signs of byte-level tokens; the user's characters are in `spans`.

        Raises:
            EmbgradError: the tokens are not known.
        """
        if self.tokens is None:
            raise EmbgradError(
                "the tokens of this attribution are not known: build the batch with embgrad.encode(texts, tokenizer), or pass "
                "tokens=... to embgrad.TokenBatch"
            )
        return words_of_examples(self.tokens, self.words_of, self.real, self.scores, self._merge)

    @property
    def signed(self) -> bool:
        """Return whether a score may be below zero: by all methods but `Saliency` and `SmoothGrad` of it, which return norms."""
        method = self.provenance["method"]
        return bool(method.get("of", method)["class"] != "Saliency")

    @property
    def _merge(self) -> Merge:
        """The score of several positions together: the sum, or of norms the root of the sum of squares."""
        return np.sum if self.signed else length

    def spans(self) -> list[list[Span]]:
        """Return each example's text in pieces with their scores: joined, their `text` is the user's text, to the character.

        A piece stands for one token, or for several that share a character, as byte-level tokens of one emoji do; its score is
        merged as in `words`. White space and other characters that no token stands for are pieces without positions. Of a pair
        the pieces of the first text come first, see `Span.part`. Special tokens, which have no characters, are in no piece.

        Raises:
            EmbgradError: the texts, or the tokens' offsets in them, are not known.
        """
        texts, offsets, parts = self._locate()
        return [
            spans_of(text, offsets[index], parts[index], self.real[index], self.scores[index], self._merge)
            for index, text in enumerate(texts)
        ]

    def sentences(self) -> list[list[Span]]:
        """Return the sentences of each example's text with their scores, merged as in `words`; joined, their `text` is the text.

        A sentence ends at a line end; after `.`, `!`, `?` or `…`, with quotes and brackets after them, before white space, unless
        a small letter follows in the same line; and after `。`, `！` and `？`. So "e.g. this" is not divided, and "Dr. Smith" is.
        White space belongs to the sentence before it, a token to the sentence of its first character that is not white space.

        Raises:
            EmbgradError: the texts, or the tokens' offsets in them, are not known.
        """
        spans = self.spans()
        return [sentences_of(pieces, self.scores[index], self._merge) for index, pieces in enumerate(spans)]

    def segments(self, parts: Mapping[str, Any] | None = None) -> list[list[Word]]:
        """Return the segments of each example's text with their scores, merged as in `words`: turns of a chat, or named parts.

        The turns are those of the roles in the chat template of the model, which special tokens begin, such as
        "<start_of_turn>user" or "[INST]"; a turn holds the template's own tokens. They have the roles' names, from the second
        turn of a role on with a number, "user 2". What stands before the first turn is a segment of its own.

        Args:
            parts: for each name a text that each example has once, a slice of an example's real tokens, or positions. The other
                tokens together are the segment "(other)". None for the turns.

        Raises:
            EmbgradError: no special token begins a turn; a text is not in an example, or several times; or parts overlap.
        """
        unit = unit_of([self], "segments" if parts is None else parts, ())
        examples = pieces_of(self, unit, range(len(self.ids)), True)
        return [[Word(piece.text, piece.positions, piece.score) for piece in pieces] for pieces in examples]

    def _locate(self) -> tuple[tuple[Text, ...], np.ndarray, np.ndarray]:
        if self.texts is None:
            raise EmbgradError(
                "the texts of this attribution are not known, since the batch was given as ids: pass texts as the batch, with "
                "tokenizer=..., or a batch by embgrad.encode(texts, tokenizer)"
            )
        if self.offsets is None or self.parts is None:
            raise EmbgradError(
                "where the tokens stand in the texts is not known, since this tokenizer does not return it: use a "
                "tokenizers.Tokenizer or a fast tokenizer of Hugging Face, AutoTokenizer.from_pretrained(..., use_fast=True)"
            )
        return self.texts, self.offsets, self.parts

    def _by_name(self) -> Mapping[str, Attribution]:
        return {"": self}

    def _columns(self, by: Any, special: bool) -> Columns:
        return attribution_columns(self, by, special)


class Attributions(Displayed, Tabular, Mapping[str, Attribution]):
    """Attributions of one batch by several methods, by name.

    Args:
        attributions: the attributions by name, at least one.

    Raises:
        EmbgradError: `attributions` is not a mapping, is empty, or holds something else.
    """

    def __init__(self, attributions: Mapping[str, Attribution]) -> None:
        if not isinstance(attributions, Mapping) or not attributions:
            raise EmbgradError(
                f"attributions is {brief(attributions)}: expected a mapping of names to attributions, at least one"
            )
        for name, attribution in attributions.items():
            if not isinstance(name, str) or not isinstance(attribution, Attribution):
                raise EmbgradError(
                    f"attributions[{brief(name)}] is of type {type(attribution).__name__}: expected names of type str, and "
                    "results of embgrad.attribute"
                )
        self._attributions = dict(attributions)

    def __getitem__(self, name: str) -> Attribution:
        if name not in self._attributions:
            raise KeyError(f"no attribution {name!r}.{did_you_mean(str(name), self._attributions)}")
        return self._attributions[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._attributions)

    def __len__(self) -> int:
        return len(self._attributions)

    def _by_name(self) -> Mapping[str, Attribution]:
        return self._attributions

    def _columns(self, by: Any, special: bool) -> Columns:
        return stack("method", {name: attribution_columns(each, by, special) for name, each in self.items()})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the attributions to a safetensors file, which `embgrad.load` reads back, see `Attribution.save`."""
        write_results(self, path, single=False)

    def __repr__(self) -> str:
        return "\n".join(f"{visible(name)}: {attribution!r}" for name, attribution in self.items())
