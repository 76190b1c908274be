"""Time and memory of the influence of many training texts: `python -m tests.benchmarks.influence [--train N] [--test N]`.

The model is a table, one Transformer layer and a linear layer in PyTorch, drawn at random; the texts have 3 to 38 tokens, drawn
by Zipf's law. The training texts come from a generator. The peak is that of the process's resident size during the call.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch

import embgrad
from embgrad.common.memory_meter import process_meter

VOCAB, DIM, CLASSES = 30522, 128, 5


class Classifier(torch.nn.Module):
    """A table, one layer and the mean of the positions, which a linear layer classifies."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(VOCAB, DIM)
        self.layer = torch.nn.TransformerEncoderLayer(DIM, 4, 4 * DIM, 0.0, batch_first=True)
        self.head = torch.nn.Linear(DIM, CLASSES)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        mask = attention_mask[..., None].to(self.head.weight.dtype)
        hidden = self.layer(self.table(input_ids), src_key_padding_mask=attention_mask == 0)
        return torch.as_tensor(self.head((hidden * mask).sum(1) / mask.sum(1)))


def examples(count: int, seed: int) -> Iterator[tuple[str, int]]:
    """Yield texts and labels."""
    random = np.random.default_rng(seed)
    for _ in range(count):
        ids = 1 + (random.zipf(1.3, random.integers(3, 39)) - 1) % (VOCAB - 1)
        yield " ".join(map(str, ids)), int(random.integers(CLASSES))


def tokenizer(text: str) -> list[int]:
    """Return the ids of a text."""
    return [int(number) for number in text.split()]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure one call and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", type=int, default=100_000)
    parser.add_argument("--test", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=None)
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    model, objective = Classifier().eval(), embgrad.Labelled(embgrad.CrossEntropy)

    def run(train: int, test: int) -> None:
        kept = {} if options.tokens is None else {"tokens": options.tokens}
        embgrad.tables.influence(
            model,
            examples(train, 0),
            list(examples(test, 1)),
            objective,
            tokenizer=tokenizer,
            batch_size=64,
            **kept,
        )

    run(256, 4)  # what libraries keep from a first call does not count
    meter = process_meter()
    meter.restart()
    before, began, cpu = meter.read()[0], time.perf_counter(), time.process_time()
    run(options.train, options.test)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    print(f"{options.train} training texts, {options.test} test texts, {torch.get_num_threads()} threads")
    print(
        f"{seconds:.1f} s, {cpu:.1f} s of processors; peak {meter.read()[1] / 2**20:.0f} MiB, {before / 2**20:.0f} before"
    )


if __name__ == "__main__":
    main()
