"""Faults of ports to keras-hub: BERT, RoBERTa, DistilBERT, ALBERT, T5 and BART."""

from __future__ import annotations

from typing import Final

import keras

from tests.cross.ports import plants_keras as keras_plants
from tests.cross.ports.architectures import PADDING, VOCAB
from tests.cross.ports.fault import Entry, Fault, faults_of
from tests.cross.ports.plants_keras import masking
from tests.cross.ports.plants_tensorflow import setting, subclassed
from tests.cross.ports.weights import (
    both,
    changed,
    drawn_anew,
    exchanged,
    in_bfloat16,
    in_float16,
    noisy,
    rolled,
    row_zeroed,
    transposed,
    zeros,
)

ALL: Final = (0, 1, 2)
_NORM: Final = r"(.*\.)?\w*layer_norm"
_INNER: Final = r"feedforward_intermediate_dense"
_BERT_LAYER: Final = r"encoder\.layer\.\d+\."


def tanh_gelu(x: object) -> object:
    return keras.activations.gelu(x, approximate=True)


BERT: Final = faults_of(
    "bert", "keras", "port",
    Entry("epsilon-all", "layer-norm-epsilon", "LayerNorm", setting(_NORM, epsilon=1e-5), ("1e-12", "1e-05"), ALL),
    Entry("epsilon-of-embeddings", "layer-norm-epsilon", r"embeddings\.LayerNorm",
        setting("embeddings_layer_norm", epsilon=1e-3), ("1e-12", "0.001")),
    Entry("gelu-all", "gelu", _BERT_LAYER + "(intermediate|output)", setting(_INNER, activation=tanh_gelu),
        ("gelu", "gelu_new"), ALL),
    Entry("relu-in-one-layer", "activation", r"encoder\.layer\.1\.(intermediate|output)",
        setting(rf"transformer_layer_1\.{_INNER}", activation=keras.activations.relu), ("gelu", "relu"), (1,)),
    Entry("unscaled-attention", "attention-scale", _BERT_LAYER + "attention",
        setting("self_attention_layer", _inverse_sqrt_key_dim=1.0), ("0.353553", "1"), ALL),
    Entry("mask-ignored", "mask-ignored", _BERT_LAYER + "attention",
        masking("self_attention_layer", keras_plants.all_seen), None, ALL),
    Entry("types-ignored", "types-ignored", r"embeddings(\.token_type_embeddings|\.LayerNorm)?$",
        subclassed("segment_embedding", call=keras_plants.first_type)),
    Entry("positions-from-one", "position-ids-offset", r"embeddings(\.position_embeddings|\.LayerNorm)?$",
        subclassed("position_embedding", call=keras_plants.started(1)), ("0", "1")),
    Entry("positions-missing", "missing-positions", r"embeddings(\.position_embeddings|\.LayerNorm)?$",
        subclassed("position_embedding", call=keras_plants.no_positions)),
    Entry("bias-missing", "missing-bias", r"encoder\.layer\.2\.intermediate\.dense",
        changed(r"transformer_layer_2\.feedforward_intermediate_dense\.bias", zeros), None, (2,)),
    Entry("output-transposed", "transposed-weight", r"encoder\.layer\.0\.attention\.output\.dense",
        changed(r"transformer_layer_0\.self_attention_layer\.attention_output\.kernel", transposed), None, (0,)),
    Entry(
        "query-for-key", "swapped-weights",
        r"encoder\.layer\.1\.attention\.self",
        both(
            exchanged(r"transformer_layer_1\.self_attention_layer\.query\.kernel",
                r"transformer_layer_1\.self_attention_layer\.key\.kernel"),
            exchanged(r"transformer_layer_1\.self_attention_layer\.query\.bias",
                r"transformer_layer_1\.self_attention_layer\.key\.bias"),
        ),
        None,
        (1,),
    ),
    Entry(
        "layers-exchanged", "swapped-weights",
        r"encoder\.layer\.[02]\.output\.dense",
        exchanged(r"transformer_layer_0\.feedforward_output_dense\.kernel",
            r"transformer_layer_2\.feedforward_output_dense\.kernel"),
        None,
        (0, 2),
    ),
    Entry("weights-in-float16", "half-weights", r".", changed(r"kernel|embeddings", in_float16), None, ALL),
    Entry("dropout", "dropout", r".", subclassed(r"(.*\.)?\w*dropout", call=keras_plants.dropping(0.1)), None, ALL),
    Entry("norm-first", "norm-order", _BERT_LAYER, setting(r"transformer_layer_\d", normalize_first=True), None, ALL),
    Entry("residual-missing", "missing-residual", r"encoder\.layer\.1\.output",
        subclassed("transformer_layer_1", call=keras_plants.without_residual), None, (1,)),
    Entry("norm-without-mean", "norm-kind", r"LayerNorm", subclassed(_NORM, call=keras_plants.root_mean_square), None,
        ALL),
)  # fmt: skip

