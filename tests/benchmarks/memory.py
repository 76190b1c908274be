"""The resident memory of a long stream in one process: after 500 sentences and at the end.

The model is a BERT of two layers with MiniLM's vocabulary and width, the sentences have 5 to 40 tokens, and each result is
released before the next one is computed.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import embgrad
from tests.benchmarks.cases import drawn_bert

EARLY = 500


def resident() -> float:
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def random_sentences(count: int) -> Iterator[str]:
    random = np.random.default_rng(0)
    for _ in range(count):
        yield " ".join(map(str, random.integers(1000, 30000, random.integers(3, 39))))


def tokenizer(text: str) -> dict[str, list[int]]:
    ids = [101, *map(int, text.split()), 102]
    return {"input_ids": ids, "attention_mask": [1] * len(ids), "token_type_ids": [0] * len(ids)}


def long_stream(framework: str, sentences: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        model = embgrad.zoo.load_bert(drawn_bert(Path(folder) / "bert", layers=2, dim=384, vocab=30_522), framework)
        objective, source = embgrad.Sum(output="pooled"), random_sentences(sentences)
        with embgrad.stream(model, source, objective, tokenizer=tokenizer, batch_size=20) as results:
            early, last = _watched(results, sentences)
    return [{"framework": framework, "sentences": sentences, "early": early, "last": last}]


def _watched(results: embgrad.results.Stream, count: int) -> tuple[float, float]:
    early = 0.0
    for _ in results:
        if not early and results.examples >= EARLY:
            early = resident()
        if results.examples % EARLY == 0:
            print(f"  {results.examples:>6} sentences: {resident():7.1f} MiB", file=sys.stderr, flush=True)
            if results.examples >= count:
                return early, resident()
    return early, resident()
