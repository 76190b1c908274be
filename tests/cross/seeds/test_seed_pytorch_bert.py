"""S1: the gradient of BERT's input embeddings, in one batch and over a training run, by hand in each framework."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import embgrad

IDS = [np.array([[2, 17, 30, 3, 0, 0], [2, 41, 8, 17, 55, 3]]), np.array([[2, 5, 6, 7, 3], [2, 9, 17, 3, 0]])]
LABELS = [np.array([0, 1]), np.array([1, 1])]


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=60, hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48, num_labels=2
    )
    return transformers.BertForSequenceClassification(config)


def batch(number: int) -> dict[str, np.ndarray]:
    return {"input_ids": IDS[number], "attention_mask": (IDS[number] != 0).astype(np.int64)}


def tensors(number: int) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(value) for name, value in batch(number).items()}


def by_a_hook(model: Any, number: int) -> tuple[np.ndarray, np.ndarray]:
    """The robust way by hand: a hook on the lookup's output, in evaluation mode, from the sum of the losses; and the table's."""
    alone = copy.deepcopy(model).eval()
    received = []

    def save(module: Any, inputs: Any, output: torch.Tensor) -> None:
        output.register_hook(lambda grad: received.append(grad.clone()))

    alone.bert.embeddings.word_embeddings.register_forward_hook(save)
    logits = alone(**tensors(number)).logits
    torch.nn.functional.cross_entropy(logits, torch.tensor(LABELS[number]), reduction="sum").backward()
    return received[0].numpy(), alone.bert.embeddings.word_embeddings.weight.grad.numpy()


def test_seed_pytorch_bert(model: Any) -> None:
    for number in range(2):
        result = embgrad.gradients(model, batch(number), embgrad.CrossEntropy(LABELS[number]))
        values, table = by_a_hook(model, number)
        np.testing.assert_allclose(result.values, values, atol=1e-6)
        # PyTorch leaves the declared row of padding out of the table's gradient; its lookups are masked, and zero here.
        np.testing.assert_allclose(result.table().to_dense(), table, atol=1e-6)
        assert result.pad_leak == 0.0
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_seed_pytorch_bert_by_finite_differences(model: Any) -> None:
    exact = model.double()
    result = embgrad.gradients(exact, batch(0), embgrad.CrossEntropy(LABELS[0]))
    random = np.random.default_rng(0)
    for _ in range(3):
        direction = random.normal(size=result.values.shape)

        def loss(step: float, direction: np.ndarray = direction) -> float:
            moved = {"word": lambda value: value + step * direction}
            return float(
                embgrad.gradients(exact, batch(0), embgrad.CrossEntropy(LABELS[0]), override=moved).objective.sum()
            )

        slope = (loss(1e-5) - loss(-1e-5)) / 2e-5
        assert slope == pytest.approx(float((result.values * direction).sum()), rel=1e-6)


def test_seed_pytorch_bert_over_a_training_run(model: Any) -> None:
    """The mean over batches with the optimiser in between, and a loop that ends with bit for bit the same weights."""

    def train(one: Any, each: Any) -> None:
        optimiser = torch.optim.AdamW(one.parameters(), lr=1e-2)
        torch.manual_seed(1)  # dropout is on, as in users' loops
        for number in (0, 1, 0):
            optimiser.zero_grad()
            one(**tensors(number), labels=torch.tensor(LABELS[number])).loss.backward()
            each(one)
            optimiser.step()

    alone = copy.deepcopy(model)
    tables: list[np.ndarray] = []
    train(alone, lambda one: tables.append(one.bert.embeddings.word_embeddings.weight.grad.numpy().copy()))
    with embgrad.capture(model) as tap:
        train(model, lambda one: None)
    assert tap.count == 3
    np.testing.assert_allclose(tap.mean().to_dense(), np.mean(tables, axis=0), atol=1e-6)
    for step, table in zip(tap.steps, tables, strict=True):
        np.testing.assert_allclose(step.table().to_dense(), table, atol=1e-6)
    for name, value in model.state_dict().items():
        assert torch.equal(value, alone.state_dict()[name]), name


def test_seed_pytorch_bert_traps(model: Any) -> None:
    """Each trap of the published code gets a clear answer, never a wrong number."""
    encoder = model.bert
    with pytest.raises(embgrad.errors.OutputError, match=r"2 outputs and none of them is its logits.*pooled"):
        embgrad.gradients(encoder, batch(0), embgrad.CrossEntropy(LABELS[0]))  # no .loss, no logits
    floats = {**batch(0), "attention_mask": batch(0)["attention_mask"].astype(np.float32)}
    expected = embgrad.gradients(model, batch(0), embgrad.CrossEntropy(LABELS[0]))
    same = embgrad.gradients(model, floats, embgrad.CrossEntropy(LABELS[0]))
    np.testing.assert_array_equal(same.values, expected.values)
    with pytest.raises(embgrad.errors.BatchError, match="outside the table"):
        embgrad.gradients(model, np.random.default_rng(0).integers(60, 1000, (2, 4)), embgrad.Sum())
    again = embgrad.gradients(
        model, batch(0), embgrad.CrossEntropy(LABELS[0])
    )  # dropout is off, though the model trains
    np.testing.assert_array_equal(again.values, expected.values)
    model(**tensors(1), labels=torch.tensor(LABELS[1])).loss.backward()  # earlier accumulation
    after = embgrad.gradients(model, batch(0), embgrad.CrossEntropy(LABELS[0]))
    np.testing.assert_array_equal(after.values, expected.values)


@pytest.mark.parametrize("framework", ["torch", "tensorflow", "gluon"])
def test_seed_pytorch_bert_in_every_framework(framework: str) -> None:
    """The same on MiniLM's weights, against PyTorch's own backward pass."""
    from embgrad.loading.minilm import minilm_folder

    ids = np.array([[101, 2023, 3185, 2003, 2307, 102], [101, 6659, 102, 0, 0, 0]])
    mask = (ids != 0).astype(np.int64)
    reference = embgrad.zoo.load_bert(minilm_folder(), "torch")
    states = reference(input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask))
    states.pooler_output.sum().backward()
    own = reference.embeddings.word_embeddings.weight.grad.numpy()
    loaded = embgrad.zoo.load_bert(minilm_folder(), framework)
    table = embgrad.gradients(loaded, embgrad.TokenBatch(ids, mask), embgrad.Sum(output="pooled")).table().to_dense()
    assert np.linalg.norm(table - own) < 5e-6 * np.linalg.norm(own)
