"""The resident memory of a long stream: after 500 sentences and after all of them, in one process.

`python -m tests.benchmarks.memory [--framework torch|tensorflow|gluon] [--sentences 10000]`. The model is a BERT of two layers
with MiniLM's own vocabulary and width, the sentences have 5 to 40 tokens, and each result is let go before the next one comes.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import embgrad
from tests.benchmarks.cases import drawn_bert

EARLY = 500


def resident() -> float:
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def sentences(count: int) -> Iterator[str]:
    """Sentences that come one by one, with as many words as there are tokens but two."""
    random = np.random.default_rng(0)
    for _ in range(count):
        yield " ".join(map(str, random.integers(1000, 30000, random.integers(3, 39))))


def tokenizer(text: str) -> dict[str, list[int]]:
    ids = [101, *map(int, text.split()), 102]
    return {"input_ids": ids, "attention_mask": [1] * len(ids), "token_type_ids": [0] * len(ids)}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--framework", default="torch", choices=("torch", "tensorflow", "gluon"))
    parser.add_argument("--sentences", type=int, default=10_000)
    parser.add_argument("--batch-size", type=int, default=20)
    parser.add_argument("--found", type=Path, help="write the figures here, as JSON")
    given = parser.parse_args(arguments)
    if given.framework != "tensorflow":
        os.environ.setdefault("USE_TF", "0")  # or transformers would import it, and its size would hide what grows
    with tempfile.TemporaryDirectory() as folder:
        model = embgrad.load_bert(drawn_bert(Path(folder) / "bert", layers=2, dim=384, vocab=30_522), given.framework)
        with embgrad.stream(
            model,
            sentences(given.sentences),
            embgrad.Sum(output="pooled"),
            tokenizer=tokenizer,
            batch_size=given.batch_size,
        ) as results:
            early, last = _watched(results, given.sentences)
    print(
        f"{given.framework}: {early:.0f} MiB after {EARLY} sentences, {last:.0f} MiB after {given.sentences}: "
        f"{last / early:.3f} times as much"
    )
    if given.found:
        found = {"framework": given.framework, "sentences": given.sentences, "early": early, "last": last}
        given.found.write_text(json.dumps([found]), encoding="utf-8")
    return 0


def _watched(results: embgrad.Stream, count: int) -> tuple[float, float]:
    """The resident memory early and in the end, MiB, where as many results have come since free memory was handed back."""
    early = 0.0
    for _ in results:
        if not early and results.examples >= EARLY:
            early = resident()
        if results.examples % EARLY == 0:
            print(f"  {results.examples:>6} sentences: {resident():7.1f} MiB", file=sys.stderr, flush=True)
            if results.examples >= count:
                return early, resident()
    return early, resident()


if __name__ == "__main__":
    sys.exit(main())
