"""Attributions of texts with chosen scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers

import embgrad


def byte_level() -> Tokenizer:
    """Return a tokenizer as GPT-2's with a token for each byte and for " a", so that a character may be several tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*alphabet, "Ġa"])}
    built = Tokenizer(models.BPE(vocabulary, [("Ġ", "a")]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return built


def attribution_of(
    batch: embgrad.TokenBatch, scores: Any = None, method: str = "IntegratedGradients"
) -> embgrad.Attribution:
    """Return an attribution with these scores, by default 1, 2, 3, … along the positions."""
    positions = np.arange(1.0, batch.shape[1] + 1)
    filled = np.broadcast_to(positions if scores is None else np.asarray(scores, float), batch.shape)
    zeros = np.zeros(len(batch))
    provenance = {"method": {"class": method, "steps": 5}, "point": "word", "model": "Model", "backend": "reference"}
    has_baseline = method == "IntegratedGradients"
    return embgrad.Attribution(
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
) -> embgrad.Attribution:
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
