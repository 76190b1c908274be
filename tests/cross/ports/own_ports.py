"""Ports written from scratch, as researchers write them, with the weights of small random models, and the faults people make.

The list was written down before any of it was tried.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
import transformers
from torch import nn

from tests.cross.ports import architectures, twins
from tests.cross.ports.architectures import ARCHITECTURES, Architecture, draw_weights
from tests.cross.ports.own_fault import (
    ATTENTION,
    EPSILON,
    FEED,
    HEADS,
    IDS,
    MASKED,
    NORM,
    STREAM,
    SWAP,
    TYPED,
    OwnPort,
    heads_inside,
    moved,
    own_list,
    planted,
    port_of,
    swapped,
    transposed,
    weights,
)
from tests.cross.ports.weights import drawn_anew, zeros


class Sentences(nn.Module):
    """A sentence encoder: the mean of BERT's last hidden states at real positions, of length 1."""

    def __init__(self) -> None:
        super().__init__()
        self.bert = architectures.reference("bert")
        self.config = self.bert.config

    def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> Any:
        x = self.bert(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)[0]
        real = attention_mask[..., None].to(x.dtype)
        return nn.functional.normalize((x * real).sum(1) / real.sum(1).clamp(min=1e-9), dim=-1)


def _classifier() -> Any:
    options = {**ARCHITECTURES["roberta"].options, "num_labels": 5}
    config = transformers.RobertaConfig(**options)
    config._attn_implementation = "eager"
    made = transformers.RobertaForSequenceClassification(config)
    draw_weights(made, Architecture("roberta", "", "", {}, "bare"), 0)
    return made.eval()


_PORTS: Final[Mapping[str, OwnPort]] = {
    "nanogpt": port_of("gpt2-lm", "own_torch", "NanoGpt"),
    "jax-llama": port_of("llama-lm", "own_jax", "plain_llama", MASKED),
    "nnx-qwen": port_of("qwen2", "own_jax", "Qwen"),
    "fused-llama": port_of("llama", "own_jax", "FusedLlama"),
    "linen-bert": port_of("bert", "own_jax", "linen_bert", TYPED),
    "keras-bert": port_of("bert", "own_keras", "keras_bert"),
    "torch-t5": port_of("t5", "own_torch", "PlainT5"),
    "keras-mixtral": port_of("llama", "own_keras", "Mixtral", IDS, lambda: twins.model("mixtral")),
    "gemma-functions": port_of("gemma2-lm", "own_torch", "FunctionalGemma"),
    "sentences": port_of("bert", "own_torch", "Encoder", "", Sentences),
    "classifier": port_of("roberta", "own_torch", "Classifier", "", _classifier),
}

