"""PEZ and universal triggers make the steps of loops in plain PyTorch, written as their authors' are."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import embgrad
from embgrad.token_search import PEZ
from embgrad.token_search.search import problem_of

STEPS, CLASS = 20, 1


class Classifier(torch.nn.Module):
    """A table, a recurrent layer and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(60, 8)
        self.encoder = torch.nn.GRU(8, 12, batch_first=True)
        self.head = torch.nn.Linear(12, 3)

    def of_rows(self, rows: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(rows)[0].mean(1))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.of_rows(self.table(input_ids))


def projected(model: Classifier, ids: torch.Tensor, sign: int) -> tuple[list[Any], torch.Tensor]:
    """Return the ids of each step and the last embeddings, as the authors' `optimize_prompt_loop` computes them."""
    table = model.table.weight.detach()
    embeddings = table[ids].clone().requires_grad_()
    optimizer = torch.optim.AdamW([embeddings], lr=0.1, weight_decay=0.1)
    visited = []
    for _ in range(STEPS):
        directions = torch.nn.functional.normalize(embeddings.detach(), dim=-1)
        nearest = (directions @ torch.nn.functional.normalize(table, dim=-1).T).argmax(-1)
        rows = table[nearest].clone().requires_grad_()
        loss = -sign * model.of_rows(rows)[:, CLASS].sum()
        (embeddings.grad,) = torch.autograd.grad(loss, [rows])
        optimizer.step()
        visited.append(nearest.numpy())
    return visited, embeddings.detach()


def test_twenty_steps_equal_those_of_pytorchs_adamw() -> None:
    model = Classifier().double()
    ids = torch.randint(0, 60, (4, 6))
    for goal, sign in (("maximize", 1), ("minimize", -1)):
        visited, embeddings = projected(model, ids, sign)
        arguments: dict[str, Any] = dict.fromkeys(
            ("until", "allowed", "positions", "tokenizer", "max_length", "call", "batch_size")
        )
        problem, _ = problem_of(model, ids.numpy(), embgrad.Logit(CLASS), goal=goal, stable=False, **arguments)
        method = PEZ(steps=STEPS)
        state = method.start(problem)
        for number in range(STEPS):
            state = method.step(problem, state, np.ones(4, bool), number)
            np.testing.assert_array_equal(state.current.ids, visited[number])
        np.testing.assert_allclose(state.arrays["embeddings"], embeddings.numpy(), rtol=1e-10, atol=1e-12)
        assert len({ids.tobytes() for ids in visited}) > 3, "the texts change"
