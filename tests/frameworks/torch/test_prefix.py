"""Texts that begin alike, run from where they differ: causal language models with a cache of keys and values, and others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers

import embgrad
from embgrad.backend.registry import bind
from embgrad.token_search.prefix import SharedPrefixes

VOCAB, LENGTH, TARGET = 40, 16, 12
SMALL = {
    "vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "initializer_range": 0.4, "pad_token_id": 0,
}  # fmt: skip
ROTARY = {**SMALL, "num_key_value_heads": 1, "head_dim": 8}
WINDOW = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
GPT2 = {"vocab_size": VOCAB, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "initializer_range": 0.4}
ENDS = {"bos_token_id": 1, "eos_token_id": 1}

CAUSAL = {
    "GPT2LMHeadModel": ("GPT2Config", {**GPT2, **ENDS}),
    "LlamaForCausalLM": ("LlamaConfig", ROTARY),
    "Gemma3ForCausalLM": ("Gemma3TextConfig", {**ROTARY, **WINDOW}),
    "Qwen3ForCausalLM": ("Qwen3Config", ROTARY),
    "MistralForCausalLM": ("MistralConfig", {**ROTARY, "sliding_window": 4}),
    "GPTNeoXForCausalLM": ("GPTNeoXConfig", {**SMALL, **ENDS}),
}


def made(name: str, config: str, settings: Any, dtype: Any = torch.float32) -> Any:
    torch.manual_seed(0)
    model = getattr(transformers, name)(getattr(transformers, config)(**settings))
    return model.to(dtype).eval()


def gpt2(dtype: Any = torch.float32, **settings: Any) -> Any:
    return made("GPT2LMHeadModel", "GPT2Config", {**GPT2, **ENDS, **settings}, dtype)


def texts(count: int = 12) -> np.ndarray:
    """Return texts that differ from one another in one of the positions 3 to 9."""
    random = np.random.default_rng(0)
    ids = np.tile(random.integers(2, VOCAB, LENGTH), (count, 1))
    places = 3 + np.arange(count) % 7
    ids[np.arange(count), places] = (ids[0, places] + 1 + np.arange(count) // 7 - 2) % (VOCAB - 2) + 2
    return ids


IDS = texts()
LABELS = np.where(np.arange(LENGTH) >= TARGET, IDS, -100)
OBJECTIVE = embgrad.LogProbability(LABELS)


def shared(
    model: Any, batch: Any = None, objective: Any = OBJECTIVE, call: Any = None, batch_size: int | None = None
) -> tuple[np.ndarray, SharedPrefixes]:
    batch = embgrad.TokenBatch(IDS) if batch is None else batch
    prefixes = SharedPrefixes(bind(model, call), batch_size)
    return prefixes.evaluate(batch, np.zeros(len(batch), int), objective), prefixes


@pytest.mark.parametrize("name", CAUSAL)
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-5), (torch.float64, 1e-12)], ids=str)
def test_the_objective_is_that_of_whole_texts(name: str, dtype: Any, rtol: float) -> None:
    model = made(name, *CAUSAL[name], dtype)
    values, prefixes = shared(model)
    assert prefixes.describe() == {"prefix_cache": True}
    np.testing.assert_allclose(values, embgrad.evaluate(model, IDS, OBJECTIVE), rtol=rtol)


def test_a_model_that_keeps_nothing_by_default_is_asked_to() -> None:
    values, prefixes = shared(gpt2(torch.float64, use_cache=False))
    assert prefixes.describe() == {"prefix_cache": True}
    np.testing.assert_allclose(values, embgrad.evaluate(gpt2(torch.float64), IDS, OBJECTIVE), rtol=1e-12)


def test_a_text_is_run_from_where_it_differs_to_the_last_row_that_is_read() -> None:
    model = gpt2()
    lengths: list[tuple[int, int]] = []
    model.transformer.wte.register_forward_hook(
        lambda module, arguments, output: lengths.append(tuple(arguments[0].shape))
    )
    _, prefixes = shared(model, batch_size=2)
    assert prefixes.used
    whole = LENGTH - 1  # the last token predicts nothing
    assert lengths[:3] == [(1, whole), (1, LENGTH), (1, LENGTH)]  # the shared text, and the trial
    assert sum(count * length for count, length in lengths[3:]) < 0.7 * IDS.size
    assert {length for _, length in lengths[3:]} <= {whole - at for at in range(3, 10)}


def reason(model: Any, **options: Any) -> str:
    values, prefixes = shared(model, **options)
    assert np.isnan(values).all()
    assert not prefixes.used
    return str(prefixes.describe()["without_prefix_cache"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_a_model_whose_rows_depend_on_later_tokens_runs_whole_texts(dtype: Any) -> None:
    """It takes keys and values, and is no decoder; in half precision its error is within that of rounding."""
    settings = {**SMALL, "initializer_range": 0.02}
    assert "differ" in reason(made("BertLMHeadModel", "BertConfig", settings, dtype))


def test_models_that_keep_nothing_run_whole_texts() -> None:
    assert reason(made("BertForMaskedLM", "BertConfig", SMALL)) == "the model does not take what it kept of a text"
    mamba = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2}
    assert reason(made("MambaForCausalLM", "MambaConfig", mamba))


@pytest.mark.parametrize("position", [1, 13])
def test_a_hook_at_a_position_of_the_whole_text_runs_whole_texts(position: int) -> None:
    model = gpt2()

    def steer(module: Any, arguments: Any, output: Any) -> Any:
        if output.shape[1] > position:
            output[:, position, 0] += 1
        return output

    model.transformer.wte.register_forward_hook(steer)
    assert "differ" in reason(model)