ROBERTA: Final = faults_of(
    "roberta", "keras", "port",
    Entry("epsilon-all", "layer-norm-epsilon", "LayerNorm", setting(_NORM, epsilon=1e-12), ("1e-05", "1e-12"), ALL),
    Entry("positions-two-late", "position-ids-offset different-table",
        r"embeddings(\.position_embeddings|\.LayerNorm)?$", changed(r"position_embedding", rolled(2)), ("0", "-2")),
    Entry("tanh-gelu", "gelu", _BERT_LAYER + "(intermediate|output)", setting(_INNER, activation=tanh_gelu),
        ("gelu", "gelu_new"), ALL),
    Entry("value-anew", "different-weight", r"encoder\.layer\.0\.attention\.self(\.value)?",
        changed(r"transformer_layer_0\.self_attention_layer\.value\.kernel", drawn_anew), None, (0,)),
    Entry("norm-missing", "missing-norm", r"embeddings\.LayerNorm",
        subclassed("embeddings_layer_norm", call=keras_plants.same)),
    Entry("scaled-twice", "attention-scale", r"encoder\.layer\.2\.attention",
        setting(r"transformer_layer_2\.self_attention_layer", _inverse_sqrt_key_dim=0.125), ("0.353553", "0.125"),
        (2,)),
)  # fmt: skip

DISTILBERT: Final = faults_of(
    "distilbert", "keras", "port",
    Entry("padding-zeroed", "padding-row", r"embeddings(\.word_embeddings|\.LayerNorm)?$",
        changed(r"token_embedding", row_zeroed(PADDING))),
    Entry("ids-one-late", "other-ids", r"embeddings(\.word_embeddings|\.LayerNorm)?$",
        subclassed("token_embedding", call=keras_plants.looked_up(1, VOCAB))),
    Entry("swish", "activation", r"transformer\.layer\.\d+\.ffn", setting(_INNER, activation=keras.activations.silu),
        ("gelu", "silu"), ALL),
    Entry("norm-missing-in-one-layer", "missing-norm", r"transformer\.layer\.1\.sa_layer_norm",
        subclassed(r"transformer_layer_1\.self_attention_layer_norm", call=keras_plants.same), None, (1,)),
    Entry("mask-ignored", "mask-ignored", r"transformer\.layer\.\d+\.attention",
        masking("self_attention_layer", keras_plants.all_seen), None, ALL),
    Entry("biases-missing", "missing-bias", r"transformer\.layer\.\d+\.ffn\.lin2",
        changed(r"feedforward_output_dense\.bias", zeros), None, ALL),
)  # fmt: skip

