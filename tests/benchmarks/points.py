"""The price of a point beside the same gradient by hand: a hook that makes the modules' outputs leaves, in PyTorch."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

import embgrad
from tests.benchmarks.cases import Case, drawn_bert
from tests.benchmarks.measuring import MOST_DISTANCE, distance, in_turns

__all__ = ["prices"]

#: The points of each call.
POINTS: Final = (("word",), ("embeddings",), ("layer.0",), ("layer.-1",), ("word", "layer.0", "layer.-1"))

OBJECTIVE: Final = embgrad.Sum(output="pooled")


def prices(layers: int, dim: int, sizes: Sequence[tuple[int, int]], seconds: float) -> list[dict[str, Any]]:
    """Return the times of `gradients` and of code by hand for each size and each call's points, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = drawn_bert(Path(folder) / "bert", layers=layers, dim=dim, vocab=3000)
        model = embgrad.zoo.load_bert(checkpoint, "torch")
        batches = [Case(checkpoint, *size).batch() for size in sizes]
    rows = []
    for batch, points in [(batch, points) for batch in batches for points in POINTS]:
        functions = {"by hand": _by_hand(model, batch, points), "gradients": _gradients(model, batch, points)}
        expected, actual = functions["by hand"](), functions["gradients"]()
        for point in points:
            if (apart := distance(actual[point].values, expected[point])) > MOST_DISTANCE:
                raise RuntimeError(f"embgrad.gradients at {point!r} is {apart:.1e} from code by hand")
        with _counted(model) as passes:
            functions["gradients"]()
        examples, positions = batch.shape
        about = {"mode": f"PyTorch, {layers} × {dim}", "what": ", ".join(points)}
        about |= {"examples": examples, "positions": positions, "passes": len(passes)}
        rows.append({**about, **in_turns(functions, seconds)})
    return rows


def _gradients(model: Any, batch: embgrad.TokenBatch, points: Sequence[str]) -> Callable[[], Mapping[str, Any]]:
    return lambda: embgrad.gradients(model, batch, OBJECTIVE, at=list(points))


def _by_hand(model: Any, batch: embgrad.TokenBatch, points: Sequence[str]) -> Callable[[], dict[str, np.ndarray]]:
    modules = {
        "word": model.embeddings.word_embeddings,
        "embeddings": model.embeddings,
        "layer.0": model.encoder.layer[0],
        "layer.-1": model.encoder.layer[-1],
    }

    def gradients() -> dict[str, np.ndarray]:
        inputs = {name: torch.tensor(value) for name, value in batch.to_huggingface().items()}
        reached: dict[str, Any] = {}

        def hook(point: str) -> Callable[..., Any]:
            def at_output(module: Any, arguments: Any, output: Any) -> Any:
                tensor, *rest = output if isinstance(output, tuple) else (output,)
                reached[point] = tensor if tensor.requires_grad else tensor.detach().requires_grad_()
                return (reached[point], *rest) if isinstance(output, tuple) else reached[point]

            return at_output

        handles = [modules[point].register_forward_hook(hook(point)) for point in points]
        model.requires_grad_(False)
        try:
            value = model(**inputs).pooler_output.sum()
            pulled = torch.autograd.grad(value, [reached[point] for point in points])
        finally:
            model.requires_grad_(True)
            for handle in handles:
                handle.remove()
        return {point: gradient.numpy() for point, gradient in zip(points, pulled, strict=True)}

    return gradients


@contextlib.contextmanager
def _counted(model: Any) -> Iterator[list[None]]:
    """Count the model's forward passes while the context is open."""
    passes: list[None] = []
    handle = model.register_forward_pre_hook(lambda *_: passes.append(None))
    try:
        yield passes
    finally:
        handle.remove()
