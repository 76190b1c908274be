"""An interrupted search goes on from its file in PyTorch, and ends bit for bit as an uninterrupted one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import embgrad

IDS = np.random.default_rng(5).integers(0, 50, (3, 7))
OBJECTIVE = embgrad.Logit(4, position=-1)


def model() -> Any:
    torch.manual_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=16)).eval()


@pytest.mark.parametrize(
    "method", [embgrad.methods.GCG(steps=4, candidates=12, top=8), embgrad.methods.HotFlip(steps=3, candidates=12)]
)
def test_a_search_interrupted_between_any_two_steps_ends_as_if_it_had_not_been(tmp_path: Path, method: Any) -> None:
    built = model()
    whole = embgrad.search(built, IDS, OBJECTIVE, method)
    for stop in range(method.steps + 1):
        path = tmp_path / f"{stop}.safetensors"

        def interrupt(done: int, total: int, stop: int = stop) -> None:
            if done == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            embgrad.search(built, IDS, OBJECTIVE, method, to=path, progress=interrupt)
        again = embgrad.search(model(), IDS, OBJECTIVE, method, to=path)
        assert again.batch == whole.batch
        for name in ("objective", "ids", "evaluations", "gradients"):
            assert getattr(again.history, name).tobytes() == getattr(whole.history, name).tobytes()


def test_other_weights_are_another_search(tmp_path: Path) -> None:
    built, path = model(), tmp_path / "run.safetensors"
    embgrad.search(built, IDS, OBJECTIVE, embgrad.methods.GCG(steps=1, candidates=2), to=path)
    with torch.no_grad():
        built.transformer.h[1].mlp.c_proj.bias[3] += 1e-3
    with pytest.raises(embgrad.errors.FileFormatError, match="holds another search: weights was "):
        embgrad.search(built, IDS, OBJECTIVE, embgrad.methods.GCG(steps=1, candidates=2), to=path)
