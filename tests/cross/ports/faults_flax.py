"""Faults of ports to transformers' own classes in Flax: the configuration that a port runs with, and its parameters."""

from __future__ import annotations

from typing import Final

from tests.cross.ports.architectures import PADDING
from tests.cross.ports.fault import Entry, Fault, faults_of
from tests.cross.ports.plants_torch import configured
from tests.cross.ports.weights import (
    both,
    changed,
    drawn_anew,
    exchanged,
    halves_interleaved,
    in_bfloat16,
    in_float16,
    noisy,
    permuted,
    rolled,
    row_zeroed,
    transposed,
    zeros,
)

ALL: Final = (0, 1, 2)
_EMBEDDED: Final = r"embeddings(\.word_embeddings|\.LayerNorm)?$"
_POSITIONS: Final = r"embeddings(\.position_embeddings|\.LayerNorm)?$"
_INNER: Final = r"encoder\.layer\.\d+\.(intermediate|output)"

FAULTS: Final[list[Fault]] = [
    *faults_of(
        "bert", "flax", "port",
        Entry("epsilon-all", "layer-norm-epsilon", "LayerNorm", configured(layer_norm_eps=1e-5), ("1e-12", "1e-05"),
            ALL),
        Entry("tanh-gelu", "gelu", _INNER, configured(hidden_act="gelu_new"), ("gelu", "gelu_new"), ALL),
        Entry("two-heads", "attention-heads", r"encoder\.layer\.\d+\.attention", configured(num_attention_heads=2),
            ("4", "2"), ALL),
        Entry("positions-one-late", "position-ids-offset different-table", _POSITIONS,
            changed(r"position_embeddings\.embedding", rolled(1)), ("0", "-1")),
        Entry("inner-kernel-zero", "different-weight", r"encoder\.layer\.2\.output\.dense",
            changed(r"layer\.2\.output\.dense\.kernel", zeros), None, (2,)),
    ),
    *faults_of(
        "bert-lm", "flax", "port",
        Entry("head-bias-missing", "missing-bias", r"cls\.predictions(\.decoder)?",
            changed(r"predictions\.bias", zeros)),
        Entry("untied", "head-untied", r"cls\.predictions(\.decoder)?",
            both(configured(tie_word_embeddings=False), lambda model: _put_decoder(model))),
    ),
    *faults_of(
        "roberta", "flax", "port",
        Entry("relu", "activation", _INNER, configured(hidden_act="relu"), ("gelu", "relu"), ALL),
        Entry("value-bias-missing", "missing-bias", r"encoder\.layer\.1\.attention\.self\.value",
            changed(r"layer\.1\.attention\.self\.value\.bias", zeros), None, (1,)),
        Entry("weights-in-float16", "half-weights", ".", changed(r"kernel|embedding", in_float16), None, ALL),
    ),
    *faults_of(
        "distilbert", "flax", "port",
        Entry("rows-permuted", "permuted-weight different-table", _EMBEDDED,
            changed(r"word_embeddings\.embedding", permuted(0))),
        Entry("query-transposed", "transposed-weight", r"transformer\.layer\.1\.attention(\.q_lin)?",
            changed(r"layer\.1\.attention\.q_lin\.kernel", transposed), None, (1,)),
    ),
    *faults_of(
        "albert", "flax", "port",
        Entry("exact-gelu", "gelu", r"albert_layers\.0(\.|$)", configured(hidden_act="gelu"), ("gelu_new", "gelu"),
            ALL),
        Entry("epsilon-all", "layer-norm-epsilon", "[Ll]ayer_?[Nn]orm", configured(layer_norm_eps=1e-5),
            ("1e-12", "1e-05"), ALL),
        Entry("padding-zeroed", "padding-row", _EMBEDDED, changed(r"word_embeddings\.embedding", row_zeroed(PADDING))),
    ),
    *faults_of(
        "gpt2", "flax", "port",
        Entry("epsilon-all", "layer-norm-epsilon", "ln_", configured(layer_norm_epsilon=1e-6), ("1e-05", "1e-06"), ALL),
        Entry("exact-gelu", "gelu", r"h\.\d+\.mlp", configured(activation_function="gelu"), ("gelu_new", "gelu"), ALL),
        Entry("output-transposed", "transposed-weight", r"h\.\d+\.attn\.c_proj",
            changed(r"attn\.c_proj\.kernel", transposed), None, ALL),
        Entry(
            "layers-exchanged", "swapped-weights", r"h\.[01]\.mlp\.c_fc",
            both(
                exchanged(r"h\.0\.mlp\.c_fc\.kernel", r"h\.1\.mlp\.c_fc\.kernel"),
                exchanged(r"h\.0\.mlp\.c_fc\.bias", r"h\.1\.mlp\.c_fc\.bias"),
            ),
            None,
            (0, 1),
        ),
    ),
    *faults_of(
        "llama", "flax", "port",
        Entry("epsilon-all", "layer-norm-epsilon", "norm", configured(rms_norm_eps=1e-6), ("1e-05", "1e-06"), ALL),
        Entry("tanh-gelu", "activation", r"layers\.\d+\.mlp", configured(hidden_act="gelu_new"), ("silu", "gelu_new"),
            ALL),
        Entry(
            "rows-interleaved",
            "permuted-weight rotary-layout",
            r"layers\.\d+\.self_attn",
            both(
                changed(r"q_proj\.kernel", halves_interleaved(4, 1)),
                changed(r"k_proj\.kernel", halves_interleaved(2, 1)),
            ),
            None, ALL,
        ),
        Entry("gate-for-up", "swapped-weights gate-swapped", r"layers\.1\.mlp",
            exchanged(r"layers\.1\.mlp\.gate_proj", r"layers\.1\.mlp\.up_proj"), None, (1,)),
        Entry("weights-in-bfloat16", "half-weights", ".", changed(r"kernel", in_bfloat16), None, ALL),
    ),
    *faults_of(
        "t5", "flax", "port",
        Entry("epsilon-all", "layer-norm-epsilon", "layer_norm", configured(layer_norm_epsilon=1e-5),
            ("1e-06", "1e-05"), (0, 1)),
        Entry("distances-of-twenty", "attention-bias", r"block\.\d+\.layer\.0\.SelfAttention",
            configured(relative_attention_max_distance=20), ("128", "20"), (0, 1)),
        Entry(
            "key-for-value", "swapped-weights",
            r"encoder\.block\.1\.layer\.0\.SelfAttention",
            exchanged(r"encoder\.block\.1\.layer\.0\.SelfAttention\.k\.",
                r"encoder\.block\.1\.layer\.0\.SelfAttention\.v\."),
            None,
            (1,),
        ),
    ),
    *faults_of(
        "bart", "flax", "port",
        Entry("relu", "activation", r"layers\.\d+\.(activation_fn|fc\d)", configured(activation_function="relu"),
            ("gelu", "relu"), (0, 1)),
        Entry("positions-one-late", "position-ids-offset different-table", r"(embed_positions|layernorm_embedding)",
            changed(r"embed_positions", rolled(1)), ("0", "-1")),
        Entry("output-anew", "different-weight", r"decoder\.layers\.1\.fc2",
            changed(r"decoder\.layers\.1\.fc2\.kernel", drawn_anew), None, (1,)),
        Entry("inner-trained-on", "different-weight", r"encoder\.layers\.0\.fc1",
            changed(r"encoder\.layers\.0\.fc1\.kernel", noisy(0.001)), None, (0,)),
    ),
]  # fmt: skip


def _put_decoder(model: object) -> None:
    """Give a head that is no longer tied a matrix of its own."""
    from flax.traverse_util import flatten_dict, unflatten_dict

    flat = flatten_dict(model.params)
    table = flat["bert", "embeddings", "word_embeddings", "embedding"]
    flat["cls", "predictions", "decoder", "kernel"] = drawn_anew(table.T).astype(table.dtype)
    model._required_params = set(flat)
    model.params = unflatten_dict(flat)
