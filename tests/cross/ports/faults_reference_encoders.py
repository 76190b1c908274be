"""Faults of references with an encoder: a port that is right beside an original that is wrong looks the same."""

from __future__ import annotations

from typing import Final

import torch
from torch import nn

from tests.cross.ports import plants_torch as plants
from tests.cross.ports.fault import Entry, Fault, faults_of
from tests.cross.ports.plants_torch import (
    AlwaysDropping,
    Centred,
    FirstRow,
    InHalf,
    RootMeanSquare,
    Scaled,
    Shifted,
    epsilon,
    masking,
    replaced,
    returning,
    rewritten,
    setting,
)
from tests.cross.ports.weights import (
    changed,
    drawn_anew,
    exchanged,
    in_bfloat16,
    noisy,
    permuted,
    rolled,
    transposed,
    zeros,
)

ALL: Final = (0, 1, 2)
_BERT_INNER: Final = r"encoder\.layer\.\d+\.(intermediate|output)"
_BERT_ATTENTION: Final = r"encoder\.layer\.\d+\.attention"
_TANH: Final = nn.GELU(approximate="tanh")
_EMBEDDED: Final = r"embeddings(\.word_embeddings|\.LayerNorm)?$"
_POSITIONS: Final = r"embeddings(\.position_embeddings|\.LayerNorm)?$"

BERT: Final = [
    *faults_of(
        "bert", "flax", "reference",
        Entry("epsilon-all", "layer-norm-epsilon", "LayerNorm", epsilon(".*LayerNorm", 1e-5), ("1e-05", "1e-12"), ALL),
        Entry("tanh-gelu", "gelu", _BERT_INNER, setting("intermediate", intermediate_act_fn=_TANH),
            ("gelu_new", "gelu"), ALL),
        Entry("two-heads", "attention-heads", _BERT_ATTENTION,
            setting(r"attention\.self", num_attention_heads=2, attention_head_size=16), ("2", "4"), ALL),
        Entry("mask-ignored", "mask-ignored", _BERT_ATTENTION, masking(r"layer\.\d+\.attention", plants.all_seen), None,
            ALL),
        Entry("residual-missing", "missing-residual", r"encoder\.layer\.2\.attention\.output",
            rewritten(r"layer\.2\.attention\.output", plants.without_sum), None, (2,)),
    ),
    *faults_of(
        "bert", "tensorflow", "reference",
        Entry("norm-without-mean", "norm-kind", "LayerNorm", replaced(".*LayerNorm", RootMeanSquare), None, ALL),
        Entry("norm-in-float16", "norm-in-half", r"embeddings\.LayerNorm",
            replaced(r"embeddings\.LayerNorm", lambda norm: InHalf(norm, torch.float16))),
        Entry("scaled-lookup", "scaled-lookup", _EMBEDDED, replaced("word_embeddings", Scaled), ("5.65685", "1")),
        Entry("positions-from-two", "position-ids-offset", _POSITIONS,
            replaced("position_embeddings", lambda table: Shifted(table, 2)), ("2", "0")),
        Entry("norm-before-sum", "norm-order", r"encoder\.layer\.\d+\.output",
            rewritten(r"layer\.\d+\.output", plants.norm_inside), None, ALL),
    ),
    *faults_of(
        "bert", "gluon", "reference",
        Entry("epsilon-in-one-layer", "layer-norm-epsilon", r"encoder\.layer\.1\.output\.LayerNorm",
            epsilon(r"layer\.1\.output\.LayerNorm", 1e-2), ("0.01", "1e-12"), (1,)),
        Entry("query-transposed", "transposed-weight", r"encoder\.layer\.0\.attention\.self(\.query)?",
            changed(r"layer\.0\.attention\.self\.query\.weight", transposed), None, (0,)),
        Entry("inner-permuted", "permuted-weight", r"encoder\.layer\.1\.intermediate\.dense",
            changed(r"layer\.1\.intermediate\.dense\.(weight|bias)", permuted(0)), None, (1,)),
        Entry("types-ignored", "types-ignored", r"embeddings(\.token_type_embeddings|\.LayerNorm)?$",
            replaced("token_type_embeddings", FirstRow)),
    ),
    *faults_of(
        "bert", "jax", "reference",
        Entry("dropout", "dropout", ".", replaced(".*dropout", lambda _: AlwaysDropping(0.1)), None, ALL),
        Entry("relu-in-one-layer", "activation", r"encoder\.layer\.0\.(intermediate|output)",
            setting(r"layer\.0\.intermediate", intermediate_act_fn=nn.ReLU()), ("relu", "gelu"), (0,)),
        Entry("table-anew", "different-table different-weight", _EMBEDDED,
            changed(r"word_embeddings\.weight", drawn_anew)),
    ),
]  # fmt: skip

