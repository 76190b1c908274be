"""A fourth list of ports written from scratch, in styles of engines, of generation and of quantised weights.

The list was written down before any of it was tried, without a look at how causes are found. Ports and faults were run for
their outputs alone: a port is its reference's to rounding, and a fault is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
import transformers
from torch import nn

from embgrad import TokenBatch
from tests.cross.ports import twins
from tests.cross.ports.architectures import ARCHITECTURES, PADDING, VOCAB, Architecture, draw_weights
from tests.cross.ports.own_fault import (
    ATTENTION,
    EPSILON,
    FEED,
    MASKED,
    NORM,
    STREAM,
    SWAP,
    OwnPort,
    heads_inside,
    own_list,
    planted,
    swapped,
    transposed,
    weights,
)
from tests.cross.ports.own_third_ports import Sentences
from tests.cross.ports.own_third_ports import batch as sentences
from tests.cross.ports.weights import in_bfloat16

_END: Final = VOCAB - 1


def _random(made: Any) -> Any:
    draw_weights(made, Architecture("", "", "", {}, "bare"), 0)
    return made.eval()


def _in_8_bits() -> Any:
    """Return MiniLM whose matrices in layers are whole multiples, up to 127, of a scale of each output."""
    made = Sentences()
    with torch.no_grad():
        for module in made.bert.encoder.modules():
            if isinstance(module, nn.Linear):
                scale = module.weight.abs().amax(1, keepdim=True) / 127
                module.weight.copy_((module.weight / scale).round() * scale)
    return made.eval()


def _neox() -> Any:
    config = transformers.GPTNeoXConfig(**{**ARCHITECTURES["gpt-neox"].options, "tie_word_embeddings": False})
    config._attn_implementation = "eager"
    return _random(transformers.GPTNeoXForCausalLM(config))


def _roformer() -> Any:
    made = twins.model("roformer")
    made.encoder.embed_positions._init_weight()
    return made


def _t5() -> Any:
    options = {**ARCHITECTURES["t5"].options, "num_layers": 3}
    options |= {"relative_attention_num_buckets": 16, "relative_attention_max_distance": 32}
    config = transformers.T5Config(**options)
    config._attn_implementation = "eager"
    return _random(transformers.T5EncoderModel(config))


class Captions(nn.Module):
    """CLIP's text tower: the projected state at the end of the text, of length 1."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
        sizes |= {"num_attention_heads": 4, "projection_dim": 24, "max_position_embeddings": 40}
        self.config = transformers.CLIPTextConfig(**sizes, bos_token_id=0, eos_token_id=_END, pad_token_id=PADDING)
        self.config._attn_implementation = "eager"
        self.clip = _random(transformers.CLIPTextModelWithProjection(self.config))

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        found = self.clip(input_ids=input_ids, attention_mask=attention_mask).text_embeds
        return nn.functional.normalize(found, dim=-1)


def captions() -> TokenBatch:
    """Return texts with a beginning and an end, which are padded with ends."""
    random, lengths = np.random.default_rng(11), (16, 9, 13, 11)
    ids, mask = np.full((len(lengths), max(lengths)), _END), np.zeros((len(lengths), max(lengths)), int)
    for row, length in enumerate(lengths):
        ids[row, : length - 1] = [0, *random.integers(3, VOCAB - 3, length - 2)]
        mask[row, :length] = 1
    return TokenBatch(ids, mask)


def _batch() -> TokenBatch:
    return twins.token_batch(has_decoder=False, has_types=False)


_TORCH: Final = "own_fourth_torch"
_PORTS: Final[Mapping[str, OwnPort]] = {
    "ane-minilm": OwnPort(Sentences, sentences, (_TORCH, "AneMinilm")),
    "int8-minilm": OwnPort(_in_8_bits, sentences, ("own_fourth_tensorflow", "Int8Minilm"), MASKED),
    "cached-neox": OwnPort(_neox, _batch, (_TORCH, "CachedNeox")),
    "gathered-deberta": OwnPort(lambda: twins.model("deberta-v2"), _batch, (_TORCH, "Deberta")),
    "keras-modernbert": OwnPort(
        lambda: twins.model("modernbert"), _batch, ("own_fourth_tensorflow", "KerasModernbert")
    ),
    "t5x-encoder": OwnPort(_t5, _batch, ("own_fourth_jax", "t5x_encoder"), MASKED),
    "tree-clip": OwnPort(lambda: Captions().eval(), captions, ("own_fourth_jax", "clip_text"), "mapped"),
    "gluon-roformer": OwnPort(_roformer, _batch, ("own_fourth_gluon", "GluonRoformer"), MASKED),
}

_MLP: Final = "intermediate|output.dense|mlp|activation|layer"
_LAYERS: Final = r"layer\.|layers\."
_GATE: Final = "gate-swapped permuted-weight swapped-weights"
_QKV: Final = "swapped-weights permuted-weight attention-heads"
_OTHER: Final = "different-weight half-weights"

