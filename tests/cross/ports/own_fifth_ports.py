"""A fifth list of ports written from scratch, among them two ranks, a server's packed texts, and adapters of low rank.

The list was written down before any of it was tried, without a look at how causes are found. Ports and faults were run for
their outputs alone: a port is its reference's to rounding, and a fault is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch

from tests.cross.ports import twins
from tests.cross.ports.architectures import VOCAB
from tests.cross.ports.own_fault import (
    ATTENTION,
    EPSILON,
    HEADS,
    IDS,
    NORM,
    STREAM,
    SWAP,
    OwnPort,
    own_list,
    planted,
    port_of,
    swapped,
    weights,
)
from tests.cross.ports.own_fifth_torch import product
from tests.cross.ports.own_more_ports import DECODER, drawn
from tests.cross.ports.own_third_ports import Sentences
from tests.cross.ports.own_third_ports import batch as sentences


def _falcon() -> Any:
    """Return Falcon with biases, whose heads share one key and one value."""
    return drawn("FalconForCausalLM", "FalconConfig", **{**DECODER, "num_key_value_heads": None}, bias=True)


def _qwen3() -> Any:
    """Return Qwen3 whose heads are wider than their share of the width."""
    options = {"head_dim": 24, "rope_theta": 1e6, "rms_norm_eps": 1e-5, "tie_word_embeddings": False}
    return drawn("Qwen3ForCausalLM", "Qwen3Config", **DECODER, **options)


def _adapted() -> Any:
    """Return MiniLM with adapters of queries and values that are merged."""
    made = Sentences()
    with torch.no_grad():
        for number, layer in enumerate(made.bert.encoder.layer):
            for part in ("query", "value"):
                layer.attention.self.get_submodule(part).weight += torch.tensor(product(number, part))
    return made.eval()


def _gemma3() -> Any:
    """Return Gemma 3 of eight layers, of which the sixth sees all, further apart."""
    kinds = ["full_attention" if number == 5 else "sliding_attention" for number in range(8)]
    options = {**DECODER, "hidden_size": 96, "num_hidden_layers": 8, "head_dim": 16, "query_pre_attn_scalar": 20}
    options |= {"rope_scaling": {"rope_type": "linear", "factor": 4.0}, "sliding_window": 6, "layer_types": kinds}
    return drawn("Gemma3ForCausalLM", "Gemma3TextConfig", zero_centred=True, **options, final_logit_softcapping=6.0)


def _mbart() -> Any:
    options = {**twins.MODELS["mbart"][1], "scale_embedding": True}
    made = drawn("MBartForConditionalGeneration", "MBartConfig", **options)
    made.final_logits_bias.copy_(torch.tensor(np.random.default_rng(3).normal(0, 0.5, (1, VOCAB))))
    return made


def _gptj() -> Any:
    return drawn("GPTJForCausalLM", "GPTJConfig", **twins.MODELS["gptj"][1], tie_word_embeddings=False)


_PORTS: Final[Mapping[str, OwnPort]] = {
    "parallel-falcon": port_of("llama-lm", "own_fifth_torch", "ParallelFalcon", "", _falcon),
    "served-qwen3": port_of("llama-lm", "own_fifth_torch", "ServedQwen", "", _qwen3),
    "lora-minilm": OwnPort(_adapted, sentences, ("own_fifth_torch", "LoraMinilm")),
    "batched-moe": port_of("llama", "own_fifth_jax", "BatchedMoe", "", lambda: twins.model("qwen2-moe")),
    "einsum-gemma3": port_of("llama-lm", "own_fifth_jax", "einsum_gemma", IDS, _gemma3),
    "functional-mbart": port_of("bart", "own_fifth_keras", "functional_mbart", "", _mbart),
    "graph-gptj": port_of("llama-lm", "own_fifth_tensorflow", "GptJ", "called", _gptj),
    "gluon-gpt2": port_of("gpt2-lm", "own_fifth_gluon", "GluonGpt2", IDS),
}

_MLP: Final = "mlp|intermediate|output.dense|activation|fc"
_GATE: Final = "gate-swapped permuted-weight swapped-weights"
_QKV: Final = "swapped-weights permuted-weight attention-heads"
_RESHAPED: Final = "transposed-weight permuted-weight"
_HEAD_NORMS: Final = "q_norm|k_norm|attn"
_HEAD: Final = "lm_head|output"

_FAULTS: Final = (
    planted("parallel-falcon", "key-before-queries", _QKV, ATTENTION, order="kvq"),
    planted("parallel-falcon", "heads-strided", HEADS, ATTENTION, strided=True),
    planted("parallel-falcon", "bias-twice", "different-weight", ATTENTION, dense_bias="each", may_be_unnamed=True),
    planted("parallel-falcon", "no-feed-bias", "missing-bias", _MLP, down_bias="none"),
    planted("parallel-falcon", "unreduced", "missing-part", _MLP, reduced=False, may_be_unnamed=True),
    planted("parallel-falcon", "scale-of-rank", "attention-scale", ATTENTION, scale="of rank"),
    planted("parallel-falcon", "interleaved", "rotary-layout", ATTENTION, interleaved=True),
    planted("parallel-falcon", "raw-feed", "missing-norm", "layernorm|mlp", raw_feed=True),
    planted("parallel-falcon", "one-ahead", "attention-shift attention-causal", ATTENTION, ahead=1),
    planted("served-qwen3", "fused-by-group", _QKV, ATTENTION, stored="by group"),
    planted("served-qwen3", "up-first", _GATE, _MLP, gate_up=("up", "gate")),
    planted("served-qwen3", "no-head-norms", "missing-norm", _HEAD_NORMS, qk_norm="none"),
    planted("served-qwen3", "norms-behind-turn", "norm-order", _HEAD_NORMS, qk_norm="behind", may_be_unnamed=True),
    planted(
        *("served-qwen3", "one-norm-for-both", SWAP, _HEAD_NORMS),
        change=weights(r"(.*)\.k_norm\.weight", by=r"\1.q_norm.weight"),
    ),
    planted("served-qwen3", "base-of-llama", "rotary-base", ATTENTION, base=1e4),
    planted("served-qwen3", "tiled", "attention-groups", ATTENTION, tiled=True),
    planted("served-qwen3", "scale-of-width", "attention-scale", ATTENTION, scale=16),
    planted("served-qwen3", "normed-stream-in-one", STREAM, "layers|norm", carried="normed", layers=(1,)),
    planted("served-qwen3", "tied", "head-untied different-weight", _HEAD, tied=True),
    planted("lora-minilm", "unscaled", "different-weight", ATTENTION, scaling=1.0),
    planted("lora-minilm", "alpha-undivided", "different-weight", ATTENTION, scaling=8.0),
    planted("lora-minilm", "merged-transposed", "different-weight", ATTENTION, run="transposed"),
    planted("lora-minilm", "merged-and-beside", "different-weight", ATTENTION, run="twice"),
    planted("lora-minilm", "bare-value-in-one", "different-weight", ATTENTION, targets=("query",), layers=(3,)),
    planted("lora-minilm", "adapters-of-next-layer", "different-weight", ATTENTION, further=1),
    planted("lora-minilm", "dropout", "dropout", ATTENTION, dropout=0.1),
    planted("lora-minilm", "epsilon-of-torch", EPSILON, NORM, eps=1e-5),
    planted("lora-minilm", "without-ends", "pooling", "output", pooling="inner"),
    planted("lora-minilm", "not-normalised", "pooling", "output", unit=False),
    planted("batched-moe", "weights-normalised", "expert-routing", _MLP, normalised=True),
    planted("batched-moe", "three-taken", "expert-routing", _MLP, taken=3),
    planted("batched-moe", "capacity", "expert-routing", _MLP, capacity=16, may_be_unnamed=True),
    planted("batched-moe", "routed-by-residual", "expert-routing missing-norm", "mlp|norm", routed_by="residual"),
    planted("batched-moe", "no-shared-expert", "missing-part", _MLP, shared="none"),
    planted("batched-moe", "shared-ungated", "expert-routing missing-part", _MLP, shared="whole", may_be_unnamed=True),
    planted("batched-moe", "up-activated", _GATE, _MLP, gated=False),
    planted("batched-moe", "kernels-reshaped-in-one", _RESHAPED, _MLP, reshaped=True, layers=(2,)),
    planted("batched-moe", "experts-exchanged", SWAP, _MLP, change=swapped("1.mlp.experts.0.", "1.mlp.experts.3.")),
    planted("batched-moe", "tiled", "attention-groups", ATTENTION, tiled=True),
    planted("einsum-gemma3", "lookup-in-bfloat16", "scaled-lookup", "embed|layers", scale_dtype="bfloat16"),
    planted("einsum-gemma3", "base-of-globals", "rotary-base", ATTENTION, local_base=1e6),
    planted("einsum-gemma3", "positions-undivided", "rotary-scaling", ATTENTION, factor=1.0),
    planted(
        "einsum-gemma3", "globals-from-0", "attention-window rotary-base rotary-scaling", ATTENTION, first_global=0
    ),
    planted("einsum-gemma3", "window-one-more", "attention-window", ATTENTION, window=7),
    planted("einsum-gemma3", "scale-of-head", "attention-scale", ATTENTION, scalar=16),
    planted("einsum-gemma3", "head-norms-uncentred", "norm-offset", _HEAD_NORMS, head_offset=0.0),
    planted("einsum-gemma3", "no-logit-cap", "logit-cap", _HEAD, logit_cap=None),
    planted("einsum-gemma3", "value-before-key", "swapped-weights permuted-weight", ATTENTION, stored="vk"),
    planted("einsum-gemma3", "query-reshaped-in-one", _RESHAPED, ATTENTION, reshaped=True, layers=(3,)),
    planted(
        *("einsum-gemma3", "norms-exchanged", "swapped-weights", "layernorm"),
        change=swapped("post_attention_layernorm", "pre_feedforward_layernorm"),
    ),
    planted("functional-mbart", "positions-from-0", "position-ids-offset", "embed_positions|layernorm", first=0),
    planted("functional-mbart", "lookup-unscaled", "scaled-lookup", "shared|embed|layernorm", embed_scale=1.0),
    planted("functional-mbart", "post-norm", "norm-order", "layers|norm", pre_norm=False),
    planted("functional-mbart", "raw-memory", "missing-norm", "encoder.layer_norm|encoder_attn", memory_norm=False),
    planted("functional-mbart", "memory-unmasked", "mask-ignored", "encoder_attn", cross_masked=False),
    planted("functional-mbart", "memory-of-decoder", "", "encoder_attn", memory="decoder"),
    planted("functional-mbart", "shifted-twice", "other-ids", "decoder|shared", shifted=True),
    planted("functional-mbart", "tanh-gelu", "gelu", _MLP, tanh=True),
    planted("functional-mbart", "no-logits-bias", "missing-bias", _HEAD, logits_bias=0.0),
    planted("functional-mbart", "epsilon-of-keras", EPSILON, NORM, eps=1e-3),
    planted("graph-gptj", "halves", "rotary-layout", ATTENTION, form="halves"),
    planted("graph-gptj", "whole-head-turned", "rotary-partial", ATTENTION, rotary=16),
    planted("graph-gptj", "query-one-ahead", "rotary-offset", ATTENTION, query_start=1),
    planted("graph-gptj", "keys-unturned", "missing-rotary", ATTENTION, turned="q"),
    planted("graph-gptj", "scale-of-turned", "attention-scale", ATTENTION, scale_of=8),
    planted("graph-gptj", "above-seen", "attention-causal", ATTENTION, seen="above", may_be_unnamed=True),
    planted("graph-gptj", "itself-unseen", "attention-shift", ATTENTION, seen="before"),
    planted("graph-gptj", "inner-bias-in-one", "missing-bias", _MLP, unbiased=("mlp.fc_in",), layers=(1,)),
    planted("graph-gptj", "residual-twice-in-one", "residual-scale", r"h\.", residual=2.0, layers=(1,)),
    planted("graph-gptj", "no-head-bias", "missing-bias", _HEAD, head_bias=False),
    planted("gluon-gpt2", "output-as-stored", "transposed-weight", "attn", as_stored=("c_proj",)),
    planted("gluon-gpt2", "split-by-head", _QKV, "attn", split="by head"),
    planted("gluon-gpt2", "scaled-by-layer", "attention-scale", "attn", by_layer=True),
    planted("gluon-gpt2", "exact-gelu", "gelu", _MLP, act="gelu"),
    planted("gluon-gpt2", "epsilon-of-bert", EPSILON, NORM, eps=1e-12),
    planted("gluon-gpt2", "normed-stream-in-one", STREAM, r"h\.|ln_", carried="normed", layers=(1,)),
    planted("gluon-gpt2", "layers-backwards", SWAP, r"h\.", reversed=True),
    planted("gluon-gpt2", "positions-from-1", "position-ids-offset", "wpe|h", first=1),
    planted("gluon-gpt2", "lookup-scaled", "scaled-lookup", "wte|h", embed_scale=32**0.5),
    planted("gluon-gpt2", "head-of-its-own", "head-untied", _HEAD, head=3),
)

LIST: Final = own_list(
    _PORTS,
    _FAULTS,
    pairs=(
        ("parallel-falcon", "scale-of-rank", "no-feed-bias"),
        ("served-qwen3", "tiled", "up-first"),
        ("lora-minilm", "alpha-undivided", "without-ends"),
        ("batched-moe", "three-taken", "tiled"),
        ("einsum-gemma3", "window-one-more", "no-logit-cap"),
        ("functional-mbart", "lookup-unscaled", "memory-unmasked"),
        ("graph-gptj", "halves", "no-head-bias"),
        ("gluon-gpt2", "output-as-stored", "lookup-scaled"),
    ),
    right=(
        ("parallel-falcon", "one-rank", {"ranks": 1}),
        ("parallel-falcon", "four-ranks", {"ranks": 4, "fused": True}),
        ("parallel-falcon", "gathered", {"gathered": True}),
        ("served-qwen3", "block-mask", {"texts": "together"}),
        ("served-qwen3", "positions-run-on", {"places": "in all"}),
        ("lora-minilm", "merged", {"run": "merged"}),
        ("batched-moe", "gathered", {"form": "gathered"}),
        ("batched-moe", "jitted", {"jit": True}),
        ("einsum-gemma3", "scores-scaled", {"scaled": "scores"}),
        ("einsum-gemma3", "jitted", {"jit": True}),
        ("functional-mbart", "added-mask", {"masked": "added"}),
        ("functional-mbart", "scores-scaled", {"scaled": "scores"}),
        ("graph-gptj", "complex", {"form": "complex"}),
        ("graph-gptj", "eager", {"run": "eager"}),
        ("graph-gptj", "xla", {"run": "xla"}),
        ("gluon-gpt2", "imperative", {"hybrid": False}),
        ("gluon-gpt2", "added-mask", {"masked": "added"}),
    ),
)