_FAULTS: Final = (
    planted("nanogpt", "exact-gelu", "gelu", FEED, gelu="exact"),
    planted("nanogpt", "relu-in-one", "activation", FEED, gelu="relu", layers=(1,)),
    planted("nanogpt", "epsilon", EPSILON, NORM, epsilon=1e-3),
    planted("nanogpt", "order-kqv", "swapped-weights permuted-weight", "attn", order="kqv"),
    planted("nanogpt", "heads-inside", HEADS, "attn", inside=True),
    planted("nanogpt", "unturned", "attention-heads", "attn", unturned=True),
    planted("nanogpt", "unscaled", "attention-scale", "attn", scale=1.0),
    planted("nanogpt", "not-causal", "attention-causal", "attn", causal=False),
    planted("nanogpt", "as-stored", "transposed-weight", "attn", as_stored=("c_proj",)),
    planted("nanogpt", "normed-residual", STREAM, "h|ln_", normed_residual=True),
    planted("nanogpt", "positions-from-1", "position-ids-offset", "wpe|h", first=1),
    planted("nanogpt", "untied", "head-untied", "lm_head|output", head=3),
    planted("nanogpt", "no-final-norm", "missing-norm", "ln_f|lm_head|output", final=False),
    planted("nanogpt", "dropout", "dropout", "attn", dropout=0.1),
    planted("nanogpt", "bias-in-one", "missing-bias", "c_fc|mlp", unbiased=("c_fc",), layers=(1,)),
    planted("nanogpt", "no-residual-in-one", "missing-residual", "h", residual=False, layers=(2,)),
    planted("nanogpt", "layers-swapped", SWAP, "h", change=swapped("h.0.", "h.1.")),
    planted("nanogpt", "layer-twice", SWAP, "h", change=weights(r"transformer\.h\.2\.(.*)", by=r"transformer.h.1.\1")),
    planted("jax-llama", "interleaved", "rotary-layout", ATTENTION, interleaved=True),
    planted("jax-llama", "tiled", "attention-groups", ATTENTION, tile=True),
    planted("jax-llama", "epsilon", EPSILON, NORM, epsilon=1e-3),
    planted("jax-llama", "softmax-over-queries", "attention-softmax", ATTENTION, axis=2),
    planted("jax-llama", "unscaled", "attention-scale", ATTENTION, scale=1.0),
    planted("jax-llama", "mask-after-softmax", "", ATTENTION, mask="after"),
    planted("jax-llama", "gate-on-up", "gate-swapped swapped-weights", "mlp", gated=False),
    planted("jax-llama", "heads-inside", HEADS, ATTENTION, inside=True),
    planted("jax-llama", "base", "rotary-base", ATTENTION, base=5e5),
    planted("jax-llama", "norms-in-half", "norm-in-half", NORM, half=True),
    planted("jax-llama", "late-residual", STREAM, "layers|norm", late_residual=True),
    planted(
        *("jax-llama", "output-transposed", "transposed-weight", "o_proj|attn"),
        change=weights(r".*layers\.1.*o_proj\.weight", by=transposed),
    ),
    planted("jax-llama", "no-final-norm", "missing-norm", "norm|lm_head|output", final=False),
    planted("nnx-qwen", "key-bias-in-one", "missing-bias", "k_proj|attn", unbiased=("k",), layers=(1,)),
    planted("nnx-qwen", "base", "rotary-base", ATTENTION, base=1e4),
    planted("nnx-qwen", "gelu", "activation", "mlp", act="exact"),
    planted("nnx-qwen", "one-plus-weight", "norm-offset", NORM, offset=1.0),
    planted("nnx-qwen", "heads-inside", HEADS, ATTENTION, inside=True),
    planted("nnx-qwen", "keys-unturned", "missing-rotary", ATTENTION, turned="q"),
    planted("nnx-qwen", "backwards", "rotary-layout", ATTENTION, backwards=True),
    planted("nnx-qwen", "residual-halved", "residual-scale", "layers", residual=0.5),
    planted("nnx-qwen", "mask-after-softmax", "", ATTENTION, mask="after"),
    planted("nnx-qwen", "late-residual-in-one", STREAM, "layers|norm", late_residual=True, layers=(1,)),
    planted(
        *("nnx-qwen", "query-transposed", "transposed-weight", "q_proj|attn"),
        change=weights(r"layers\.0.*q_proj\.weight", by=transposed),
    ),
    planted("fused-llama", "gate-up-swapped", "gate-swapped permuted-weight swapped-weights", "mlp", gated=False),
    planted("fused-llama", "by-group", "permuted-weight swapped-weights attention-heads", ATTENTION, by_group=True),
    planted("fused-llama", "stored-qvk", "swapped-weights permuted-weight", ATTENTION, stored="qvk"),
    planted("fused-llama", "tiled", "attention-groups", ATTENTION, tile=True),
    planted("fused-llama", "one-ahead", "attention-shift", ATTENTION, ahead=1),
    planted("fused-llama", "own-hidden", "attention-shift", ATTENTION, ahead=-1),
    planted("fused-llama", "norm-with-mean", "norm-kind", NORM, centred=True),
    planted("fused-llama", "epsilon-in-one", EPSILON, NORM, epsilon=1e-2, layers=(1,)),
    planted("fused-llama", "no-norm-in-one", "missing-norm", "norm|attn", norms=False, layers=(1,)),
    planted("fused-llama", "unturned", "attention-heads", ATTENTION, unturned=True),
    planted("fused-llama", "softmax-over-queries", "attention-softmax", ATTENTION, axis=2),
    planted("linen-bert", "tanh-gelu", "gelu", FEED, act="gelu"),
    planted("linen-bert", "epsilon", EPSILON, NORM, epsilon=1e-6),
    planted("linen-bert", "mask-ignored", "mask-ignored", ATTENTION, padded=False),
    planted("linen-bert", "mask-sign", "", ATTENTION, mask="sign"),
    planted("linen-bert", "unscaled", "attention-scale", ATTENTION, scale=1.0),
    planted("linen-bert", "types-ignored", "types-ignored", "token_type|LayerNorm", types=False),
    planted("linen-bert", "pre-norm", "norm-order", "layer|LayerNorm|attention", pre_norm=True),
    planted("linen-bert", "residual-outside", "norm-order", "LayerNorm|layer", outside=True),
    planted("linen-bert", "no-embedding-norm", "missing-norm", "embeddings", embedding_norm=False),
    planted("linen-bert", "query-for-key", "swapped-weights", "self", change=swapped("self.query", "self.key")),
    planted("linen-bert", "unturned-in-one", "attention-heads", ATTENTION, unturned=True, layers=(2,)),
    planted("linen-bert", "softmax-over-queries", "attention-softmax", ATTENTION, axis=2),
    planted("keras-bert", "epsilon", EPSILON, NORM, epsilon=1e-3),
    planted("keras-bert", "tanh-gelu", "gelu", FEED, exact=False),
    planted("keras-bert", "mask-ignored", "mask-ignored", ATTENTION, padded=False),
    planted("keras-bert", "heads-inside", HEADS, "self|attention", inside=True),
    planted("keras-bert", "query-as-stored", "transposed-weight", "self|attention", as_stored=("self.query",)),
    planted(
        *("keras-bert", "output-as-stored-in-one", "transposed-weight", "output|attention"),
        as_stored=("output.dense",),
        layers=(1,),
    ),
    planted("keras-bert", "positions-from-1", "position-ids-offset", "position|LayerNorm", first=1),
    planted("keras-bert", "types-ignored", "types-ignored", "token_type|LayerNorm", types=False),
    planted("keras-bert", "dropout", "dropout", "attention|LayerNorm", dropout=0.1),
    planted(
        *("keras-bert", "layer-twice", SWAP, "layer"),
        change=weights(r"encoder\.layer\.2\.(.*)", by=r"encoder.layer.1.\1"),
    ),
    planted("torch-t5", "scaled", "attention-scale", ATTENTION, scale=8**-0.5),
    planted("torch-t5", "decoder-of-both-sides", "attention-bias", r"decoder", one_sided=False),
    planted("torch-t5", "buckets-one-late", "attention-bias", ATTENTION, late=1),
    planted("torch-t5", "bias-of-first-alone", "attention-bias", r"block\.1", first_alone=True),
    planted("torch-t5", "distances-turned", "attention-bias", ATTENTION, flipped=True),
    planted("torch-t5", "longest", "attention-bias", ATTENTION, longest=20),
    planted("torch-t5", "exact-gelu", "gelu", "DenseReluDense", gelu="exact"),
    planted("torch-t5", "norm-with-mean", "norm-kind", "layer_norm", centred=True),
    planted("torch-t5", "memory-unmasked", "mask-ignored", "EncDecAttention", cross_padded=False),
    planted("torch-t5", "gate-on-up", "gate-swapped", "DenseReluDense", gated=False),
    planted("torch-t5", "no-final-norm", "missing-norm", "final_layer_norm|output", final=False),
    planted("keras-mixtral", "not-normalised", "expert-routing", "moe|layers", order="before"),
    planted("keras-mixtral", "sigmoid", "expert-routing", "moe|layers", order="sigmoid"),
    planted("keras-mixtral", "top-1", "expert-routing", "moe|layers", taken=1),
    planted("keras-mixtral", "all-experts", "expert-routing", "moe|layers", taken=4),
    planted("keras-mixtral", "gate-on-up", "gate-swapped swapped-weights", "moe|layers", gated=False),
    planted("keras-mixtral", "experts-rolled-in-one", "swapped-weights", "moe|layers", rolled=1, layers=(1,)),
    planted("keras-mixtral", "gelu", "activation gelu", "moe|layers", act="gelu"),
    planted("keras-mixtral", "tiled", "attention-groups", ATTENTION, tile=True),
    planted("keras-mixtral", "base", "rotary-base", ATTENTION, base=1e4),
    planted("keras-mixtral", "softmax-over-tokens", "", "moe|layers", order="before", axis=1),
    planted("keras-mixtral", "epsilon", EPSILON, NORM, epsilon=1e-3),
    planted("gemma-functions", "lookup-unscaled", "scaled-lookup", "embed|layers", embed_scale=1.0),
    planted("gemma-functions", "weight-alone", "norm-offset", NORM, offset=0.0),
    planted("gemma-functions", "exact-gelu", "gelu", "mlp", gelu="exact"),
    planted("gemma-functions", "no-cap", "attention-cap", ATTENTION, cap=None),
    planted("gemma-functions", "no-logit-cap", "logit-cap", "lm_head|output", logit_cap=None),
    planted("gemma-functions", "other-layers-slide", "attention-window", ATTENTION, sliding=1),
    planted("gemma-functions", "window-one-more", "attention-window", ATTENTION, window=6),
    planted("gemma-functions", "no-norms-behind", "missing-norm", "layernorm|layers", post=False),
    planted("gemma-functions", "late-residual-in-one", STREAM, "layers|norm", late_residual=True, layers=(2,)),
    planted("gemma-functions", "interleaved", "rotary-layout", ATTENTION, interleaved=True),
    planted(
        *("gemma-functions", "layers-swapped", SWAP, "layers"),
        change=swapped("layers.0.", "layers.2."),
    ),
    planted("sentences", "mean-over-padding", "pooling", "output", pooling="all"),
    planted("sentences", "first-token", "pooling", "output", pooling="first"),
    planted("sentences", "last-token", "pooling", "output", pooling="last"),
    planted("sentences", "last-position", "pooling", "output", pooling="end"),
    planted("sentences", "maximum", "pooling", "output", pooling="max"),
    planted("sentences", "not-normalised", "pooling", "output", unit=False),
    planted("sentences", "mean-of-unit-vectors", "pooling", "output", pooling="each"),
    planted("sentences", "mask-inverted", "", ATTENTION, mask="inverted"),
    planted("sentences", "mask-ignored", "mask-ignored", ATTENTION, mask="none"),
    planted("sentences", "order-kqv", "swapped-weights permuted-weight", ATTENTION, order=("key", "query", "value")),
    planted(
        *("sentences", "value-heads-inside", "permuted-weight", "value|self|attention"),
        change=weights(r".*layer\.1\.attention\.self\.value\..*", by=heads_inside),
    ),
    planted("classifier", "positions-from-0", "position-ids-offset", "position|LayerNorm|embeddings", first=-2),
    planted("classifier", "tanh-missing", "activation", "classifier|output|out_proj", act=torch.nn.Identity()),
    planted("classifier", "relu-for-tanh", "activation", "classifier|output|out_proj", act=torch.relu),
    planted("classifier", "mean-for-first", "pooling", "classifier|output|dense", pooling="mean"),
    planted("classifier", "bias-missing", "missing-bias", "classifier|output|out_proj", out_bias=False),
    planted(
        *("classifier", "dense-transposed", "transposed-weight", "classifier"),
        change=weights(r"classifier\.dense\.weight", by=transposed),
    ),
    planted(
        *("classifier", "labels-rolled", "permuted-weight", "classifier|output|out_proj"),
        change=weights(r"classifier\.out_proj\..*", by=moved),
    ),
    planted(
        *("classifier", "head-drawn-anew", "different-weight", "classifier|output|out_proj"),
        change=weights(r"classifier\.out_proj\..*", by=drawn_anew),
    ),
    planted("classifier", "pre-norm", "norm-order", "layer|LayerNorm|attention", pre_norm=True),
    planted(
        *("classifier", "value-bias-zero", "missing-bias different-weight", "value|attention|output"),
        change=weights(r".*layer\.1\.attention\.self\.value\.bias", by=zeros),
    ),
)

