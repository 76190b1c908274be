"""compile=True on real models, by PyTorch's own compiler, against the plain pass."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn

import embgrad
from tests.frameworks.torch import compiling

#: In float32, of which compiled code adds up in another order.
agree = partial(compiling.agree, rel=1e-5)

ENCODER = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}

#: By architecture, the rest of the class's name and the configuration.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Bert": ("ForSequenceClassification", ENCODER),
    "Roberta": ("ForSequenceClassification", ENCODER),
    "DistilBert": ("ForSequenceClassification", {"dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 16}),
    "GPT2": ("LMHeadModel", {"n_embd": 8, "n_layer": 2, "n_head": 2}),
    "Llama": ("ForCausalLM", {**ENCODER, "num_key_value_heads": 1}),
    "T5": ("ForConditionalGeneration", {"d_model": 8, "d_kv": 4, "d_ff": 16, "num_layers": 2, "num_heads": 2}),
}


class Convolving(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 8)
        self.convolved = nn.Sequential(nn.Conv1d(8, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten())
        self.head = nn.Linear(8, 2)

    def forward(self, input_ids: Any) -> Any:
        return self.head(self.convolved(self.table(input_ids).transpose(1, 2)))


def batch_for(name: str, examples: int, positions: int) -> dict[str, Any]:
    random = np.random.default_rng(examples * 100 + positions)
    ids = random.integers(3, 40, (examples, positions))
    mask = np.ones_like(ids)
    if positions > 2:
        mask[-1, -2:] = 0
    further = {"decoder_input_ids": random.integers(3, 40, (examples, 3))} if name == "T5" else {}
    return {"input_ids": ids, "attention_mask": mask, **further}


def objective_for(name: str) -> Any:
    if name == "T5":
        return lambda out: out.logits[:, 0, 1]
    return embgrad.Logit(1, position=0) if name in ("GPT2", "Llama") else embgrad.Logit(1)


def build(name: str) -> Any:
    torch.manual_seed(0)
    kind, settings = MODELS[name]
    config = getattr(transformers, f"{name}Config")(vocab_size=40, **settings)
    return getattr(transformers, f"{name}{kind}")(config).eval()


@pytest.fixture(scope="module")
def compiled_bert() -> Any:
    return build("Bert")


def test_an_epsilon_and_weights_that_change(compiled_bert: Any) -> None:
    batch = batch_for("Bert", 3, 7)
    before = agree(compiled_bert, batch, embgrad.Logit(1)).values
    norm = compiled_bert.bert.encoder.layer[1].output.LayerNorm
    norm.eps, kept = 0.5, norm.eps
    assert np.abs(agree(compiled_bert, batch, embgrad.Logit(1)).values - before).max() > 1e-3 * np.abs(before).max()
    norm.eps = kept
    with torch.no_grad():
        for parameter in compiled_bert.parameters():
            parameter.mul_(1.1)
    agree(compiled_bert, batch, embgrad.Logit(1))


def test_several_pullbacks_run_through_one_compiled_graph(compiled_bert: Any) -> None:
    """Also where the same graph was compiled for one pullback before, and PyTorch keeps what it has compiled."""
    batch = batch_for("Bert", 3, 7)
    agree(compiled_bert, batch, embgrad.Logit(1), split=True)
    agree(compiled_bert, batch, lambda out: out.logits[:, 0], split=True)


def test_the_recursion_limit_is_restored() -> None:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1200)
    try:
        agree(Convolving().eval(), batch_for("Bert", 4, 6)["input_ids"], embgrad.Logit(1))
        assert sys.getrecursionlimit() == 1200
    finally:
        sys.setrecursionlimit(before)


def test_code_that_the_user_compiled_for_one_pullback_is_not_taken() -> None:
    model, ids = Convolving().eval(), torch.tensor(batch_for("Bert", 3, 7)["input_ids"])
    compiled = torch.compile(model.convolved, fullgraph=True, dynamic=True)
    compiled(model.table(ids).transpose(1, 2)).sum().backward()
    agree(model, ids.numpy(), embgrad.Logit(1), split=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["GPT2", "Llama", "T5"])
def test_other_models_run_compiled(name: str) -> None:
    model = build(name)
    for shape in ((3, 7), (2, 9)):
        agree(model, batch_for(name, *shape), objective_for(name))


@pytest.mark.usefixtures("graphs")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["Roberta", "DistilBert", "GPT2", "Llama", "T5"])
def test_lengths_and_numbers_of_examples(name: str) -> None:
    model = build(name)
    for shape in ((2, 7), (5, 2), (2, 33), (1, 7), (1, 2)):
        agree(model, batch_for(name, *shape), objective_for(name))


@pytest.mark.usefixtures("graphs")
def test_a_native_objective_finds_caches_and_hidden_states() -> None:
    """Caches of keys and values, hidden states and attention are there as in a plain pass."""
    model = build("GPT2")
    model.config.output_hidden_states = True

    def objective(out: Any) -> Any:
        cache = out.past_key_values
        keys = cache.layers[0].keys if hasattr(cache, "layers") else cache[0][0]  # transformers before 4.54
        assert keys.shape[2] == 7
        assert type(out).__name__ == "CausalLMOutputWithCrossAttentions"
        return out["logits"][:, 0, 1] + out.hidden_states[1][:, 0].sum(-1) + keys.sum((1, 2, 3))

    agree(model, batch_for("GPT2", 3, 7), objective)


@pytest.mark.usefixtures("graphs")
def test_compiled_gradients_agree_with_finite_differences() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", embgrad.EmbgradWarning)
        checked = embgrad.gradients(
            build("Bert").double(), batch_for("Bert", 2, 5), embgrad.CrossEntropy([0, 1]), compile=True, check=True
        )
    assert checked.certificate is not None
    assert checked.provenance["compiled"] is True


def test_a_missing_compiler_is_reported() -> None:
    source = """
import warnings, numpy as np, torch, embgrad
from torch import nn
model = nn.Sequential(nn.Embedding(9, 4), *(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2)))
ids = np.array([[1, 2, 3], [4, 5, 6]])
plain = embgrad.gradients(model, ids, embgrad.Sum())
for _ in range(3):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = embgrad.gradients(model, ids, embgrad.Sum(), compile=True)
    print([str(one.message) for one in said if issubclass(one.category, embgrad.EmbgradWarning)])
    assert np.array_equal(found.values, plain.values) and found.provenance["compiled"] is False
"""
    environment = {**os.environ, "CXX": "/nowhere/g++", "PATH": "", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    run = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, env=environment, check=False)
    assert run.returncode == 0, run.stderr
    said = run.stdout.strip().splitlines()
    assert len(said) == 3
    assert all("compile=True: Sequential: No working C++ compiler found" in line for line in said), said
