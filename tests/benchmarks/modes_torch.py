"""PyTorch: the forward pass, the gradient by hand, and all weights' gradients."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

import embgrad
from tests.benchmarks.cases import POSITION, Case
from tests.benchmarks.measuring import Mode

Inputs = Mapping[str, torch.Tensor]


@functools.cache
def _model(checkpoint: str) -> Any:
    return embgrad.zoo.load_bert(checkpoint, "torch")


@functools.cache
def _frozen(checkpoint: str) -> Any:
    """Return the model with frozen weights in the same memory, whose place may affect the time."""
    model = _model(checkpoint)
    frozen = {id(weight): torch.nn.Parameter(weight.data, requires_grad=False) for weight in model.parameters()}
    return copy.deepcopy(model, frozen)


def _total(objective: str, outputs: Any) -> Any:
    return outputs.pooler_output.sum() if objective == "pooled" else outputs.last_hidden_state[:, POSITION].sum()


def plain(case: Case) -> Mode:
    model, frozen, inputs = _model(case.checkpoint), _frozen(case.checkpoint), _inputs(case)
    batch = case.batch()
    total = functools.partial(_total, case.objective)
    return Mode(
        forward=lambda: _without_gradients(model, inputs),
        by_hand={
            "a hook that detaches the rows": lambda: _by_hook(model, inputs, total),
            "the same, the model frozen for good": lambda: _by_hook(frozen, inputs, total),
            "inputs_embeds, the model frozen for good": lambda: _by_rows(
                case, inputs, lambda rows, others: total(frozen(inputs_embeds=rows, **others))
            ),
        },
        backward=lambda: _backward(model, lambda: total(model(**inputs))),
        gradients=lambda: embgrad.gradients(model, batch, case.embgrad_objective()),
        saved=lambda function: saved_for_backward(function, model, frozen),
    )


MODES = {"PyTorch": plain}


def saved_for_backward(function: Callable[[], Any], *models: Any) -> int:
    """Return the bytes kept for the backward pass, each memory counted once, without the models' own."""
    weights = (weight for model in models for weight in (*model.parameters(), *model.buffers()))
    owned = {weight.untyped_storage().data_ptr() for weight in weights}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in owned:
            kept[memory.data_ptr()] = max(memory.nbytes(), kept.get(memory.data_ptr(), 0))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function()
    return sum(kept.values())


def _inputs(case: Case) -> Inputs:
    return {name: torch.tensor(value) for name, value in case.batch().to_huggingface().items()}


def _without_gradients(model: Any, inputs: Inputs) -> Any:
    with torch.no_grad():
        return model(**inputs)


def _by_hook(model: Any, inputs: Inputs, total: Callable[[Any], Any]) -> np.ndarray:
    outputs, rows = with_separate_rows(model, inputs)
    return np.asarray(torch.autograd.grad(total(outputs), rows)[0].numpy())


def with_separate_rows(model: Any, inputs: Inputs) -> tuple[Any, list[torch.Tensor]]:
    """Return the model's outputs, and the rows that a hook has detached from the table."""
    kept: list[torch.Tensor] = []

    def hook(module: Any, arguments: Any, output: torch.Tensor) -> torch.Tensor:
        kept.append(output.detach().requires_grad_())
        return kept[0]

    handle = model.embeddings.word_embeddings.register_forward_hook(hook)
    try:
        return model(**inputs), kept
    finally:
        handle.remove()


def _by_rows(case: Case, inputs: Inputs, objective: Callable[[Any, Any], Any]) -> np.ndarray:
    table = _model(case.checkpoint).embeddings.word_embeddings.weight.detach()
    rows = torch.nn.functional.embedding(inputs["input_ids"], table).requires_grad_()
    others = {name: value for name, value in inputs.items() if name != "input_ids"}
    return np.asarray(torch.autograd.grad(objective(rows, others), rows)[0].numpy())


def _backward(model: Any, objective: Callable[[], Any]) -> None:
    objective().backward()
    model.zero_grad(set_to_none=True)