ENCODERS: Final = [
    *faults_of(
        "roberta", "flax", "reference",
        Entry("epsilon-all", "layer-norm-epsilon", "LayerNorm", epsilon(".*LayerNorm", 1e-12), ("1e-12", "1e-05"), ALL),
        Entry("positions-from-zero", "position-ids-offset", _POSITIONS,
            replaced("position_embeddings", lambda table: Shifted(table, -2)), ("0", "2")),
        Entry("norm-missing", "missing-norm", r"encoder\.layer\.1\.output\.LayerNorm",
            replaced(r"layer\.1\.output\.LayerNorm", lambda _: nn.Identity()), None, (1,)),
    ),
    *faults_of(
        "distilbert", "tensorflow", "reference",
        Entry("tanh-gelu", "gelu", r"transformer\.layer\.\d+\.ffn", setting("ffn", activation=_TANH),
            ("gelu_new", "gelu"), ALL),
        Entry("epsilon-all", "layer-norm-epsilon", "[Ll]ayer_?[Nn]orm", epsilon(".*[nN]orm", 1e-5), ("1e-05", "1e-12"),
            ALL),
        Entry("bias-missing", "missing-bias", r"transformer\.layer\.0\.attention\.out_lin",
            changed(r"layer\.0\.attention\.out_lin\.bias", zeros), None, (0,)),
    ),
    *faults_of(
        "albert", "flax", "reference",
        Entry("relu", "activation", r"albert_layers\.0(\.|$)", setting(r"albert_layers\.0", activation=nn.ReLU()),
            ("relu", "gelu_new"), ALL),
        Entry("value-transposed", "transposed-weight", r"albert_layers\.0\.attention(\.value)?",
            changed(r"attention\.value\.weight", transposed), None, ALL),
    ),
    *faults_of(
        "bert-lm", "tensorflow", "reference",
        Entry("head-bias-missing", "missing-bias", r"cls\.predictions(\.decoder)?",
            changed(r"predictions\.bias", zeros)),
    ),
]  # fmt: skip

BOTH: Final = [
    *faults_of(
        "t5", "flax", "reference",
        Entry("distances-of-twenty", "attention-bias", r"block\.\d+\.layer\.0\.SelfAttention",
            setting("SelfAttention", relative_attention_max_distance=20), ("20", "128"), (0, 1)),
        Entry("epsilon-all", "layer-norm-epsilon", "layer_norm", epsilon(".*layer_norm", 1e-5), ("1e-05", "1e-06"),
            (0, 1)),
        Entry("scaled-lookup", "scaled-lookup", r"(shared|embed_tokens|block\.0)",
            replaced("shared|(en|de)coder.embed_tokens", Scaled), ("5.65685", "1")),
    ),
    *faults_of(
        "t5", "tensorflow", "reference",
        Entry("exact-gelu", "gelu", r"block\.\d+\.layer\.\d\.DenseReluDense", setting("DenseReluDense", act=nn.GELU()),
            ("gelu", "gelu_new"), (0, 1)),
        Entry("bias-of-other-heads", "attention-bias permuted-weight attention-heads",
            r"encoder\.block\.\d+\.layer\.0\.SelfAttention",
            changed(r"encoder\.block\.0\.layer\.0\.SelfAttention\.relative_attention_bias", rolled(1, 1)), None,
            (0, 1)),
    ),
    *faults_of(
        "bart", "flax", "reference",
        Entry("scale", "attention-scale", r"encoder\.layers\.\d+\.self_attn",
            setting(r"encoder\.layers\.\d\.self_attn", scaling=1.0), ("1", "0.353553"), (0, 1)),
        Entry("scaled-lookup", "scaled-lookup", r"(shared|embed_tokens|layernorm_embedding)",
            setting(r"(en|de)coder\.embed_tokens", embed_scale=32**0.5), ("5.65685", "1")),
        Entry("cross-mask-ignored", "mask-ignored", "encoder_attn", masking("encoder_attn", plants.all_seen), None,
            (0, 1)),
    ),
    *faults_of(
        "bart", "tensorflow", "reference",
        Entry("tanh-gelu", "gelu", r"layers\.\d+\.(activation_fn|fc\d)", setting(r"layers\.\d", activation_fn=_TANH),
            ("gelu_new", "gelu"), (0, 1)),
        Entry("weights-in-bfloat16", "half-weights", r"decoder",
            changed(r"decoder\.layers.*(proj|fc\d)\.weight", in_bfloat16), None, (0, 1)),
        Entry("inner-trained-on", "different-weight", r"encoder\.layers\.1\.fc1",
            changed(r"encoder\.layers\.1\.fc1\.weight", noisy(0.01)), None, (1,)),
    ),
]  # fmt: skip