LIST: Final = own_list(
    _PORTS,
    _FAULTS,
    pairs=(
        ("nanogpt", "exact-gelu", "as-stored"),
        ("nanogpt", "unscaled", "epsilon"),
        ("nanogpt", "positions-from-1", "no-final-norm"),
        ("jax-llama", "interleaved", "epsilon"),
        ("jax-llama", "tiled", "gate-on-up"),
        ("nnx-qwen", "base", "one-plus-weight"),
        ("nnx-qwen", "keys-unturned", "query-transposed"),
        ("fused-llama", "tiled", "gate-up-swapped"),
        ("linen-bert", "tanh-gelu", "epsilon"),
        ("linen-bert", "query-for-key", "types-ignored"),
        ("keras-bert", "epsilon", "mask-ignored"),
        ("torch-t5", "scaled", "gate-on-up"),
        ("keras-mixtral", "top-1", "tiled"),
        ("gemma-functions", "weight-alone", "no-cap"),
        ("sentences", "first-token", "mask-ignored"),
    ),
    right=(
        ("jax-llama", "added-mask", {"mask": "added"}),
        ("jax-llama", "positions-from-7", {"start": 7}),
        ("nnx-qwen", "padding-seen", {"padded": False}),
        ("linen-bert", "added-mask", {"mask": "added"}),
        ("torch-t5", "added-mask", {"mask": "added"}),
        ("keras-mixtral", "softmax-of-chosen", {"order": "of chosen"}),
        ("sentences", "normalised-sum", {"pooling": "sum"}),
    ),
)
