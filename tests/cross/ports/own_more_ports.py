"""Further ports written from scratch, in styles and architectures that the first list lacks, and faults that people reported.

The list was written down before any of it was tried: nothing was checked, and how causes are found was not looked at. Ports and
faults were run for their outputs alone: a port is its reference's to rounding, and a fault is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
import transformers

from tests.cross.ports import twins
from tests.cross.ports.architectures import PADDING, VOCAB, Architecture, draw_weights
from tests.cross.ports.own_fault import (
    ATTENTION,
    EPSILON,
    MASKED,
    NORM,
    STREAM,
    SWAP,
    TYPED,
    OwnPort,
    own_list,
    planted,
    port_of,
    swapped,
    weights,
)
from tests.cross.ports.weights import in_bfloat16

#: The sizes of small encoders and decoders, in the names of most configurations.
ENCODER: Final = {
    **{"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4},
    **{"intermediate_size": 48, "max_position_embeddings": 40, "pad_token_id": PADDING},
}
DECODER: Final = {
    **{"vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "intermediate_size": 80, "max_position_embeddings": 64},
    **{"pad_token_id": None, "bos_token_id": None, "eos_token_id": None},
}


def drawn(name: str, config: str, *, zero_centred: bool = False, **options: Any) -> Any:
    """Return a model of transformers with drawn weights."""
    settings = getattr(transformers, config)(**options)
    settings._attn_implementation = "eager"
    made = getattr(transformers, name)(settings)
    draw_weights(made, Architecture(name, "", "", {}, "bare", zero_centred=zero_centred), 0)
    return made.eval()


def _opt() -> Any:
    """Return OPT of so many layers that their numbers are in another order as text."""
    fields = {"ffn_dim": 48, "word_embed_proj_dim": 32, **ENCODER, "num_hidden_layers": 11}
    return drawn("OPTModel", "OPTConfig", **{name: fields[name] for name in fields if name != "intermediate_size"})


def _bloom() -> Any:
    """Return BLOOM with a number of heads that is no power of two."""
    fields = {"vocab_size": VOCAB, "hidden_size": 48, "n_layer": 3, "n_head": 6, "pad_token_id": PADDING}
    return drawn("BloomModel", "BloomConfig", **fields)


def _phi() -> Any:
    return drawn("PhiForCausalLM", "PhiConfig", **twins.MODELS["phi"][1])


def _tagger() -> Any:
    fields = {**ENCODER, "embedding_size": 16, "num_labels": 5}
    return drawn("ElectraForTokenClassification", "ElectraConfig", **fields)


def _pairs() -> Any:
    return drawn("BertForSequenceClassification", "BertConfig", **ENCODER, num_labels=1)


def _marian() -> Any:
    made = drawn(
        *("MarianMTModel", "MarianConfig"),
        **{"vocab_size": VOCAB, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4},
        **{"decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 40},
        **{"pad_token_id": PADDING, "activation_function": "swish", "scale_embedding": True, "eos_token_id": 0},
        **{"forced_eos_token_id": 0, "decoder_start_token_id": PADDING},
    )
    for side in (made.model.encoder, made.model.decoder):
        side.embed_positions._init_weight()
    made.final_logits_bias.copy_(torch.tensor(np.random.default_rng(3).normal(0, 0.5, (1, VOCAB))))
    return made


_PORTS: Final[Mapping[str, OwnPort]] = {
    "scan-opt": port_of("gpt2", "own_scan", "scanned_opt", MASKED, _opt),
    "linen-mistral": port_of("mistral", "own_scan", "linen_mistral", MASKED),
    "einsum-bloom": port_of("gpt2", "own_alibi", "EinsumBloom", "", _bloom),
    "module-albert": port_of("albert", "own_tensorflow", "Albert", TYPED),
    "electra-tagger": port_of("bert", "own_tensorflow", "Tagger", "", _tagger),
    "sdpa-phi": port_of("llama", "own_parallel", "Phi", "", _phi),
    "nnx-marian": port_of("bart", "own_seq2seq", "Marian", "", _marian),
    "gluon-distilbert": port_of("distilbert", "own_gluon", "DistilBert", MASKED),
    "fused-olmo2": port_of("llama", "own_fused", "Olmo2", "", lambda: twins.model("olmo2")),
    "library-mlm": port_of("bert-lm", "own_library", "LibraryMlm"),
    "reranker": port_of("bert", "own_reranker", "Reranker", "", _pairs),
    "dumped-llama": port_of("llama-lm", "own_dump", "dumped_llama"),
}


def _backwards(values: np.ndarray) -> np.ndarray:
    return values[::-1]


_MLP: Final = "mlp|ffn|fc|intermediate|activation"
_QKV: Final = "swapped-weights permuted-weight attention-heads"
_GATE: Final = "gate-swapped swapped-weights permuted-weight"
_TYPES: Final = "token_type|LayerNorm|embeddings"
_HEAD: Final = "classifier|output"

_FAULTS: Final = (
    planted("scan-opt", "positions-from-0", "position-ids-offset", "embed_positions|layers", offset=0),
    planted("scan-opt", "gelu", "activation", _MLP, act="gelu"),
    planted("scan-opt", "epsilon", EPSILON, NORM, eps=1e-3),
    planted("scan-opt", "scaled-twice", "attention-scale", ATTENTION, key_scale=8**-0.5),
    planted("scan-opt", "layers-sorted-as-text", SWAP, r"layers\.", sorted=True),
    planted("scan-opt", "key-as-stored", "transposed-weight", ATTENTION, as_stored=("self_attn.k_proj.weight",)),
    planted("scan-opt", "post-norm", "norm-order", "layers|norm", pre_norm=False),
    planted("scan-opt", "no-final-norm", "missing-norm", "final_layer_norm|output", final=False),
    planted("scan-opt", "one-layer-less", "missing-part", r"layers\.|final_layer_norm", depth=10),
    planted("scan-opt", "small-mask", "attention-causal", ATTENTION, least=-10.0, may_be_unnamed=True),
    planted("linen-mistral", "window-one-more", "attention-window", ATTENTION, window=7),
    planted("linen-mistral", "tiled", "attention-groups", ATTENTION, tiled=True),
    planted("linen-mistral", "interleaved", "rotary-layout", ATTENTION, interleaved=True),
    # It was listed as one of scaling that need not be named, before there was a cause of its own.
    planted("linen-mistral", "frequencies-in-half", "rotary-in-half", ATTENTION, rounded=True),
    planted("linen-mistral", "w1-for-w3", _GATE, _MLP, gated=False),
    planted("linen-mistral", "epsilon", EPSILON, NORM, eps=1e-6),
    planted(
        *("linen-mistral", "norm-weights-in-half", "half-weights", NORM),
        change=weights(r".*norm\.weight", by=in_bfloat16),
    ),
    planted("einsum-bloom", "slopes-geometric", "attention-bias", ATTENTION, slopes="geometric"),
    planted("einsum-bloom", "slopes-from-0", "attention-bias", ATTENTION, slopes="from-0"),
    planted("einsum-bloom", "slopes-sorted", "attention-bias", ATTENTION, slopes="sorted"),
    planted("einsum-bloom", "distances-turned", "attention-bias", ATTENTION, sign=-1.0),
    planted("einsum-bloom", "bias-scaled", "attention-bias", ATTENTION, bias="scaled"),
    planted("einsum-bloom", "no-bias", "attention-bias", ATTENTION, bias="none"),
    planted("einsum-bloom", "split-by-thirds", _QKV, ATTENTION, split="by thirds"),
    planted("einsum-bloom", "exact-gelu", "gelu", _MLP, tanh=False),
    planted("einsum-bloom", "no-embedding-norm", "missing-norm", "embeddings|layernorm", embedding_norm=False),
    planted("einsum-bloom", "normed-residual", STREAM, r"h\.|layernorm", residual="normed"),
    planted("module-albert", "exact-gelu", "gelu", _MLP, tanh=False),
    planted("module-albert", "epsilon", EPSILON, NORM + "|layer_norm", epsilon=1e-3),
    planted("module-albert", "mapping-bias", "missing-bias", "embedding_hidden_mapping_in", map_bias=False),
    planted("module-albert", "one-layer-less", "missing-part", "albert_layers|encoder|output", depth=2),
    planted("module-albert", "one-layer-more", "missing-part", "albert_layers|encoder|output", depth=4),
    planted("module-albert", "scale-of-embedding", "attention-scale", ATTENTION, scale=0.25),
    planted("module-albert", "mask-times-scores", "mask-ignored", ATTENTION, mask="times"),
    planted("module-albert", "types-ignored", "types-ignored", _TYPES, types=False),
    planted("module-albert", "no-residual", "missing-residual", "layer_norm|albert_layers", residual=False),
    planted(
        *("module-albert", "query-for-key", "swapped-weights", ATTENTION),
        change=swapped("attention.query", "attention.key"),
    ),
    planted("electra-tagger", "epsilon", EPSILON, NORM, epsilon=1e-3),
    planted("electra-tagger", "relu", "activation", _MLP, act="relu"),
    planted("electra-tagger", "mask-of-queries", "mask-ignored", ATTENTION, mask="queries"),
    planted("electra-tagger", "causal", "attention-causal", ATTENTION, causal=True),
    planted(
        *("electra-tagger", "query-as-stored-in-one", "transposed-weight", ATTENTION),
        stored=("self.query",),
        layers=(1,),
    ),
    planted("electra-tagger", "mapping-bias", "missing-bias", "embeddings_project", map_bias=False),
    planted("electra-tagger", "probabilities", "activation", _HEAD, logits="softmax", may_be_unnamed=True),
    planted(
        *("electra-tagger", "labels-backwards", "permuted-weight", _HEAD),
        change=weights(r"classifier\..*", by=_backwards),
    ),
    planted("sdpa-phi", "whole-head-turned", "rotary-partial", ATTENTION, share="all"),
    planted("sdpa-phi", "last-half-turned", "rotary-partial", ATTENTION, share="last", may_be_unnamed=True),
    planted("sdpa-phi", "frequencies-of-head", "rotary-base rotary-scaling", ATTENTION, over="head"),
    planted("sdpa-phi", "interleaved", "rotary-layout", ATTENTION, interleaved=True),
    planted("sdpa-phi", "sequential", STREAM, "layers|layernorm|mlp", block="sequential", may_be_unnamed=True),
    planted("sdpa-phi", "raw-mlp", "missing-norm", "layernorm|mlp", block="raw-mlp"),
    planted("sdpa-phi", "head-bias", "missing-bias", "lm_head|output", unbiased=("head",)),
    planted("sdpa-phi", "exact-gelu", "gelu", _MLP, act="exact"),
    planted("sdpa-phi", "padding-mask-alone", "attention-causal", ATTENTION, mask="padding"),
    planted("sdpa-phi", "mask-inverted", "attention-causal", ATTENTION, mask="inverted", may_be_unnamed=True),
    planted("sdpa-phi", "tied", "head-untied different-weight", "lm_head|output", tied=True),
    planted(
        *("nnx-marian", "sines-in-turn", "different-table permuted-weight", "embed_positions|layers"),
        sines="in turn",
        may_be_unnamed=True,
    ),
    planted("nnx-marian", "lookup-unscaled", "scaled-lookup", "embed_tokens|shared|layers", embed_scale=1.0),
    planted("nnx-marian", "positions-from-2", "position-ids-offset", "embed_positions|layers", first=2),
    planted("nnx-marian", "logits-bias", "missing-bias", "lm_head|output", logits_bias=False),
    planted("nnx-marian", "decoder-not-causal", "attention-causal", r"decoder.*attn", causal=False),
    planted("nnx-marian", "memory-unmasked", "mask-ignored", "encoder_attn", cross_padded=False),
    planted("nnx-marian", "relu", "activation", _MLP, act="relu"),
    planted("nnx-marian", "pre-norm", "norm-order", "layers|norm", pre_norm=True),
    planted("nnx-marian", "bias-unscaled", "different-weight", ATTENTION, folded="weight", may_be_unnamed=True),
    planted(
        *("nnx-marian", "encoder-attention-twice", SWAP, r"decoder.*self_attn"),
        change=weights(r"model\.decoder\.(layers\.\d\.self_attn\..*)", by=r"model.encoder.\1"),
    ),
    planted("gluon-distilbert", "tanh-gelu", "gelu", _MLP, gelu="tanh"),
    planted("gluon-distilbert", "mask-ignored", "mask-ignored", ATTENTION, mask="none"),
    planted("gluon-distilbert", "last-token-hidden", "attention-shift", ATTENTION, hidden=1, may_be_unnamed=True),
    planted("gluon-distilbert", "mask-after-softmax", "", ATTENTION, mask="after"),
    planted("gluon-distilbert", "unscaled", "attention-scale", ATTENTION, scaled=False),
    planted("gluon-distilbert", "no-positions", "missing-positions", "position|LayerNorm", positions=False),
    planted(
        *("gluon-distilbert", "norms-exchanged", "swapped-weights", "layer_norm"),
        change=swapped("sa_layer_norm", "output_layer_norm"),
    ),
    planted("gluon-distilbert", "dropout", "dropout", ATTENTION, dropout=0.1),
    planted(
        *("gluon-distilbert", "layer-twice", SWAP, r"layer\."),
        change=weights(r"transformer\.layer\.2\.(.*)", by=r"transformer.layer.1.\1"),
    ),
    planted("fused-olmo2", "norms-by-head", "", "q_norm|k_norm|attn", qk_norm="by head"),
    planted("fused-olmo2", "no-query-norms", "missing-norm", "q_norm|k_norm|attn", qk_norm="none"),
    planted("fused-olmo2", "norms-turned", "norm-order", "q_norm|k_norm|attn", qk_norm="after", may_be_unnamed=True),
    planted("fused-olmo2", "norms-before", "norm-order", "layers|layernorm", norms="before"),
    planted("fused-olmo2", "norms-of-sums", "norm-order", "layers|layernorm", norms="of sums"),
    planted("fused-olmo2", "epsilon-in-one", EPSILON, NORM, eps=1e-2, layers=(0,)),
    planted("fused-olmo2", "norms-in-half", "norm-in-half", NORM, half=True),
    planted("fused-olmo2", "up-first", _GATE, _MLP, fused=("up", "gate")),
    planted("fused-olmo2", "weights-in-half", "half-weights", "layers", held="rounded"),
    planted("fused-olmo2", "first-layer-again", "swapped-weights", "layers.1", held="again", layers=(1,)),
    planted("fused-olmo2", "other-keys", "different-weight", "k_proj", held="other keys", layers=(1,)),
    planted("fused-olmo2", "base", "rotary-base", ATTENTION, base=5e5),
    planted("library-mlm", "relu", "activation", _MLP, act="relu"),
    planted("library-mlm", "norm-first", "norm-order", "layer|LayerNorm", norm_first=True),
    planted("library-mlm", "mask-ignored", "mask-ignored", ATTENTION, mask="none"),
    planted(
        "library-mlm", "lookup-scaled", "scaled-lookup", "word_embeddings|LayerNorm|embeddings", embed_scale=32**0.5
    ),
    planted("library-mlm", "head-linear", "activation missing-part", "cls|transform", head_act="none"),
    planted("library-mlm", "head-tanh-gelu", "gelu", "cls|transform", head_act="tanh"),
    planted("library-mlm", "no-head-norm", "missing-norm", "cls|transform|LayerNorm|output", head_norm=False),
    planted("library-mlm", "head-bias", "missing-bias", "cls|decoder|output", bias_times=0.0),
    planted(
        "library-mlm", "head-bias-twice", "different-weight", "cls|decoder|output", bias_times=2.0, may_be_unnamed=True
    ),
    planted("library-mlm", "head-drawn-anew", "head-untied", "cls|decoder|output", head=3),
    planted("reranker", "types-ignored", "types-ignored", _TYPES, types="none"),
    planted(
        *("reranker", "types-turned", "other-ids permuted-weight different-table", _TYPES),
        types="turned",
        may_be_unnamed=True,
    ),
    planted(
        *("reranker", "second-text-from-0", "position-ids-offset", "position|LayerNorm|embeddings"),
        places="each",
        may_be_unnamed=True,
    ),
    planted("reranker", "pooler-skipped", "pooling missing-part", "pooler|classifier|output", pooler="skipped"),
    planted("reranker", "tanh-missing", "activation missing-part", "pooler|classifier|output", pooler="linear"),
    planted("reranker", "mean-for-first", "pooling", "pooler|classifier|output", pooling="mean"),
    planted("reranker", "sigmoid", "activation", _HEAD, score="sigmoid", may_be_unnamed=True),
    planted("reranker", "mask-sign", "", ATTENTION, mask="sign"),
    planted("reranker", "split-by-head", _QKV, ATTENTION, split="by head"),
    planted("reranker", "bias-missing", "missing-bias", _HEAD, out_bias=False),
    planted("reranker", "pooler-as-stored", "transposed-weight", "pooler|classifier|output", pooler_as_stored=True),
    planted("dumped-llama", "layout", "rotary-layout", ATTENTION, neighbours=True),
    planted(
        *("dumped-llama", "keys-permuted-as-queries", "permuted-weight rotary-layout", ATTENTION),
        permuted="qk",
        neighbours=True,
        key_heads=4,
    ),
    planted("dumped-llama", "epsilon", EPSILON, NORM, eps=1e-6),
    planted("dumped-llama", "groups-by-remainder", "attention-groups", ATTENTION, modulo=True),
    planted("dumped-llama", "activation-on-up", _GATE, _MLP, act_on_up=True),
    planted("dumped-llama", "8-bit-blocks", "half-weights", "proj|layers", stored="q8_0"),
    planted("dumped-llama", "float16", "half-weights", "proj|layers", stored="float16"),
    planted("dumped-llama", "no-final-norm", "missing-norm", "norm|lm_head|output", final=False),
)

LIST: Final = own_list(
    _PORTS,
    _FAULTS,
    pairs=(
        ("scan-opt", "positions-from-0", "gelu"),
        ("linen-mistral", "window-one-more", "w1-for-w3"),
        ("einsum-bloom", "slopes-geometric", "exact-gelu"),
        ("module-albert", "epsilon", "types-ignored"),
        ("sdpa-phi", "whole-head-turned", "head-bias"),
        ("nnx-marian", "lookup-unscaled", "decoder-not-causal"),
        ("gluon-distilbert", "tanh-gelu", "mask-ignored"),
        ("fused-olmo2", "up-first", "base"),
        ("reranker", "types-ignored", "tanh-missing"),
        ("dumped-llama", "epsilon", "groups-by-remainder"),
    ),
    right=(
        ("scan-opt", "unrolled", {"unrolled": True}),
        ("scan-opt", "positions-counted", {"from_mask": False}),
        ("linen-mistral", "padding-seen", {"padded": False}),
        ("linen-mistral", "positions-from-9", {"start": 9}),
        ("einsum-bloom", "distances-between", {"distance": "between"}),
        ("einsum-bloom", "strided-slopes", {"slopes": "strided"}),
        ("module-albert", "copied-layers", {"shared": False}),
        ("module-albert", "chosen-mask", {"mask": "where"}),
        ("sdpa-phi", "both-masks", {"mask": "both"}),
        ("nnx-marian", "scale-folded", {"folded": "both"}),
        ("library-mlm", "positions-first", {"by_position": True}),
        ("dumped-llama", "permuted", {"permuted": "qk", "neighbours": True}),
    ),
)
