"""A third list of ports written from scratch: MiniLM with its trained weights on real texts, and Cohere, in further styles.

The list was written down before any of it was tried, without a look at how causes are found. Ports and faults were run for
their outputs alone: a port is its reference's to rounding, and a fault is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import tokenizers
import transformers
from torch import nn

from embgrad import TokenBatch
from embgrad.loading.minilm import minilm_folder
from tests.cross.ports import twins
from tests.cross.ports.own_fault import (
    ATTENTION,
    EPSILON,
    MASKED,
    NORM,
    STREAM,
    SWAP,
    OwnPort,
    own_list,
    planted,
    port_of,
    swapped,
    transposed,
    weights,
)
from tests.cross.ports.weights import in_bfloat16

TEXTS: Final = (
    "The keys to the cabinet that the carpenter's sons had locked are on the kitchen table, next to yesterday's bread.",
    "A gripping film, told with unforgettable warmth.",
    "Researchers measured how quickly 37 glaciers lose their ice in summer.",
    "Is it cheaper to repair an old bicycle than to buy another one?",
)


class Sentences(nn.Module):
    """MiniLM as its authors use it: the mean of its hidden states at real positions, of length 1."""

    def __init__(self) -> None:
        super().__init__()
        self.bert = _bert()
        self.config = self.bert.config

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        x = self.bert(input_ids=input_ids, attention_mask=attention_mask)[0]
        real = attention_mask[..., None].to(x.dtype)
        return nn.functional.normalize((x * real).sum(1) / real.sum(1).clamp(min=1e-9), dim=-1)


def _bert() -> Any:
    folder = minilm_folder()
    return transformers.BertModel.from_pretrained(folder, attn_implementation="eager", add_pooling_layer=False).eval()


def batch() -> TokenBatch:
    """Return the texts' tokens."""
    tokenizer = tokenizers.Tokenizer.from_file(str(minilm_folder() / "tokenizer.json"))
    tokenizer.enable_padding()
    found = tokenizer.encode_batch(list(TEXTS))
    return TokenBatch(np.array([one.ids for one in found]), np.array([one.attention_mask for one in found]))


def _minilm(module: str, name: str, call: str = "", reference: Any = Sentences) -> OwnPort:
    return OwnPort(reference, batch, (module, name), call)


_PORTS: Final[Mapping[str, OwnPort]] = {
    "variables-minilm": _minilm("own_minilm_tensorflow", "VariablesMinilm", MASKED),
    "einsum-minilm": _minilm("own_minilm_tensorflow", "EinsumMinilm"),
    "gluon-minilm": _minilm("own_minilm_gluon", "GluonMinilm", MASKED),
    "vmap-minilm": _minilm("own_minilm_jax", "vmap_minilm", MASKED, _bert),
    "loose-minilm": _minilm("own_minilm_torch", "loose_minilm"),
    "packed-minilm": _minilm("own_minilm_torch", "PackedMinilm"),
    "meta-cohere": port_of("llama-lm", "own_minilm_torch", "MetaCohere", "", lambda: twins.model("cohere-lm")),
}


def _heads_inside(values: np.ndarray) -> np.ndarray:
    return values.reshape(12, -1, *values.shape[1:]).swapaxes(0, 1).reshape(values.shape)


def _in_float16(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16)


def _pooled(port: str, label: str, **settings: Any) -> Any:
    return planted(port, label, "pooling", "output", **settings)


_MLP: Final = "intermediate|output.dense|mlp|activation"
_QKV: Final = "swapped-weights permuted-weight attention-heads"
_TYPES: Final = "token_type|LayerNorm|embeddings"
_PLACES: Final = "position|LayerNorm|embeddings"
_LAYERS: Final = r"layer\.|layers\."

