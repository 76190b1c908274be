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

SIZES: dict[str, Any] = {"vocab_size": 40}
ENCODER = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}


def bert() -> Any:
    return transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES, **ENCODER))


def roberta() -> Any:
    return transformers.RobertaForSequenceClassification(transformers.RobertaConfig(**SIZES, **ENCODER))


def distilbert() -> Any:
    config = transformers.DistilBertConfig(**SIZES, dim=8, n_layers=2, n_heads=2, hidden_dim=16)
    return transformers.DistilBertForSequenceClassification(config)


def gpt2() -> Any:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES, n_embd=8, n_layer=2, n_head=2))


def llama() -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **ENCODER, num_key_value_heads=1))


def t5() -> Any:
    config = transformers.T5Config(**SIZES, d_model=8, d_kv=4, d_ff=16, num_layers=2, num_heads=2)
    return transformers.T5ForConditionalGeneration(config)


class Convolving(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 8)
        self.convolved = nn.Sequential(nn.Conv1d(8, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten())
        self.head = nn.Linear(8, 2)

    def forward(self, input_ids: Any) -> Any:
        return self.head(self.convolved(self.table(input_ids).transpose(1, 2)))


def batch_for(build: Any, examples: int, positions: int) -> dict[str, Any]:
    random = np.random.default_rng(examples * 100 + positions)
    ids = random.integers(3, 40, (examples, positions))
    if build is Convolving:
        return {"input_ids": ids}
    mask = np.ones_like(ids)
    if positions > 2:
        mask[-1, -2:] = 0
    more = {"decoder_input_ids": random.integers(3, 40, (examples, 3))} if build is t5 else {}
    return {"input_ids": ids, "attention_mask": mask, **more}


def objective_for(build: Any) -> Any:
    if build is t5:
        return lambda out: out.logits[:, 0, 1]
    return embgrad.Logit(1, position=0) if build in (gpt2, llama) else embgrad.Logit(1)


def built(build: Any) -> Any:
    torch.manual_seed(0)
    return build().eval()


@pytest.fixture(scope="module")
def compiled_bert() -> Any:
    return built(bert)


def test_an_epsilon_and_weights_that_change(compiled_bert: Any) -> None:
    batch = batch_for(bert, 3, 7)
    before = agree(compiled_bert, batch, embgrad.Logit(1)).values
    norm = compiled_bert.bert.encoder.layer[1].output.LayerNorm
    norm.eps, kept = 0.5, norm.eps
    assert np.abs(agree(compiled_bert, batch, embgrad.Logit(1)).values - before).max() > 1e-3 * np.abs(before).max()
    norm.eps = kept
    with torch.no_grad():
        for parameter in compiled_bert.parameters():
            parameter.mul_(1.1)
    agree(compiled_bert, batch, embgrad.Logit(1))


def test_several_pullbacks_leave_their_operands_to_the_next(compiled_bert: Any) -> None:
    """Also where the same graph was compiled for one pullback before, and PyTorch keeps what it has compiled."""
    batch = batch_for(bert, 3, 7)
    agree(compiled_bert, batch, embgrad.Logit(1), split=True)
    agree(compiled_bert, batch, lambda out: out.logits[:, 0], split=True)


def test_the_compiler_leaves_pythons_limit_of_recursion() -> None:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1200)
    try:
        agree(built(Convolving), batch_for(Convolving, 4, 6), embgrad.Logit(1))
        assert sys.getrecursionlimit() == 1200
    finally:
        sys.setrecursionlimit(before)


def test_code_that_the_user_compiled_for_one_pullback_is_not_taken() -> None:
    model, ids = built(Convolving), torch.tensor(batch_for(Convolving, 3, 7)["input_ids"])
    own = torch.compile(model.convolved, fullgraph=True, dynamic=True)
    own(model.table(ids).transpose(1, 2)).sum().backward()
    agree(model, ids.numpy(), embgrad.Logit(1), split=True)


@pytest.mark.slow
@pytest.mark.parametrize("build", [gpt2, llama, t5], ids=lambda build: build.__name__)
def test_other_models(build: Any) -> None:
    model = built(build)
    for shape in ((3, 7), (2, 9)):
        agree(model, batch_for(build, *shape), objective_for(build))


@pytest.mark.slow
def test_between_points_and_with_several_pullbacks() -> None:
    model, batch = built(gpt2), batch_for(gpt2, 3, 7)
    for by in (2.0, -1.0):
        agree(
            model,
            batch,
            embgrad.Logit(1, position=0),
            at=["word", "layer.0"],
            split=True,
            add={"layer.0": np.full(8, by)},
            edit={"layer.0": lambda gradient, by=by: gradient * by},
        )


@pytest.mark.usefixtures("graphs")
@pytest.mark.sampled(1)
@pytest.mark.parametrize("build", [roberta, distilbert, gpt2, llama, t5], ids=lambda build: build.__name__)
def test_lengths_and_numbers_of_examples(build: Any) -> None:
    model = built(build)
    for shape in ((2, 7), (5, 2), (2, 33), (1, 7), (1, 2)):
        agree(model, batch_for(build, *shape), objective_for(build))


def test_which_modules_run_compiled(graphs: list[Any]) -> None:
    model, other, batch = built(bert), built(gpt2), batch_for(bert, 3, 7)
    agree(model, batch, embgrad.Logit(1))
    assert len(graphs) == 2  # the encoder and the pooler
    agree(model, batch, embgrad.Logit(1), at=["word", "embeddings", "layer.-1"])
    assert len(graphs) >= 4  # each layer
    graphs.clear()
    agree(other, batch_for(gpt2, 3, 7), embgrad.Logit(1, position=0))
    assert len(graphs) >= 2


@pytest.mark.usefixtures("graphs")
def test_native_objectives_on_what_models_return() -> None:
    """Caches of keys and values, hidden states and attention are there as in a plain pass."""
    model = built(gpt2)
    model.config.output_hidden_states = True

    def objective(out: Any) -> Any:
        cache = out.past_key_values
        keys = cache.layers[0].keys if hasattr(cache, "layers") else cache[0][0]  # transformers before 4.54
        assert keys.shape[2] == 7
        assert type(out).__name__ == "CausalLMOutputWithCrossAttentions"
        return out["logits"][:, 0, 1] + out.hidden_states[1][:, 0].sum(-1) + keys.sum((1, 2, 3))

    agree(model, batch_for(gpt2, 3, 7), objective)


@pytest.mark.usefixtures("graphs")
def test_compiled_gradients_agree_with_finite_differences() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", embgrad.EmbgradWarning)
        checked = embgrad.gradients(
            built(bert).double(), batch_for(bert, 2, 5), embgrad.CrossEntropy([0, 1]), compile=True, check=True
        )
    assert checked.certificate is not None
    assert checked.provenance["compiled"] is True


def test_without_a_compiler() -> None:
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
