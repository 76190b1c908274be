"""Attributions of texts with chosen scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers

import embgrad
from embgrad.results.token_attribution import TokenAttribution


def byte_level() -> Tokenizer:
    """Return a tokenizer as GPT-2's with a token for each byte and for " a", so that a character may be several tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*alphabet, "Ġa"])}
    built = Tokenizer(models.BPE(vocabulary, [("Ġ", "a")]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return built


def attribution_of(
    batch: embgrad.TokenBatch, scores: Any = None, method: str = "IntegratedGradients"
) -> embgrad.results.Attribution:
    """Return an attribution with these scores, by default 1, 2, 3, … along the positions."""
    positions = np.arange(1.0, batch.shape[1] + 1)
    filled = np.broadcast_to(positions if scores is None else np.asarray(scores, float), batch.shape)
    zeros = np.zeros(len(batch))
    provenance = {"method": {"class": method, "steps": 5}, "point": "word", "model": "Model", "backend": "reference"}
    has_baseline = method == "IntegratedGradients"
    return embgrad.results.Attribution(
        values=None,
        scores=filled.copy(),
        objective=zeros + 2.5,
        baseline_objective=zeros + 1.5 if has_baseline else None,
        delta=zeros + 0.01 if has_baseline else None,
        ids=batch.ids,
        mask=batch.mask,
        types=batch.types,
        tokens=batch.tokens,
        words_of=batch.words,
        provenance=provenance,
        texts=batch.texts,
        offsets=batch.offsets,
        parts=batch.parts,
    )


def by_words(
    texts: Sequence[Any], tokens: Sequence[Sequence[str]], scores: Any, method: str = "IntegratedGradients"
) -> embgrad.results.Attribution:
    """Return an attribution of tokens that stand in their texts one after another, special ones aside."""
    offsets, parts = [], []
    for text, row in zip(texts, tokens, strict=True):
        end, part, wholes = 0, 0, (text,) if isinstance(text, str) else text
        for token in row:
            start = wholes[part].find(token, end)
            if start < 0 and part + 1 < len(wholes) and (start := wholes[part + 1].find(token)) >= 0:
                part += 1
            end = start + len(token) if start >= 0 else end
            offsets.append((start, end) if start >= 0 else (-1, -1))
            parts.append(part if start >= 0 else -1)
    ids = np.arange(len(offsets)).reshape(len(tokens), -1)
    batch = embgrad.TokenBatch(
        ids,
        tokens=tokens,
        texts=texts,
        offsets=np.reshape(offsets, (*ids.shape, 2)),
        parts=np.reshape(parts, ids.shape),
    )
    return attribution_of(batch, scores, method)


def token_attribution_of(
    batch: embgrad.TokenBatch,
    outputs: Sequence[Sequence[int]],
    scores: Any,
    method: str = "InputXGradient",
    **fields: Any,
) -> TokenAttribution:
    """Return an attribution of the tokens at the positions `outputs` of each example, by a causal model.

    Scores at an output and after it are replaced with 0, as they are at padding. L of the outputs is -1, -2, -3, …
    """
    most = max(map(len, outputs))
    padded = np.array([[*row, *[-1] * (most - len(row))] for row in outputs], np.int64)
    exists = padded >= 0
    real = np.ones(batch.shape, bool) if batch.mask is None else batch.mask.astype(bool)
    earlier = np.arange(batch.shape[1]) < padded[:, :, None]
    full = np.broadcast_to(np.asarray(scores, float), (*padded.shape, batch.shape[1]))
    of_outputs = np.take_along_axis(batch.ids, np.maximum(padded, 0), axis=1)
    objective = np.where(exists, -np.arange(1.0, most + 1), np.nan)
    tokens = None if batch.tokens is None else [list(row) for row in batch.tokens]
    made: dict[str, Any] = {
        "scores": np.where(earlier & real[:, None], full, 0.0),
        "outputs": padded,
        "output_ids": np.where(exists, of_outputs, -1),
        "objective": objective, "contrast_ids": None,
        "baseline_objective": None,
        "delta": None, "ids": batch.ids, "mask": batch.mask, "types": batch.types, "tokens": batch.tokens,
        "words_of": batch.words,
        "output_tokens": None
        if tokens is None
        else tuple(tuple(row[position] for position in chosen) for row, chosen in zip(tokens, outputs, strict=True)),
        "provenance": {"method": {"class": method}, "point": "word", "model": "some.Model", "backend": "reference"},
        "texts": batch.texts, "offsets": batch.offsets, "parts": batch.parts,
    }  # fmt: skip
    return TokenAttribution(**{**made, **fields})


def encoder_decoder(scores: Any = None, decoder_scores: Any = None, **fields: Any) -> TokenAttribution:
    """Return an attribution of three outputs of an encoder-decoder with four tokens in the encoder and four in the decoder."""
    batch = embgrad.TokenBatch([[5, 6, 7, 1]], tokens=[["▁trans", "late", "▁this", "</s>"]])
    decoder_ids = np.array([[0, 21, 22, 23]])
    made: dict[str, Any] = {
        "output_ids": decoder_ids[:, 1:],
        "output_tokens": (("▁über", "setze", "▁dies"),),
        "decoder_ids": decoder_ids,
        "decoder_tokens": (("<pad>", "▁über", "setze", "▁dies"),),
        "decoder_scores": np.tril(np.arange(1.0, 13).reshape(3, 4))[None] if decoder_scores is None else decoder_scores,
        "scores": np.arange(12.0).reshape(1, 3, 4) - 5 if scores is None else scores,
    }
    return replace(token_attribution_of(batch, [[1, 2, 3]], 0.0), **{**made, **fields})
