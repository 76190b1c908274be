"""The result of `embgrad.attribute_tokens`: how much each token before an output token contributes to its log-probability."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from embgrad.common.metrics import length
from embgrad.common.text import visible
from embgrad.errors import EmbgradError, brief
from embgrad.inputs.checks import Text
from embgrad.results.attribution import Attribution
from embgrad.results.displayed import DisplayedTokens
from embgrad.results.file_format import Saved
from embgrad.results.scores import Scores
from embgrad.results.table_rows import token_attribution_columns
from embgrad.results.tabular import Columns, Tabular

__all__ = ["TokenAttribution"]


@dataclass(frozen=True, eq=False)
class TokenAttribution(Scores, DisplayedTokens, Tabular, Saved):
    """The contributions of tokens to the log-probabilities of outputs, by one method. An output is a token, or a span of tokens.

    Examples may have different numbers of outputs; the entries of the missing ones are -1 in `outputs`, `output_ids` and
    `contrast_ids`, NaN in `objective`, `baseline_objective`, `delta` and `error`, and 0 in `scores`.

    Attributes:
        scores: the contributions of the batch's tokens, float64, shape (example, output, position), in an encoder-decoder of the
            encoder's tokens: for `saliency` the L2 norm of the gradient over dim, else a sum over dim. 0 at padding. A span's own
            tokens but the last contribute to those after them.
        outputs: the positions of the output tokens, int64, shape (example, output): columns of `ids`, in an encoder-decoder of
            `decoder_ids`. If an output is a span of several tokens, (example, output, token), with -1 after an output's last.
        output_ids: the ids of the output tokens, likewise.
        objective: L of each output, float64, shape (example, output): its log-probability, of a span the sum of those of its
            tokens; with `contrast` the difference of this and that of the contrast.
        contrast_ids: the ids that the outputs are compared with, int64, shape (example, output), or if they are several for an
            output (example, output, token), with -1 after an output's last; None without `contrast`.
        baseline_objective: L of each output token at the baseline, float64, shape (example, output); None where the method has
            none.
        delta: the error of completeness, likewise: the sum of an output's contributions, of both sides in an encoder-decoder and
            with `contrast_scores`, minus `objective - baseline_objective`; None where the method does not promise that.
        error: a bound of the size of `delta` that holds on each stretch of the path too, likewise, see `Attribution`.
        ids: the batch's ids, int64, shape (example, position).
        mask: 1 at real positions, int64, likewise; None where none was given.
        types: segment numbers, likewise.
        tokens: the tokens' texts, one tuple for each example; None where they are not known.
        words_of: for each position the number of its word, -1 for none; None where the tokenizer returned none.
        output_tokens: the texts of the output tokens, one tuple for each example, as long as it has outputs, in which a span is a
            tuple if one is among the outputs; None where they are not known.
        provenance: the versions, the model, the point, the method with its arguments, and more, as JSON-compatible values.
        decoder_scores: in an encoder-decoder the contributions of the decoder's tokens, float64, shape (example, output,
            decoder position); else None.
        decoder_ids: the ids of the decoder, int64, shape (example, decoder position); else None. So are `decoder_mask`, and the
            texts `decoder_tokens`, which are None where they are not known.
        texts: the user's text of each example, or a pair of texts; None where the batch was given as ids, or was generated.
        offsets: see `Attribution`; so are `parts`.
        contrast_scores: where the contrast has a pass of its own, the contributions of its own tokens, which stand in no column
            of `scores`, float64, shape (example, output, token); else None.
    """

    scores: np.ndarray
    outputs: np.ndarray
    output_ids: np.ndarray
    objective: np.ndarray
    contrast_ids: np.ndarray | None
    baseline_objective: np.ndarray | None
    delta: np.ndarray | None
    ids: np.ndarray
    mask: np.ndarray | None
    types: np.ndarray | None
    tokens: tuple[tuple[str, ...], ...] | None
    words_of: np.ndarray | None
    output_tokens: tuple[tuple[Any, ...], ...] | None
    provenance: Mapping[str, Any]
    decoder_scores: np.ndarray | None = None
    decoder_ids: np.ndarray | None = None
    decoder_mask: np.ndarray | None = None
    decoder_tokens: tuple[tuple[str, ...], ...] | None = None
    texts: tuple[Text, ...] | None = None
    offsets: np.ndarray | None = None
    parts: np.ndarray | None = None
    error: np.ndarray | None = None
    contrast_scores: np.ndarray | None = None

    @property
    def spans(self) -> np.ndarray:
        """The positions of each output's tokens, int64, (example, output, token), -1 after its last."""
        return self.outputs if self.outputs.ndim == 3 else self.outputs[..., None]

    @property
    def shape(self) -> tuple[int, ...]:
        """The scores' shape, (examples, outputs, positions)."""
        return tuple(self.scores.shape)

    @property
    def signed(self) -> bool:
        """Return whether a score may be below zero: by all methods but `Saliency`, which returns norms."""
        return self.method != "Saliency"

    def __repr__(self) -> str:
        source = self.provenance
        contrast = "" if self.contrast_ids is None else ", contrastive"
        return visible(
            f"TokenAttribution({' × '.join(map(str, self.shape))}, {self.method}{contrast} at {source.get('point')!r} of "
            f"{source.get('model')} ({source.get('backend')}), norm {length(self.scores):.4g})"
        )

    def _columns(self, by: Any, special: bool) -> Columns:
        return token_attribution_columns(self, by, special)

    def of_output(self, index: int, *, decoder: bool = False) -> Attribution:
        """Return the contributions to one output token of each example as an `Attribution`, with its `words`, `plot` and so on.

        Args:
            index: the index of the output; negative ones count from each example's last. An example that has no such output has
                an objective of NaN and scores of 0.
            decoder: whether to return those of the decoder's tokens, of an encoder-decoder.

        Returns:
            An attribution without `values`, whose provenance has the index as `output`. In an encoder-decoder, and where there
            are `contrast_scores`, its `delta` is None, since other contributions add to the same difference.

        Raises:
            EmbgradError: no example has such an output; or there is no decoder.
        """
        most = self.scores.shape[1]
        if isinstance(index, bool) or not isinstance(index, (int, np.integer)) or not -most <= index < most:
            raise EmbgradError(f"index is {brief(index)}: expected that of an output, from {-most} to {most - 1}")
        if decoder and self.decoder_ids is None:
            raise EmbgradError("decoder is True, and this attribution is not of an encoder-decoder: omit it")
        counts = (self.spans[..., 0] >= 0).sum(axis=1)
        columns = np.full(len(self.ids), index) if index >= 0 else counts + index
        exists = (columns >= 0) & (columns < counts)
        rows, columns = np.arange(len(self.ids)), np.where(exists, columns, 0)

        def of_each(values: np.ndarray) -> np.ndarray:
            return np.where(exists, values[rows, columns], np.nan)

        whole = self.decoder_scores is None and self.contrast_scores is None
        baseline, delta, error = self.baseline_objective, self.delta if whole else None, self.error if whole else None
        values = self.decoder_scores if decoder and self.decoder_scores is not None else self.scores
        return Attribution(
            values=None,
            scores=np.where(exists[:, None], values[rows, columns], 0.0),
            objective=of_each(self.objective),
            baseline_objective=None if baseline is None else of_each(baseline),
            delta=None if delta is None else of_each(delta),
            ids=self.decoder_ids if decoder and self.decoder_ids is not None else self.ids,
            mask=self.decoder_mask if decoder else self.mask,
            types=None if decoder else self.types,
            tokens=self.decoder_tokens if decoder else self.tokens,
            words_of=None if decoder else self.words_of,
            provenance={**self.provenance, "output": int(index)},
            texts=None if decoder else self.texts,
            offsets=None if decoder else self.offsets,
            parts=None if decoder else self.parts,
            error=None if error is None else of_each(error),
        )
