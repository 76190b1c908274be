"""The interface between a backend and the conformance suite: native versions of small models, and access to their state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import numpy as np

__all__ = ["ARCHITECTURES", "Harness"]

#: The models of the suite. `E`, `E2` are tables of shape (vocab, dim); `W` (dim, classes), `b` (classes,), `W1` (dim, dim),
#: `b1` (dim,) are weights; `m` is the mask as floats, ones if there is none; `E[ids]` has the shape (example, position, dim),
#: and means are over positions. Each model takes `input_ids`, and those with `m` take `attention_mask`.
ARCHITECTURES: Final[Mapping[str, str]] = {
    "mean": "logits = mean(E[ids]) @ W + b, returned as one array",
    "hidden": "logits = tanh(mean(E[ids]) @ W1 + b1) @ W + b",
    "probabilities": "softmax(mean(E[ids]) @ W + b), returned as one array",
    "masked": "logits = (sum(m * E[ids]) / sum(m)) @ W + b",
    "positions": "logits = tanh(E[ids] @ W1 + b1) @ W + b at each position, (example, position, classes)",
    "named": "a dict: last_hidden_state = tanh(E[ids] @ W1 + b1), pooler_output = mean(last_hidden_state), no logits",
    "twice": "logits = mean(E[ids]) @ W + mean(tanh(E[ids])) @ W + b; one table, looked up twice, the plain one first",
    "two_tables": "logits = mean(E[ids]) @ W + mean(tanh(E2[ids])) @ W + b; E is looked up first",
    "flat": "as mean, but the lookup is made with the ids flattened to one axis, and the result reshaped",
    "time_major": "as mean, but the lookup is made with the ids transposed, (position, example)",
    "scaled": "logits = mean(3 * E[ids]) @ W + b; the point is the raw row, before the factor",
    "positional": "logits = mean(tanh(E[ids] + E2[0..positions-1])) @ W + b; E2 is looked up by position, first",
    "dropout": "as hidden, with dropout of rate 0.5 behind the tanh, where the model is in training mode",
    "detached": "logits = stop_gradient(mean(E[ids])) @ W + b: no gradient reaches the lookup",
    "no_lookup": "logits = mean of the ids as floats, shape (example, 1), @ W[:1] + b: no lookup at all",
    "layers": "x = E[ids] + E2[0..positions-1] in a module that makes both lookups; then three modules of one class in a list, "
    "with weights of their own that begin as W1 and b1: x = x + tanh(x @ W1 + b1), each of which returns the tuple "
    "(x, tanh(...)); logits = mean(x) @ W + b",
    "repeated": "as layers, but one module of that class is called three times",
    "tied": "logits = tanh(E[ids] @ W1 + b1) @ E.T at each position, (example, position, vocab): the head is the table itself",
    "mixing": "logits = (mean(E[ids]) less its mean over the examples) @ W + b: examples meet",
    "broken": "as mean, behind an identity whose custom gradient is twice the right one",
    "raises": "makes the lookup and then raises RuntimeError('the model broke')",
    "interrupted": "as layers, with an identity behind the first layer that calls `faults.obtain('forward')` of "
    "`embgrad.testing`, and `obtain('backward')` in its pullback",
}


class Harness(Protocol):
    """A builder of the suite's models in one framework, with access to their state.

    Each backend has one class, which is instantiated without arguments.

    Attributes:
        backend: the backend's name.
        precisions: the dtypes in which models can be built, "float64" among them.
    """

    backend: str
    precisions: tuple[str, ...]

    def build(
        self, architecture: str, weights: Mapping[str, np.ndarray], *, dtype: str | None = None, frozen: bool = False
    ) -> Any:
        """Return an ordinary model of the framework with these weights, in evaluation mode.

        Args:
            architecture: a key of `ARCHITECTURES`.
            weights: the weights, by the names in `ARCHITECTURES`.
            dtype: the dtype in which the model computes, one of `precisions`; None for that of the weights.
            frozen: make no parameter trainable.
        """
        ...

    def train(self, model: Any) -> None:
        """Set the model to training mode if the framework has a persistent one; otherwise do nothing."""
        ...

    def table_gradient(self, model: Any, ids: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the framework's gradient of the summed cross-entropy with respect to the table E, dense, (vocab, dim)."""
        ...

    def state(self, model: Any) -> Mapping[str, Any]:
        """Return all state that a call must restore, as comparable values.

        These are the parameters' bytes, the gradient buffers and whether they exist, flags such as `requires_grad` or
        `grad_req`, modes, hooks, instance attributes, recording state and process-wide settings.
        """
        ...

    def seed(self, seed: int) -> None:
        """Seed all random generators of the framework."""
        ...

    def draw_states(self) -> Any:
        """Return the state of each generator as comparable values, or the next numbers that it draws, which advances it."""
        ...

    def disturb(self, model: Any) -> None:
        """Give the model state that a call could lose: filled gradient buffers, a user's hook, training mode."""
        ...

    def change_constant(self, model: Any) -> None:
        """Make each of the three modules of "layers" double its tanh from now on, by a plain number that is not a weight.

        Needed only for a backend with the ability "compile".
        """
        ...

    def parameter(self, model: Any, weight: str) -> tuple[str, bool]:
        """Return the name of a weight of `ARCHITECTURES` as in `parameter_gradients`, and whether it is stored transposed."""
        ...

    def step(self, model: Any, ids: np.ndarray, labels: np.ndarray, rate: float = 0.1) -> None:
        """Run one step of a user's training loop with the framework's optimiser.

        The step is gradient descent on the cross-entropy of the logits, averaged over the examples, with the framework's loss,
        backward pass and update. It runs in evaluation mode, so that nothing is random.
        """
        ...

    def logit(self, index: int) -> Callable[[Any], Any]:
        """Return a native objective: it maps the model's logits to their column `index`, of shape (example,)."""
        ...

    def summed_logit(self, index: int) -> Callable[[Any], Any]:
        """Return the native objective of `logit` summed over the examples, a scalar."""
        ...