_FAULTS: Final = (
    planted("ane-minilm", "norm-bias-undivided", "different-weight", NORM, bias_divided=False),
    planted("ane-minilm", "softmax-over-queries", "attention-softmax", ATTENTION, axis=3),
    planted("ane-minilm", "mask-of-queries", "mask-ignored", ATTENTION, mask="queries"),
    planted("ane-minilm", "heads-strided", "attention-heads permuted-weight", ATTENTION, strided=True),
    planted("ane-minilm", "unscaled", "attention-scale", ATTENTION, scaled=False),
    planted("ane-minilm", "epsilon-of-apple", EPSILON, NORM, eps=1e-5),
    planted("ane-minilm", "tanh-gelu-in-one", "gelu", _MLP, gelu="tanh", layers=(3,)),
    planted("ane-minilm", "value-bias", "missing-bias", ATTENTION, unbiased=("v_lin",)),
    planted(
        "ane-minilm", "output-as-stored-in-one", "transposed-weight", ATTENTION, as_stored=("out_lin",), layers=(1,)
    ),
    planted("ane-minilm", "mean-of-all", "pooling", "output", pooling="all"),
    planted("int8-minilm", "one-scale", _OTHER, _LAYERS, scales="one"),
    planted("int8-minilm", "divided-by-128", "different-weight", _LAYERS, divisor=128),
    planted("int8-minilm", "zero-point-of-1", "different-weight", _LAYERS, zero=1.0),
    planted("int8-minilm", "clipped-in-one", _OTHER, _LAYERS, share=0.5, layers=(2,)),
    planted("int8-minilm", "inputs-in-8-bits", "", _LAYERS, inputs="8 bits"),
    planted("int8-minilm", "bias-scaled", "missing-bias different-weight", _LAYERS, bias="scaled"),
    planted(
        *("int8-minilm", "query-scales-over-inputs", "different-weight", ATTENTION),
        query={"scales": "inputs"},
    ),
    planted("int8-minilm", "query-as-stored", "transposed-weight", ATTENTION, query={"stored": True}),
    planted("int8-minilm", "silu-in-one", "activation", _MLP, act="silu", layers=(4,)),
    planted("int8-minilm", "padding-pooled", "pooling", "output", pooling="all"),
    planted("cached-neox", "positions-not-counted", "missing-rotary rotary-offset", ATTENTION, counted=False),
    planted("cached-neox", "query-one-ahead", "rotary-offset", ATTENTION, ahead=1),
    planted("cached-neox", "token-unseen-by-itself", "attention-shift", ATTENTION, short=1),
    planted("cached-neox", "an-empty-key-more", "attention-shift", ATTENTION, short=-1, may_be_unnamed=True),
    planted("cached-neox", "cache-of-6", "attention-window", ATTENTION, window=6),
    planted("cached-neox", "whole-head-turned", "rotary-partial", ATTENTION, share=1.0),
    planted("cached-neox", "interleaved", "rotary-layout", ATTENTION, interleaved=True),
    planted("cached-neox", "split-by-thirds", _QKV, ATTENTION, split="by thirds"),
    planted("cached-neox", "sequential", STREAM, "layers|layernorm|mlp", feed="sequential"),
    planted("cached-neox", "one-norm-for-both", SWAP, "layernorm|mlp", one_norm=True),
    planted("cached-neox", "tied", "head-untied different-weight", "embed_out|output", tied=True),
    planted("gathered-deberta", "scale-of-one-term", "attention-scale", ATTENTION, terms=1),
    planted("gathered-deberta", "no-keys-to-positions", "attention-bias", ATTENTION, kinds=("c2p",)),
    planted("gathered-deberta", "keys-turned", "attention-bias", ATTENTION, turned=True),
    planted("gathered-deberta", "no-logarithm", "attention-bias", ATTENTION, log=False),
    planted("gathered-deberta", "longest-512", "attention-bias", ATTENTION, longest=512),
    planted("gathered-deberta", "raw-table", "missing-norm attention-bias", "encoder|attention", table_norm=False),
    planted(
        "gathered-deberta", "projections-exchanged", "swapped-weights attention-bias", ATTENTION, projected="exchanged"
    ),
    planted("gathered-deberta", "epsilon-in-one", EPSILON, NORM, eps=1e-2, layers=(1,)),
    planted("gathered-deberta", "mask-ignored", "mask-ignored", ATTENTION, masked="none"),
    planted("keras-modernbert", "globals-from-1", "attention-window rotary-base", "attn", globals_at=1),
    planted("keras-modernbert", "reach-of-window", "attention-window", "attn", reach=6),
    planted("keras-modernbert", "backward-window", "attention-window attention-causal", "attn", backwards=True),
    planted("keras-modernbert", "one-base", "rotary-base", "attn", local_base=160000.0),
    planted("keras-modernbert", "interleaved", "rotary-layout", "attn", interleaved=True),
    planted("keras-modernbert", "gate-on-second", _GATE, "mlp", gated=False),
    planted("keras-modernbert", "epsilon-of-keras", EPSILON, NORM, eps=1e-3),
    planted("keras-modernbert", "first-norm-more", "missing-norm", "layers|norm", first_norm=True),
    planted("keras-modernbert", "split-by-head", _QKV, "attn", split="by head"),
    planted("keras-modernbert", "no-final-norm", "missing-norm", "final_norm|output", final=False),
    planted("t5x-encoder", "scaled", "attention-scale", ATTENTION, scaled=True),
    planted("t5x-encoder", "distance-of-128", "attention-bias", ATTENTION, longest=128),
    planted("t5x-encoder", "buckets-of-a-decoder", "attention-bias", ATTENTION, bidirectional=False),
    planted("t5x-encoder", "distances-turned", "attention-bias", ATTENTION, sign=-1),
    planted("t5x-encoder", "bias-in-first-layer-alone", "attention-bias", ATTENTION, shared=False),
    planted("t5x-encoder", "exact-gelu", "gelu", FEED, act="exact"),
    planted("t5x-encoder", "gate-on-second", _GATE, FEED, gated=False),
    planted("t5x-encoder", "centred", "norm-kind", "layer_norm", centred=True),
    planted("t5x-encoder", "lookup-scaled", "scaled-lookup", "shared|embed|layer", lookup_scaled=True),
    planted(
        "t5x-encoder",
        "weights-in-bfloat16",
        "half-weights",
        "block|layer",
        change=weights(r".*block.*\.w[io]_?\d?\.weight", by=in_bfloat16),
    ),
    planted("tree-clip", "tanh-gelu", "activation gelu", "mlp|activation", act="tanh"),
    planted("tree-clip", "not-causal", "attention-causal", ATTENTION, causal=False),
    planted("tree-clip", "one-ahead", "attention-shift attention-causal", ATTENTION, ahead=1),
    planted("tree-clip", "pooled-at-last", "pooling", "output|projection", pooling="last"),
    planted("tree-clip", "pooled-before-end", "pooling", "output|projection", before=1),
    planted("tree-clip", "no-final-norm", "missing-norm", "final_layer_norm|output|projection", final=False),
    planted("tree-clip", "positions-from-1", "position-ids-offset", "position|layers|embeddings", first=1),
    planted("tree-clip", "post-norm", "norm-order", "layers|norm", pre_norm=False),
    planted(
        *("tree-clip", "query-as-stored-in-one", "transposed-weight", ATTENTION),
        as_stored=("q_proj",),
        layers=(2,),
    ),
    planted("tree-clip", "layers-exchanged", SWAP, "layers", change=swapped("layers.0.", "layers.1.")),
    planted("gluon-roformer", "halves", "rotary-layout", ATTENTION, halves=True),
    # It was listed as one that need not be named.
    planted("gluon-roformer", "values-turned", "missing-rotary", ATTENTION, turned="qkv"),
    planted("gluon-roformer", "backwards", "rotary-layout", ATTENTION, sign=-1.0),
    planted("gluon-roformer", "base", "rotary-base", ATTENTION, base=1e3),
    planted("gluon-roformer", "mask-ignored", "mask-ignored", ATTENTION, masked=False),
    planted("gluon-roformer", "relu-in-one", "activation", _MLP, act="relu", layers=(1,)),
    planted("gluon-roformer", "residual-in-one", "missing-residual", _LAYERS, residual=False, layers=(2,)),
    planted(
        *("gluon-roformer", "value-heads-inside", "permuted-weight attention-heads", ATTENTION),
        change=weights(r".*attention\.self\.value\..*", by=heads_inside),
    ),
    planted(
        *("gluon-roformer", "output-transposed", "transposed-weight", ATTENTION),
        change=weights(r".*layer\.1\.attention\.output\.dense\.weight", by=transposed),
    ),
)