_FAULTS: Final = (
    planted("variables-minilm", "tanh-gelu", "gelu", _MLP, tanh=True),
    planted("variables-minilm", "epsilon", EPSILON, NORM, eps=1e-5),
    planted("variables-minilm", "no-types", "types-ignored", _TYPES, types=False),
    planted("variables-minilm", "mask-sign", "", ATTENTION, mask="sign"),
    planted("variables-minilm", "unscaled", "attention-scale", ATTENTION, scaled=False),
    planted("variables-minilm", "heads-inside", "attention-heads permuted-weight", ATTENTION, inside=True),
    planted(
        *("variables-minilm", "query-as-stored-in-one", "transposed-weight", ATTENTION),
        as_stored=("attention.self.query",),
        layers=(3,),
    ),
    planted(
        *("variables-minilm", "value-bias-in-one", "missing-bias", ATTENTION),
        unbiased=("self.value",),
        layers=(2,),
    ),
    _pooled("variables-minilm", "first-token", pooling="first"),
    _pooled("variables-minilm", "not-normalised", unit=False),
    planted("variables-minilm", "positions-from-1", "position-ids-offset", _PLACES, first=1),
    planted("einsum-minilm", "epsilon-of-keras", EPSILON, NORM, eps=1e-3),
    planted("einsum-minilm", "tanh-gelu", "gelu", _MLP, act="gelu"),
    planted("einsum-minilm", "mask-ignored", "mask-ignored", ATTENTION, mask="none"),
    planted("einsum-minilm", "mask-of-1e-9", "mask-ignored", ATTENTION, least=-1e-9),
    _pooled("einsum-minilm", "mean-of-all", pooling="all"),
    planted("einsum-minilm", "softmax-over-queries", "attention-softmax", ATTENTION, axis=-2),
    planted("einsum-minilm", "output-reshaped", "transposed-weight permuted-weight", ATTENTION, reshaped=True),
    planted("einsum-minilm", "layers-reversed", SWAP, _LAYERS, reversed=True),
    planted("einsum-minilm", "pre-norm", "norm-order", "layer|LayerNorm", pre_norm=True),
    planted("einsum-minilm", "no-embedding-norm", "missing-norm", "embeddings", embedding_norm=False),
    planted("einsum-minilm", "positions-from-2", "position-ids-offset", _PLACES, first=2),
    planted("einsum-minilm", "dropout", "dropout", ATTENTION, dropout=0.1),
    planted("einsum-minilm", "residual-in-one", "missing-residual", _LAYERS, residual=False, layers=(4,)),
    planted("gluon-minilm", "not-interleaved", _QKV, ATTENTION, interleaved=False),
    planted("gluon-minilm", "tanh-gelu", "gelu", _MLP, tanh=True),
    planted("gluon-minilm", "epsilon-of-mxnet", EPSILON, NORM, eps=1e-5),
    planted("gluon-minilm", "padding-seen", "attention-shift", ATTENTION, more=1, may_be_unnamed=True),
    planted("gluon-minilm", "scaled-twice", "attention-scale", ATTENTION, times=32**-0.5),
    planted("gluon-minilm", "inner-bias-in-one", "missing-bias", _MLP, unbiased=("ffn1_b",), layers=(1,)),
    planted("gluon-minilm", "last-layer-less", "missing-part", r"layer\.|output", depth=5),
    planted("gluon-minilm", "words-scaled", "scaled-lookup", "word|LayerNorm|embeddings", word_scale=384**0.5),
    _pooled("gluon-minilm", "maximum", pooling="max"),
    planted(
        *("gluon-minilm", "norms-exchanged", "swapped-weights", NORM),
        change=swapped("2.attention.output.LayerNorm", "2.output.LayerNorm"),
    ),
    planted(
        *("gluon-minilm", "outer-of-next-layer", SWAP, r"output\.dense|layer\."),
        change=weights(r"(bert\.encoder\.layer\.)2(\.output\.dense\..*)", by=r"\g<1>3\2"),
    ),
    planted(
        *("gluon-minilm", "float16", "half-weights", "layer|embeddings|LayerNorm"),
        change=weights(r"bert\.encoder\..*weight", by=_in_float16),
    ),
    planted("vmap-minilm", "tanh-gelu", "gelu", _MLP, tanh=True),
    planted("vmap-minilm", "scale-of-width", "attention-scale", ATTENTION, scale=384),
    planted("vmap-minilm", "mask-times-scores", "mask-ignored", ATTENTION, mask="times"),
    planted("vmap-minilm", "mask-after-softmax", "", ATTENTION, mask="after"),
    planted("vmap-minilm", "heads-last", "attention-heads permuted-weight", ATTENTION, heads_first=False),
    planted("vmap-minilm", "deviation-and-epsilon", f"{EPSILON} norm-kind", NORM, spread="deviation", eps=1e-3),
    planted("vmap-minilm", "unbiased-variance", "norm-kind", NORM, ddof=1, may_be_unnamed=True),
    planted("vmap-minilm", "residual", "missing-residual", _LAYERS, residual=False),
    planted("vmap-minilm", "no-last-norm", "missing-norm", r"layer\.5|output", last_norm=False, layers=(5,)),
    planted("vmap-minilm", "positions-from-1", "position-ids-offset", _PLACES, first=1),
    planted("vmap-minilm", "second-type", "types-ignored other-ids different-table permuted-weight", _TYPES, type=1),
    planted(
        *("vmap-minilm", "bfloat16", "half-weights", "layer|embeddings|LayerNorm"),
        change=weights(r".*weight", by=in_bfloat16),
    ),
    planted("loose-minilm", "order-kqv", _QKV, ATTENTION, chunks="kqv"),
    planted("loose-minilm", "order-vkq", _QKV, ATTENTION, chunks="vkq"),
    planted("loose-minilm", "unturned", "attention-heads", ATTENTION, view="unturned"),
    planted("loose-minilm", "causal", "attention-causal", ATTENTION, causal=True, mask="none"),
    planted("loose-minilm", "mask-inverted", "", ATTENTION, mask="inverted"),
    planted("loose-minilm", "mask-ignored", "mask-ignored", ATTENTION, mask="none"),
    planted("loose-minilm", "dropout", "dropout", ATTENTION, dropout=0.1),
    planted("loose-minilm", "unscaled", "attention-scale", ATTENTION, scale=1.0),
    planted("loose-minilm", "tanh-gelu", "gelu", _MLP, gelu="tanh"),
    planted("loose-minilm", "output-as-stored", "transposed-weight", ATTENTION, as_stored=("c_proj",)),
    planted("loose-minilm", "layers-from-1", SWAP, _LAYERS, shift=1),
    planted("loose-minilm", "epsilon", EPSILON, NORM, eps=1e-6),
    planted("loose-minilm", "length-of-sums", "pooling", "output", unit=1, may_be_unnamed=True),
    planted("packed-minilm", "positions-run-on", "position-ids-offset", _PLACES, places="all", may_be_unnamed=True),
    planted("packed-minilm", "texts-together", "", ATTENTION, apart=False),
    _pooled("packed-minilm", "last-token", pooling="last"),
    planted("packed-minilm", "mean-over-length", "pooling", "output", pooling="length", unit=False),
    planted("packed-minilm", "epsilon", EPSILON, NORM, eps=1e-5),
    planted("packed-minilm", "relu-in-one", "activation", _MLP, act="relu", layers=(2,)),
    planted("packed-minilm", "no-types", "types-ignored", _TYPES, types=False),
    planted("packed-minilm", "residual-in-one", "missing-residual", _LAYERS, residual=False, layers=(1,)),
    planted("packed-minilm", "query-bias", "missing-bias", ATTENTION, unbiased=("attention.self.query",)),
    planted(
        *("packed-minilm", "value-heads-inside", "permuted-weight", ATTENTION),
        change=weights(r".*layer\.1\.attention\.self\.value\..*", by=_heads_inside),
    ),
    planted(
        *("packed-minilm", "output-transposed-in-one", "transposed-weight", ATTENTION),
        change=weights(r".*layer\.4\.attention\.output\.dense\.weight", by=transposed),
    ),
    planted("meta-cohere", "halves", "rotary-layout", ATTENTION, halves=True),
    planted("meta-cohere", "logits-unscaled", "logit-scale", "lm_head|output", scaled=False),
    planted("meta-cohere", "sequential", STREAM, "layers|layernorm|mlp", feed="sequential", may_be_unnamed=True),
    planted("meta-cohere", "raw-feed", "missing-norm", "layernorm|mlp", feed="raw"),
    planted("meta-cohere", "rms", "norm-kind", NORM, rms=True),
    planted("meta-cohere", "epsilon", EPSILON, NORM, eps=1e-3),
    planted("meta-cohere", "tiled", "attention-groups", ATTENTION, tiled=True),
    planted("meta-cohere", "base", "rotary-base", ATTENTION, base=5e5),
    planted("meta-cohere", "one-ahead", "attention-shift", ATTENTION, ahead=1),
    planted("meta-cohere", "act-on-up", "gate-swapped swapped-weights", "mlp", gated=False),
    planted("meta-cohere", "no-final-norm", "missing-norm", "norm|lm_head|output", final=False),
    planted("meta-cohere", "layers-in-another-order", SWAP, _LAYERS, order=(1, 0, 2)),
)

