"""How many of the flips that trying every single replacement finds HotFlip finds, at a small share of the passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import embgrad

VOCAB, LENGTH, DIM, CLASSES, SENTENCES = 600, 8, 32, 3, 60


class Classifier(torch.nn.Module):
    """A classifier of sentences of `LENGTH` words: a bidirectional LSTM, or a transformer."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(VOCAB, DIM)
        self.places = torch.nn.Parameter(0.1 * torch.randn(LENGTH, DIM))
        if kind == "lstm":
            self.body: Any = torch.nn.LSTM(DIM, DIM // 2, batch_first=True, bidirectional=True)
        else:
            layer = torch.nn.TransformerEncoderLayer(DIM, 4, 4 * DIM, dropout=0.0, batch_first=True)
            self.body = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(DIM, CLASSES)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        states = self.body(self.table(ids) + self.places)
        return self.head((states[0] if isinstance(states, tuple) else states).mean(1))


def labelled(random: np.random.Generator, count: int, scores: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Return sentences with the class whose words weigh most; a word at an odd position counts against its class."""
    ids = random.integers(0, VOCAB, (count, LENGTH))
    signs = 1 - 2 * (np.arange(LENGTH) % 2)
    return torch.tensor(ids), torch.tensor((scores[ids] * signs[:, None]).sum(1).argmax(1))


def trained(kind: str) -> tuple[Classifier, np.ndarray]:
    """Return a classifier that was trained, and sentences that it has not seen."""
    torch.manual_seed(0)
    random = np.random.default_rng(0)
    scores = random.normal(size=(VOCAB, CLASSES))
    model = Classifier(kind)
    optimiser = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(300):
        ids, labels = labelled(random, 64, scores)
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(ids), labels).backward()
        optimiser.step()
    return model.eval(), labelled(random, SENTENCES, scores)[0].numpy()


@torch.no_grad()
def predicted(model: Classifier, ids: np.ndarray) -> np.ndarray:
    """Return the class that the model predicts for each sentence."""
    return model(torch.tensor(ids)).argmax(1).numpy()


def can_be_flipped(model: Classifier, ids: np.ndarray, prediction: int) -> bool:
    """Return whether any single replacement changes the prediction, by trying them all."""
    tries = np.tile(ids, (LENGTH, VOCAB, 1))
    for position in range(LENGTH):
        tries[position, :, position] = np.arange(VOCAB)
    return bool((predicted(model, tries.reshape(-1, LENGTH)) != prediction).any())


@pytest.mark.parametrize("kind", ["lstm", "transformer"])
def test_nearly_all_single_flips_are_found_with_a_fiftieth_of_the_passes(kind: str) -> None:
    model, sentences = trained(kind)
    before = predicted(model, sentences)
    flippable = np.array([can_be_flipped(model, *pair) for pair in zip(sentences, before, strict=True)])
    found = embgrad.search(
        model, sentences, embgrad.Margin(before), embgrad.methods.HotFlip(steps=1), goal="minimize", until=-1e-6
    )
    flipped = predicted(model, found.batch.ids) != before
    assert flippable.sum() > SENTENCES / 2
    assert not (flipped & ~flippable).any()
    np.testing.assert_array_equal(flipped, found.success)
    assert flipped.sum() >= 0.95 * flippable.sum()
    assert found.history.evaluations[-1].sum() <= 0.02 * SENTENCES * LENGTH * VOCAB
    assert ((found.batch.ids != sentences).sum(1) <= 1).all()