ALBERT: Final = faults_of(
    "albert", "keras", "port",
    Entry("exact-gelu", "gelu", r"albert_layers\.0(\.|$)", setting(_INNER, activation=keras.activations.gelu),
        ("gelu_new", "gelu"), ALL),
    Entry("epsilon-all", "layer-norm-epsilon", "[Ll]ayer_?[Nn]orm", setting(_NORM, epsilon=1e-5), ("1e-12", "1e-05"),
        ALL),
    Entry("projection-bias-missing", "missing-bias", r"embedding_hidden_mapping_in",
        changed(r"embedding_projection\.bias", zeros)),
    Entry("projection-trained-on", "different-weight", r"embedding_hidden_mapping_in",
        changed(r"embedding_projection\.kernel", noisy(0.01))),
    Entry("types-ignored", "types-ignored", r"embeddings(\.token_type_embeddings|\.LayerNorm)?$",
        subclassed("segment_embedding", call=keras_plants.first_type)),
)  # fmt: skip

T5: Final = faults_of(
    "t5", "keras", "port",
    Entry("bias-missing", "attention-bias", r"block\.\d+\.layer\.0\.SelfAttention",
        changed(r"self_attention\.embeddings", zeros), None, (0, 1)),
    Entry("one-direction", "attention-bias", r"encoder\.block\.\d+\.layer\.0\.SelfAttention",
        setting(r"transformer_encoder_layer_\d\.self_attention", is_decoder=True), None, (0, 1)),
    Entry("sixteen-buckets", "attention-bias", r"block\.\d+\.layer\.0\.SelfAttention",
        setting("self_attention", relative_attention_buckets=16), ("32", "16"), (0, 1)),
    Entry("epsilon-all", "layer-norm-epsilon", r"layer_norm",
        setting(r"(t5|output)_layer_norm(_\d+)?|(en|de)coder_output_layer_norm", epsilon=1e-5), ("1e-06", "1e-05"),
        (0, 1)),
    Entry("gate-for-value", "gate-swapped swapped-weights", r"block\.\d+\.layer\.\d\.DenseReluDense",
        exchanged(r"input_projector\.kernel", r"gate_projector\.kernel"), None, (0, 1)),
    Entry("relu", "activation", r"block\.\d+\.layer\.\d\.DenseReluDense",
        setting("input_projector", activation=keras.activations.relu), ("gelu_new", "relu"), (0, 1)),
    Entry(
        "mask-ignored", "mask-ignored", r"EncDecAttention",
        subclassed("cross_attention",
            call=lambda self, inner, *given, **named: inner(*given, **{**named, "mask": None})),
        None,
        (0, 1),
    ),
    Entry("scaled-lookup", "scaled-lookup", r"(shared|embed_tokens|block\.0\.layer\.0)",
        keras_plants.returning("token_embedding", lambda x: x * 32**0.5), ("1", "5.65685")),
)  # fmt: skip

BART: Final = faults_of(
    "bart", "keras", "port",
    Entry("positions-two-late", "position-ids-offset different-table", r"(embed_positions|layernorm_embedding)",
        changed(r"(en|de)coder_position_embedding", rolled(2)), ("0", "-2")),
    Entry("tanh-gelu", "gelu", r"layers\.\d+\.(activation_fn|fc\d)", setting(_INNER, activation=tanh_gelu),
        ("gelu", "gelu_new"), (0, 1)),
    Entry("epsilon-all", "layer-norm-epsilon", "layer_?norm", setting(_NORM, epsilon=1e-12), ("1e-05", "1e-12"),
        (0, 1)),
    Entry("cross-mask-ignored", "mask-ignored", r"encoder_attn", masking("cross_attention", keras_plants.all_seen),
        None, (0, 1)),
    Entry("not-causal", "attention-causal", r"decoder\.layers\.\d+\.self_attn",
        masking(r"transformer_decoder_layer_\d\.self_attention", keras_plants.not_causal), None, (0, 1)),
    Entry("weights-in-bfloat16", "half-weights", r".", changed(r"kernel", in_bfloat16), None, (0, 1)),
    Entry("scaled-lookup", "scaled-lookup", r"(shared|embed_tokens|layernorm_embedding)",
        keras_plants.returning("token_embedding", lambda x: x * 32**0.5), ("1", "5.65685")),
)  # fmt: skip

FAULTS: Final[list[Fault]] = [*BERT, *ROBERTA, *DISTILBERT, *ALBERT, *T5, *BART]
