"""The suite's models in the NumPy reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from embgrad.testing.faults import obtain
from embgrad.testing.harness import ARCHITECTURES
from embgrad.testing.reference import ReferenceModel, Tensor, lookup, pull_back
from embgrad.testing.snapshot import Same
from embgrad.testing.tensors import hearing, observing


def _classify(model: Any, hidden: Tensor) -> Tensor:
    return hidden @ model["W"] + model["b"]


def _mean(model: Any, input_ids: np.ndarray) -> Tensor:
    return _classify(model, lookup(model["E"], input_ids).mean(1))


def _hidden_layer(model: Any, hidden: Tensor) -> Tensor:
    return (hidden @ model["W1"] + model["b1"]).tanh()


def _hidden(model: Any, input_ids: np.ndarray) -> Tensor:
    return _classify(model, _hidden_layer(model, lookup(model["E"], input_ids).mean(1)))


def _probabilities(model: Any, input_ids: np.ndarray) -> Tensor:
    return _mean(model, input_ids).softmax()


def _masked(model: Any, input_ids: np.ndarray, attention_mask: np.ndarray | None = None) -> Tensor:
    rows = lookup(model["E"], input_ids)
    mask = np.ones(input_ids.shape) if attention_mask is None else attention_mask
    share = (mask / mask.sum(1, keepdims=True)).astype(rows.value.dtype)
    return _classify(model, (rows * Tensor(share[..., None])).sum(1))


def _positions(model: Any, input_ids: np.ndarray) -> Tensor:
    return _classify(model, _hidden_layer(model, lookup(model["E"], input_ids)))


def _named(model: Any, input_ids: np.ndarray) -> dict[str, Tensor]:
    sequence = _hidden_layer(model, lookup(model["E"], input_ids))
    return {"last_hidden_state": sequence, "pooler_output": sequence.mean(1)}


def _twice(model: Any, input_ids: np.ndarray) -> Tensor:
    plain = lookup(model["E"], input_ids).mean(1)
    return _classify(model, plain + lookup(model["E"], input_ids).tanh().mean(1))


def _two_tables(model: Any, input_ids: np.ndarray) -> Tensor:
    plain = lookup(model["E"], input_ids).mean(1)
    return _classify(model, plain + lookup(model["E2"], input_ids).tanh().mean(1))


def _flat(model: Any, input_ids: np.ndarray) -> Tensor:
    rows = lookup(model["E"], input_ids.reshape(-1))
    return _classify(model, rows.reshape(*input_ids.shape, rows.value.shape[-1]).mean(1))


def _time_major(model: Any, input_ids: np.ndarray) -> Tensor:
    return _classify(model, lookup(model["E"], input_ids.T).mean(0))


def _scaled(model: Any, input_ids: np.ndarray) -> Tensor:
    return _classify(model, (lookup(model["E"], input_ids) * 3.0).mean(1))


def _positional(model: Any, input_ids: np.ndarray) -> Tensor:
    positions = lookup(model["E2"], np.arange(input_ids.shape[1])[None])
    return _classify(model, (lookup(model["E"], input_ids) + positions).tanh().mean(1))


def _dropout(model: Any, input_ids: np.ndarray) -> Tensor:
    hidden = _hidden_layer(model, lookup(model["E"], input_ids).mean(1))
    return _classify(model, model.dropout(hidden, 0.5))


def _detached(model: Any, input_ids: np.ndarray) -> Tensor:
    return _classify(model, lookup(model["E"], input_ids).mean(1).detach())


def _no_lookup(model: Any, input_ids: np.ndarray) -> Tensor:
    means = Tensor(input_ids.mean(1, keepdims=True).astype(model["W"].value.dtype))
    return means @ Tensor(model["W"].value[:1]) + model["b"]


def _embedded(model: Any, input_ids: np.ndarray) -> Tensor:
    def embed(ids: np.ndarray) -> Tensor:
        return lookup(model["E"], ids) + lookup(model["E2"], np.arange(ids.shape[1])[None])

    return model.module("embed", embed, input_ids)


def _block(model: Any, path: str, number: str, hidden: Tensor) -> Tensor:
    def block(hidden: Tensor) -> tuple[Tensor, Tensor]:
        bent = (hidden @ model[f"W1{number}"] + model[f"b1{number}"]).tanh()
        return hidden + bent, bent

    return model.module(path, block, hidden)[0]


def _layers(model: Any, input_ids: np.ndarray, between: Callable[[Tensor], Tensor] = lambda hidden: hidden) -> Tensor:
    hidden = between(_block(model, "layers.0", ".0", _embedded(model, input_ids)))
    for number in (1, 2):
        hidden = _block(model, f"layers.{number}", f".{number}", hidden)
    return _classify(model, hidden.mean(1))


def _interrupted(model: Any, input_ids: np.ndarray) -> Tensor:
    def telling(hidden: Tensor) -> Tensor:
        obtain("forward")
        return Tensor(hidden.value, [(hidden, back)])

    def back(gradient: np.ndarray) -> np.ndarray:
        obtain("backward")
        return gradient

    return _layers(model, input_ids, telling)


def _repeated(model: Any, input_ids: np.ndarray) -> Tensor:
    hidden = _embedded(model, input_ids)
    for _ in range(3):
        hidden = _block(model, "layer", "", hidden)
    return _classify(model, hidden.mean(1))


def _tied(model: Any, input_ids: np.ndarray) -> Tensor:
    hidden = _hidden_layer(model, lookup(model["E"], input_ids))
    return hidden @ model["E"].swap(0, 1)


def _mixing(model: Any, input_ids: np.ndarray) -> Tensor:
    means = lookup(model["E"], input_ids).mean(1)
    return _classify(model, means + means.mean(0) * -1.0)


def _broken(model: Any, input_ids: np.ndarray) -> Tensor:
    means = lookup(model["E"], input_ids).mean(1)
    return _classify(model, Tensor(means.value, [(means, lambda g: 2 * g)]))


def _raises(model: Any, input_ids: np.ndarray) -> Tensor:
    lookup(model["E"], input_ids)
    raise RuntimeError("the model broke")


FORWARDS = {name: globals()[f"_{name}"] for name in ARCHITECTURES}


class Harness:
    backend = "reference"
    precisions = ("float64", "float32")

    def build(
        self, architecture: str, weights: Mapping[str, np.ndarray], *, dtype: str | None = None, frozen: bool = False
    ) -> ReferenceModel:
        typed = {name: value.astype(dtype or value.dtype) for name, value in weights.items()}
        if architecture in ("layers", "interrupted"):  # each has weights of its own
            typed |= {f"{name}.{number}": typed[name].copy() for name in ("W1", "b1") for number in range(3)}
        modules = ("embed", *(f"layers.{number}" for number in range(3))) if architecture == "layers" else ()
        return ReferenceModel(
            FORWARDS[architecture], typed, modules
        )  # nothing in the reference is trained, so all is frozen

    def train(self, model: ReferenceModel) -> None:
        model.training = True

    def table_gradient(self, model: ReferenceModel, ids: np.ndarray, labels: np.ndarray) -> np.ndarray:
        logits = model(ids)
        cotangent = logits.softmax().value - np.eye(logits.value.shape[-1])[labels]
        (gradient,) = pull_back([(logits, cotangent)], [model["E"]])
        assert gradient is not None
        return gradient

    def state(self, model: ReferenceModel) -> Mapping[str, Any]:
        return {
            "attributes": {name: Same(one) for name, one in vars(model).items() if name != "training"},
            "training": model.training,
            "methods": {name: Same(one) for name, one in vars(ReferenceModel).items()},
            "observed": (observing.get(), hearing.get()),
            "parameters": {name: (Same(one), one.value.tobytes()) for name, one in model.parameters.items()},
            "random": None if model.training else str(model.random.bit_generator.state),
        }

    def seed(self, seed: int) -> None:
        """There is none beside the models' own, which `state` shows."""

    def draw_states(self) -> None:
        """There is none."""

    def disturb(self, model: ReferenceModel) -> None:
        model.training = True

    def parameter(self, model: ReferenceModel, weight: str) -> tuple[str, bool]:
        return weight, False

    def step(self, model: ReferenceModel, ids: np.ndarray, labels: np.ndarray, rate: float = 0.1) -> None:
        logits = model(ids)
        cotangent = (logits.softmax().value - np.eye(logits.value.shape[-1])[labels]) / len(ids)
        parameters = list(model.parameters.values())
        for parameter, gradient in zip(parameters, pull_back([(logits, cotangent)], parameters), strict=True):
            if gradient is not None:
                parameter.value = parameter.value - rate * gradient

    def logit(self, index: int) -> Callable[[Any], Any]:
        return lambda logits: logits.column(index)

    def summed_logit(self, index: int) -> Callable[[Any], Any]:
        return lambda logits: logits.column(index).sum(0)
