"""PEZ: continuous embeddings are optimised by gradients at the nearest text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from embgrad.attribution.method import expect_count, expect_number
from embgrad.engine.embedding_table import TableReader
from embgrad.errors import EmbgradError, brief
from embgrad.token_search.method import SearchMethod, State
from embgrad.token_search.problem import Problem

__all__ = ["PEZ", "nearest_ids"]

#: The decay rates of AdamW's averages of the gradient and of its square, and the number that is added to the latter's root.
BETAS: Final = (0.9, 0.999)
EPSILON: Final = 1e-8

#: How many rows of the table are read at a time, and with how many embeddings they are compared at a time.
ROWS: Final = 4096
EMBEDDINGS: Final = 1024


@dataclass(frozen=True)
class PEZ(SearchMethod):
    """Gradient descent on continuous embeddings, with the gradient at the text that is nearest to them.

    Each example has an embedding for each position whose token may be replaced, at first the row of its own token. A step
    projects them to the rows of allowed ids with the largest cosine similarity, evaluates the text of these ids and its gradient,
    and updates the embeddings by AdamW with that gradient. The best text of all steps is returned; the embeddings after the
    last step are not projected. Wen et al., "Hard prompts made easy: gradient-based discrete optimization for prompt tuning and
    discovery", 2023, whose numbers are the defaults, except that they begin from random tokens.

    With a tokenizer any text is gone on from, but only one that tokenises to its own ids can be the best one. AdamW divides a
    gradient by its size: where one is almost 0, the rounding of another framework or machine can lead to other texts.

    Args:
        steps: the number of steps.
        learning_rate: AdamW's learning rate, in the units of the table's rows.
        weight_decay: AdamW's weight decay: each step first multiplies the embeddings by 1 - learning_rate * weight_decay.
    """

    steps: int = 3000
    learning_rate: float = 0.1
    weight_decay: float = 0.1

    def __post_init__(self) -> None:
        expect_count(self.steps, "steps")
        expect_number(self.learning_rate, "learning_rate")
        expect_number(self.weight_decay, "weight_decay")
        if not self.learning_rate:
            raise EmbgradError(f"learning_rate is {brief(self.learning_rate)}: expected a number above 0")

    def start(self, problem: Problem) -> State:
        """Return the state before the first step, with the embeddings and AdamW's averages, float64, (example, position, dim)."""
        state = super().start(problem)
        free = problem.free
        embeddings = np.zeros((*free.shape, problem.table.dim))
        own, places = np.unique(problem.batch.ids[free], return_inverse=True)
        if own.size:
            embeddings[free] = problem.table.rows(own)[places]
        zeros = np.zeros(embeddings.shape)
        return replace(state, arrays={"embeddings": embeddings, "mean": zeros, "square": zeros})

    def step(self, problem: Problem, state: State, active: np.ndarray, number: int) -> State:
        """Return the state after a step."""
        examples = np.flatnonzero(active)
        texts = problem.original.take(examples)
        rows, positions = np.nonzero(texts.free)
        embeddings = state.arrays["embeddings"]
        if len(rows):
            ids = nearest_ids(embeddings[examples[rows], positions], problem.table, problem.allowed_ids)
            changed = texts.ids.copy()
            changed[rows, positions] = ids
            texts = replace(texts, ids=changed)
        values, gradients = np.empty(len(texts)), np.empty((*texts.free.shape, problem.table.dim))
        for places, objectives, at_word, _ in problem.each_gradient(texts):
            values[places] = objectives
            gradients[places] = at_word
        arrays = {name: array.copy() for name, array in state.arrays.items()}
        self._update(arrays, examples, -problem.sign * gradients, number + 1)
        stable = problem.stable(texts)
        improved = state.improve(problem.sign, texts.take(stable), values[stable])
        current_values = state.values.copy()
        current_values[examples] = values
        return State(improved.best, improved.objective, state.current.put(examples, texts), current_values, arrays)

    def _update(self, arrays: dict[str, np.ndarray], examples: np.ndarray, gradients: np.ndarray, time: int) -> None:
        """Make a step of AdamW downhill, in place, as PyTorch makes it; `time` counts from 1."""
        embeddings, mean, square = (arrays[name][examples] for name in ("embeddings", "mean", "square"))
        embeddings *= 1 - self.learning_rate * self.weight_decay
        mean += (1 - BETAS[0]) * (gradients - mean)
        square *= BETAS[1]
        square += (1 - BETAS[1]) * gradients**2
        root = np.sqrt(square) / np.sqrt(1 - BETAS[1] ** time) + EPSILON
        embeddings -= self.learning_rate / (1 - BETAS[0] ** time) * mean / root
        for name, array in (("embeddings", embeddings), ("mean", mean), ("square", square)):
            arrays[name][examples] = array


def nearest_ids(embeddings: np.ndarray, table: TableReader, allowed: np.ndarray) -> np.ndarray:
    """Return for each embedding the id whose row has the largest cosine similarity; of equal ones the lowest id.

    Args:
        embeddings: shape (n, dim).
        table: reads the rows.
        allowed: the ids to choose from, int64, ascending, one at least.

    Returns:
        int64, shape (n,).
    """
    # Of one embedding all similarities are divided by its length alike, which therefore does not matter.
    wide = embeddings.astype(np.float64)
    best = np.full(len(wide), -np.inf)
    ids = np.full(len(wide), allowed[0])
    for start in range(0, len(allowed), ROWS):
        block = allowed[start : start + ROWS]
        rows = table.rows(block).astype(np.float64)
        lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        lengths[lengths == 0] = 1
        for first in range(0, len(wide), EMBEDDINGS):
            part = slice(first, first + EMBEDDINGS)
            similarity = wide[part] @ rows.T / lengths
            similarity[np.isnan(similarity)] = -np.inf  # as of rows of unused ids that hold NaN
            place = similarity.argmax(1)
            largest = similarity[np.arange(len(place)), place]
            nearer = largest > best[part]
            best[part] = np.where(nearer, largest, best[part])
            ids[part] = np.where(nearer, block[place], ids[part])
    return ids