LIST: Final = own_list(
    _PORTS,
    _FAULTS,
    pairs=(
        ("variables-minilm", "tanh-gelu", "positions-from-1"),
        ("einsum-minilm", "epsilon-of-keras", "mask-ignored"),
        ("gluon-minilm", "tanh-gelu", "words-scaled"),
        ("vmap-minilm", "scale-of-width", "second-type"),
        ("loose-minilm", "order-kqv", "tanh-gelu"),
        ("packed-minilm", "epsilon", "last-token"),
        ("meta-cohere", "halves", "logits-unscaled"),
    ),
    right=(
        ("variables-minilm", "chosen-mask", {"mask": "chosen"}),
        ("einsum-minilm", "sum-for-mean", {"divide": False}),
        ("gluon-minilm", "hybrid", {"hybrid": True}),
        ("gluon-minilm", "mask-of-numbers", {"by_length": False}),
        ("vmap-minilm", "jitted", {"jit": True}),
        ("vmap-minilm", "no-key-bias", {"key_bias": False}),
        ("loose-minilm", "compiled", {"run": "compiled"}),
        ("loose-minilm", "traced", {"run": "traced"}),
        ("packed-minilm", "no-key-bias", {"unbiased": ("attention.self.key",)}),
        ("packed-minilm", "unit-of-another-mean", {"pooling": "length"}),
        ("meta-cohere", "positions-from-5", {"start": 5}),
    ),
)