MORE: Final = [
    *faults_of(
        "roberta", "keras", "reference",
        Entry("norm-without-mean", "norm-kind", r"encoder\.layer\.0\.attention\.output\.LayerNorm",
            replaced(r"layer\.0\.attention\.output\.LayerNorm", RootMeanSquare), None, (0,)),
        Entry("mask-ignored", "mask-ignored", _BERT_ATTENTION, masking(r"layer\.\d+\.attention", plants.all_seen), None,
            ALL),
    ),
    *faults_of(
        "distilbert", "keras", "reference",
        Entry("relu", "activation", r"transformer\.layer\.\d+\.ffn", setting("ffn", activation=nn.ReLU()),
            ("relu", "gelu"), ALL),
        Entry("positions-missing", "missing-positions", _POSITIONS, returning("position_embeddings", torch.zeros_like)),
        Entry("norm-missing", "missing-norm", r"embeddings\.LayerNorm",
            replaced(r"embeddings\.LayerNorm", lambda _: nn.Identity())),
    ),
    *faults_of(
        "albert", "keras", "reference",
        Entry("epsilon-all", "layer-norm-epsilon", "[Ll]ayer_?[Nn]orm", epsilon(".*[nN]orm", 1e-4), ("0.0001", "1e-12"),
            ALL),
        Entry("query-for-key", "swapped-weights", r"albert_layers\.0\.attention",
            exchanged(r"attention\.query\.", r"attention\.key\."), None, ALL),
    ),
    *faults_of(
        "t5", "keras", "reference",
        Entry("norm-with-mean", "norm-kind", "layer_norm", replaced(".*layer_norm", Centred), None, (0, 1)),
        Entry("dropout", "dropout", ".", replaced(".*dropout", lambda _: AlwaysDropping(0.1)), None, (0, 1)),
        Entry("causal-encoder-bias", "attention-bias", r"encoder\.block\.\d+\.layer\.0\.SelfAttention",
            setting(r"encoder\.block\.0\.layer\.0\.SelfAttention", is_decoder=True), None, (0, 1)),
    ),
    *faults_of(
        "bart", "keras", "reference",
        Entry("norm-in-float16", "norm-in-half", r"layernorm_embedding",
            replaced("layernorm_embedding", lambda norm: InHalf(norm, torch.float16))),
        Entry("not-causal", "attention-causal", r"decoder\.layers\.\d+\.self_attn",
            masking(r"decoder\.layers\.\d+\.self_attn", plants.not_causal), None, (0, 1)),
        Entry("bias-missing", "missing-bias", r"encoder\.layers\.0\.fc2",
            changed(r"encoder\.layers\.0\.fc2\.bias", zeros), None, (0,)),
    ),
]  # fmt: skip

FAULTS: Final[list[Fault]] = [*BERT, *ENCODERS, *BOTH, *MORE]
