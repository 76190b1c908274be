"""Whether training texts with much influence matter: `python -m tests.benchmarks.removal FOLDER`, with a folder of texts a class.

For each of fifty test texts a small classifier is trained again without the tenth of the training texts with the highest scores
of `embgrad.tables.influence`, without the tenth with the lowest, and without a tenth at random, from the same weights and in
the same order of batches. The table has the change of the test text's log-probability, as the mean and its standard error.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import torch

import embgrad

VOCAB, DIM, LENGTH = 5000, 32, 48
EPOCHS: Final = 12
BATCH: Final = 32
RATE: Final = 2.0
SHARE: Final = 0.1


class Classifier(torch.nn.Module):
    """A mean of embeddings, a hidden layer and a linear layer."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(VOCAB, DIM)
        self.hidden, self.head = torch.nn.Linear(DIM, DIM), torch.nn.Linear(DIM, classes)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        mask = attention_mask[..., None].to(self.head.weight.dtype)
        mean = (self.table(input_ids) * mask).sum(1) / mask.sum(1)
        return torch.as_tensor(self.head(torch.tanh(self.hidden(mean))))


def read(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the ids, mask and labels of all texts, in a random order."""
    classes = sorted(path for path in folder.iterdir() if path.is_dir())
    files = [(file, label) for label, path in enumerate(classes) for file in sorted(path.glob("*.txt"))]
    texts = [re.findall(r"[a-z]+", file.read_text(encoding="utf-8", errors="replace").lower()) for file, _ in files]
    words = Counter(word for text in texts for word in text)
    number = {word: id_ for id_, (word, _) in enumerate(words.most_common(VOCAB - 1), 1)}
    ids = np.zeros((len(texts), LENGTH), np.int64)
    for row, text in enumerate(texts):
        known = [number[word] for word in text if word in number][:LENGTH]
        ids[row, : len(known)] = known
    order = np.random.default_rng(0).permutation(len(texts))
    return ids[order], (ids != 0).astype(np.int64)[order], np.array([label for _, label in files])[order]


def train(ids: np.ndarray, mask: np.ndarray, labels: np.ndarray, kept: np.ndarray, every: int = 0) -> list[Classifier]:
    """Return the trained classifier as the last of a list, after its checkpoints at every so many epochs."""
    torch.manual_seed(0)
    model = Classifier(int(labels.max()) + 1)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    order, checkpoints = np.random.default_rng(1), []
    arrays = [torch.from_numpy(array) for array in (ids, mask, labels)]
    for epoch in range(1, EPOCHS + 1):
        for rows in np.array_split(order.permutation(len(ids)), len(ids) // BATCH):
            chosen = torch.from_numpy(rows[kept[rows]])
            own = [array[chosen] for array in arrays]
            loss = torch.nn.functional.cross_entropy(model(own[0], own[1]), own[2], reduction="sum") / len(rows)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch == EPOCHS or (every and epoch % every == 0):
            copy = Classifier(int(labels.max()) + 1)
            copy.load_state_dict(model.state_dict())
            checkpoints.append(copy.eval())
    return checkpoints


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="a folder with a folder of .txt files for each class")
    parser.add_argument("--tests", type=int, default=50)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    ids, mask, labels = read(options.folder)
    size = len(ids) - options.tests
    tests = [array[size:] for array in (ids, mask, labels)]
    training = ids[:size], mask[:size], labels[:size]
    whole = np.ones(size, bool)
    checkpoints = train(*training, whole, every=4)
    objective = embgrad.Labelled(embgrad.CrossEntropy)
    sources = [
        [(embgrad.TokenBatch(*part), own.tolist()) for *part, own in zip(*arrays, strict=True)]
        for arrays in (
            [np.array_split(array, len(array) // BATCH) for array in training],
            [[array] for array in tests],
        )
    ]
    found = embgrad.tables.influence(checkpoints, *sources, objective, rates=[RATE] * len(checkpoints), top=None)
    scored = {kind: np.zeros(options.tests) for kind in ("proponents", "random", "opponents")}
    before = _log_probabilities(checkpoints[-1], tests)
    print(
        f"{size} training texts, accuracy on {options.tests} test texts {np.mean(_right(checkpoints[-1], tests)):.0%}"
    )
    random = np.random.default_rng(2)
    for test in range(options.tests):
        removed = {
            "proponents": found.proponents[test, : int(SHARE * size)],
            "random": random.choice(size, int(SHARE * size), replace=False),
            "opponents": found.opponents[test, : int(SHARE * size)],
        }
        for kind, rows in removed.items():
            kept = whole.copy()
            kept[rows] = False
            after = _log_probabilities(train(*training, kept)[-1], tests)
            scored[kind][test] = after[test] - before[test]
    for kind, changes in scored.items():
        error = changes.std(ddof=1) / len(changes) ** 0.5
        below = np.mean(changes < scored["random"])
        print(f"| {kind} | {changes.mean():+.3f} ± {error:.3f} | {below:.0%} |")


def _log_probabilities(model: Classifier, tests: Sequence[np.ndarray]) -> np.ndarray:
    ids, mask, labels = (torch.from_numpy(array) for array in tests)
    with torch.no_grad():
        return np.asarray(torch.log_softmax(model(ids, mask), -1)[torch.arange(len(ids)), labels].numpy())


def _right(model: Classifier, tests: Sequence[np.ndarray]) -> np.ndarray:
    ids, mask, labels = (torch.from_numpy(array) for array in tests)
    with torch.no_grad():
        return np.asarray((model(ids, mask).argmax(-1) == labels).numpy())


if __name__ == "__main__":
    main()
