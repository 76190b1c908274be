"""Blocks of transformers for which gradient checkpointing is enabled run again in a pullback, and change no value."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from torch.utils.checkpoint import checkpoint

import embgrad

LOSS = embgrad.Logit(1)

SMALL: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}


def llama() -> Any:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=100, **SMALL))


def gpt2() -> Any:
    config = {"n_layer": 3, "n_embd": 32, "n_head": 4, "vocab_size": 100, "bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**config))


def bart() -> Any:
    """Return an encoder-decoder whose blocks themselves drop numbers in training."""
    config = {"encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "d_model": 32}
    heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "dropout": 0.5, "vocab_size": 100}
    return transformers.BartForConditionalGeneration(transformers.BartConfig(**config, **heads))


def bert() -> Any:
    return transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=100, **SMALL))


def of_tokens(model: Any) -> np.ndarray:
    """Return the attribution of three output tokens."""
    ids = np.random.default_rng(0).integers(3, 99, (2, 9))
    batch = {"input_ids": ids, **({"decoder_input_ids": ids[:, :6]} if model.config.is_encoder_decoder else {})}
    return np.asarray(embgrad.attribute_tokens(model, batch, slice(-3, None)).scores)


def of_class(model: Any) -> np.ndarray:
    return np.asarray(embgrad.gradients(model, np.random.default_rng(0).integers(3, 99, (2, 9)), LOSS).values)


def test_a_block_whose_flag_alone_is_set_runs_as_it_is() -> None:
    model = llama().eval()
    before = of_class(model)
    for block in model.model.layers:
        block.gradient_checkpointing = True
    np.testing.assert_array_equal(of_class(model), before)


def states(model: Any) -> dict[str, Any]:
    """Return what gradient checkpointing sets at each module."""
    return {
        name: (module.training, vars(module).get("_gradient_checkpointing_func"))
        for name, module in model.named_modules()
    }


def enable(model: Any, options: dict[str, bool] | None = None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the newest transformers has another name for it
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)


def counted(model: Any) -> list[str]:
    """Return the list to which the first linear map adds an entry at each call."""
    runs: list[str] = []
    inner = next(
        module for module in model.modules() if isinstance(module, nn.Linear | transformers.pytorch_utils.Conv1D)
    )
    inner.register_forward_pre_hook(lambda *given: runs.append("a run"))
    return runs


has_blocks = pytest.mark.skipif(
    not hasattr(transformers, "modeling_layers"), reason="in this transformers blocks have no class of their own"
)


@has_blocks
@pytest.mark.parametrize(
    ("make", "call", "again"),
    [(llama, of_tokens, 3), (gpt2, of_tokens, 3), (bart, of_tokens, 0), (bert, of_class, 1)],
)
@pytest.mark.parametrize("options", [None, {"use_reentrant": True}, {"use_reentrant": False}])
def test_they_run_again_in_each_pullback_except_in_encoder_decoders_and_change_no_value(
    make: Callable[[], Any], call: Callable[[Any], np.ndarray], again: int, options: dict[str, bool] | None
) -> None:
    torch.manual_seed(0)
    model = make().eval()
    runs = counted(model)
    call(model)
    runs.clear()
    plain, once = call(model), len(runs)
    enable(model, options)
    before = states(model)
    np.testing.assert_array_equal(call(model), plain)
    assert len(runs) == once + once + again
    assert states(model) == before


@has_blocks
def test_a_block_that_draws_in_evaluation_mode_draws_the_same_again() -> None:
    torch.manual_seed(0)
    model = llama().eval()
    for block in model.model.layers:
        block.mlp.register_forward_hook(lambda module, given, made: nn.functional.dropout(made, 0.5, training=True))
    plain = of_class(model)
    enable(model)
    np.testing.assert_array_equal(of_class(model), plain)


@has_blocks
def test_a_block_gets_no_cache_to_which_a_second_run_would_add() -> None:
    class Cache:
        pass

    class Own(Cache):
        pass

    seen: list[Any] = []

    class Block(transformers.modeling_layers.GradientCheckpointingLayer):  # type: ignore[misc]
        def forward(self, rows: Any, first: Any, second: Any, further: Any = None, use_cache: Any = None) -> Any:
            seen.append((first, second, further, use_cache))
            return rows.tanh()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.block = nn.Embedding(9, 4), Block()

        def forward(self, ids: Any) -> Any:
            return self.block(self.table(ids), Own(), 3, further=Cache(), use_cache=True).sum(1)

    model = Net().eval()
    model.block.gradient_checkpointing = True
    model.block._gradient_checkpointing_func = functools.partial(checkpoint, use_reentrant=False)
    embgrad.gradients(model, np.array([[5, 6, 7]]), LOSS)
    assert seen[:2] == [(None, 3, None, False)] * 2  # another pass follows, without a pullback


@has_blocks
def test_a_point_inside_a_block_or_at_it_runs_once() -> None:
    torch.manual_seed(0)
    model = llama().eval()
    enable(model)
    runs = counted(model)
    for at in ("layer.1", "model.layers.1.mlp", "embeddings"):
        embgrad.gradients(model, np.array([[5, 6, 7]]), LOSS, at=at)
        assert len(runs) == 1
        runs.clear()


@has_blocks
def test_nothing_is_left_of_an_exception_in_a_block() -> None:
    def fail(*given: Any) -> None:
        raise OSError("on purpose")

    model = llama().eval()
    enable(model)
    before = states(model)
    model.model.layers[1].mlp.register_forward_pre_hook(fail)
    with pytest.raises(OSError, match="on purpose"):
        embgrad.gradients(model, np.array([[5, 6, 7]]), LOSS)
    assert states(model) == before
