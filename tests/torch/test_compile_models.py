"""`compile=True` on models of transformers: what the compiled pieces give is what the models give."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import embgrad
from tests.torch import kept_traces

#: In float32, of which compiled code adds up in another order.
agree = partial(kept_traces.agree, rel=1e-5)

SIZES: dict[str, Any] = {"vocab_size": 40}
ENCODER = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def bert() -> Any:
    return transformers.BertForSequenceClassification(transformers.BertConfig(**SIZES, **ENCODER))


def roberta() -> Any:
    return transformers.RobertaForSequenceClassification(transformers.RobertaConfig(**SIZES, **ENCODER))


def distilbert() -> Any:
    config = transformers.DistilBertConfig(**SIZES, dim=8, n_layers=1, n_heads=2, hidden_dim=16)
    return transformers.DistilBertForSequenceClassification(config)


def gpt2() -> Any:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES, n_embd=8, n_layer=1, n_head=2))


def llama() -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **ENCODER, num_key_value_heads=1))


def t5() -> Any:
    config = transformers.T5Config(**SIZES, d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    return transformers.T5ForConditionalGeneration(config)


def batch_for(build: Any, examples: int, positions: int) -> dict[str, Any]:
    random = np.random.default_rng(examples * 100 + positions)
    ids = random.integers(3, 40, (examples, positions))
    mask = np.ones_like(ids)
    if positions > 2:
        mask[-1, -2:] = 0
    more = {"decoder_input_ids": random.integers(3, 40, (examples, 3))} if build is t5 else {}
    return {"input_ids": ids, "attention_mask": mask, **more}


def objective_for(build: Any) -> Any:
    if build is t5:
        return lambda out: out.logits[:, 0, 1]
    return embgrad.Logit(1, position=0) if build in (gpt2, llama) else embgrad.Logit(1)


@pytest.mark.parametrize("build", [bert], ids=lambda build: build.__name__)
def test_compiled_pieces(build: Any, traces: list[Any]) -> None:
    torch.manual_seed(0)
    model = build().eval()
    for shape in ((3, 7), (2, 2), (5, 33)):
        agree(model, batch_for(build, *shape), objective_for(build))
    assert len(traces) == 1
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(1.5)
        for parameter in model.parameters():
            parameter.add_(0.01)
    agree(model, batch_for(build, 4, 6), objective_for(build))
    assert len(traces) == 1


@pytest.mark.slow
def test_compiled_pieces_between_points_and_with_several_pullbacks() -> None:
    torch.manual_seed(0)
    model, batch = gpt2().eval(), batch_for(gpt2, 3, 7)
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


def test_what_is_computed_in_less_than_the_weights_agrees_as_far_as_that_rounds() -> None:
    """As in a Llama of float64, whose norms are computed in float32."""

    class Norming(kept_traces.Net):
        def body(self, rows: Any) -> Any:
            rows = rows.float()
            for _ in range(3):
                rows = (rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + 1e-6)).tanh().exp()
            return rows.double() * 1e4

    agree(Norming(), kept_traces.IDS)


@pytest.mark.slow
def test_compiled_backward_passes_leave_their_operands_to_the_next() -> None:
    """Also where the same graph was compiled for one pullback before, and PyTorch keeps what it has compiled."""

    class Mixing(kept_traces.Net):
        def forward(self, input_ids: Any) -> Any:
            rows = self.rows(input_ids)
            rows = torch.softmax(rows @ rows.transpose(1, 2), -1) @ rows
            for bent in (torch.sin, torch.cos):
                rows = torch.nn.functional.layer_norm(self.inner(rows).tanh() * bent(rows), (6,))
            return self.outer(rows.mean(1))

    model = Mixing()
    kept_traces.agree(model, kept_traces.IDS)
    kept_traces.agree(model, kept_traces.IDS, split=True)


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.sampled(2)
@pytest.mark.parametrize("build", [roberta, gpt2, distilbert, llama, t5], ids=lambda build: build.__name__)
def test_lengths_and_numbers_of_examples(build: Any, traces: list[Any]) -> None:
    torch.manual_seed(0)
    model = build().eval()
    for shape in ((2, 7), (5, 2), (2, 33), (1, 7), (1, 2)):
        agree(model, batch_for(build, *shape), objective_for(build))
    assert len(traces) == 2  # of one example another


@pytest.mark.usefixtures("one_by_one")
def test_native_objectives_on_what_models_return() -> None:
    """Caches of keys and values, hidden states and attention are there as without a trace."""
    torch.manual_seed(0)
    model = gpt2().eval()
    model.config.output_hidden_states = True

    def objective(out: Any) -> Any:
        cache = out.past_key_values
        keys = cache.layers[0].keys if hasattr(cache, "layers") else cache[0][0]  # transformers before 4.54
        assert keys.shape[2] == 7
        assert type(out).__name__ == "CausalLMOutputWithCrossAttentions"
        return out["logits"][:, 0, 1] + out.hidden_states[1][:, 0].sum(-1) + keys.sum((1, 2, 3))

    agree(model, batch_for(gpt2, 3, 7), objective)


@pytest.mark.usefixtures("one_by_one")
def test_points_of_roles() -> None:
    torch.manual_seed(0)
    agree(bert().eval(), batch_for(bert, 3, 7), embgrad.Logit(1), at=["word", "embeddings", "layer.-1"])


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes(dtype: Any) -> None:
    torch.manual_seed(0)
    model, batch = bert().eval().to(dtype), batch_for(bert, 3, 7)
    plain, compiled = (embgrad.gradients(model, batch, embgrad.Logit(1), compile=one) for one in (False, True))
    assert compiled.provenance["compiled"] is True
    assert compiled.provenance["compute_dtype"] == str(dtype).removeprefix("torch.")
    rel = 1e-10 if dtype is torch.float64 else 0.1
    np.testing.assert_allclose(compiled.values, plain.values, rtol=0, atol=rel * np.abs(plain.values).max())


@pytest.mark.usefixtures("one_by_one")
def test_traces_agree_with_finite_differences() -> None:
    torch.manual_seed(0)
    model = bert().double().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error", embgrad.EmbgradWarning)
        checked = embgrad.gradients(
            model, batch_for(bert, 2, 5), embgrad.CrossEntropy([0, 1]), compile=True, check=True
        )
    assert checked.certificate is not None
    assert checked.provenance["compiled"] is True