LIST: Final = own_list(
    _PORTS,
    _FAULTS,
    pairs=(
        ("ane-minilm", "norm-bias-undivided", "value-bias"),
        ("int8-minilm", "query-as-stored", "padding-pooled"),
        ("cached-neox", "whole-head-turned", "tied"),
        ("gathered-deberta", "scale-of-one-term", "raw-table"),
        ("keras-modernbert", "reach-of-window", "epsilon-of-keras"),
        ("t5x-encoder", "distances-turned", "exact-gelu"),
        ("tree-clip", "tanh-gelu", "pooled-at-last"),
        ("gluon-roformer", "halves", "mask-ignored"),
    ),
    right=(
        ("ane-minilm", "heads-at-once", {"joined": True}),
        ("int8-minilm", "scaled-before", {"first": True}),
        ("int8-minilm", "graph", {"graph": True}),
        ("cached-neox", "five-tokens-at-once", {"chunk": 5}),
        ("cached-neox", "all-at-once", {"chunk": 64}),
        ("gathered-deberta", "gathered", {"gathered": True}),
        ("gathered-deberta", "mask-of-keys", {"masked": "keys"}),
        ("keras-modernbert", "einsums", {"fused": False}),
        ("t5x-encoder", "jitted", {"jit": True}),
        ("t5x-encoder", "fused", {"fused": True}),
        ("tree-clip", "jitted", {"jit": True}),
        ("tree-clip", "end-by-mask", {"pooling": "length"}),
        ("gluon-roformer", "imperative", {"hybrid": False}),
    ),
)
