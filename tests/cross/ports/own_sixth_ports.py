"""A sixth list of ports written from scratch, among them GGUF's names, blocks of keys, a tree of dataclasses and grouped kernels.

The list was written down before any of it was tried, without a look at how causes are found. Ports and faults were run for
their outputs alone: a port is its reference's to rounding, and a fault is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from transformers.modeling_utils import no_init_weights

from tests.cross.ports import architectures, twins
from tests.cross.ports.architectures import VOCAB
from tests.cross.ports.own_fault import (
    ATTENTION,
    EPSILON,
    HEADS,
    IDS,
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
from tests.cross.ports.own_more_ports import DECODER, ENCODER, drawn
from tests.cross.ports.own_third_ports import Sentences
from tests.cross.ports.own_third_ports import batch as sentences
from tests.cross.ports.weights import in_bfloat16

_ENCODER: Final = {**ENCODER, "max_position_embeddings": 42}


def _stablelm() -> Any:
    """Return StableLM as its larger one is: in parallel, with a norm of each head's own."""
    options = {"qk_layernorm": True, "use_parallel_residual": True, "use_qkv_bias": True, "partial_rotary_factor": 0.5}
    with no_init_weights():  # which fails where a norm has no bias
        return drawn("StableLmForCausalLM", "StableLmConfig", **DECODER, **options)


def _mpnet() -> Any:
    return drawn("MPNetModel", "MPNetConfig", **_ENCODER)


class Projected(nn.Module):
    """MiniLM whose states' mean, in which later ones count more, is projected."""

    def __init__(self) -> None:
        super().__init__()
        self.bert, random = Sentences().bert, np.random.default_rng(17)
        self.config, self.dense = self.bert.config, nn.Linear(self.bert.config.hidden_size, 128)
        with torch.no_grad():
            self.dense.weight.copy_(torch.tensor(random.normal(0, 0.15, (128, self.config.hidden_size))))
            self.dense.bias.copy_(torch.tensor(random.normal(0, 0.3, 128)))

    def forward(self, input_ids: Any, attention_mask: Any) -> Any:
        x = self.bert(input_ids=input_ids, attention_mask=attention_mask)[0]
        share = attention_mask * torch.arange(1, input_ids.shape[1] + 1)
        pooled = (x * share[..., None]).sum(1) / share.sum(1, keepdim=True)
        return nn.functional.normalize(torch.tanh(self.dense(pooled)), dim=-1)


def _granite() -> Any:
    multipliers = {"embedding_multiplier": 6.0, "residual_multiplier": 0.5, "attention_multiplier": 0.1}
    options = {**DECODER, **multipliers, "logits_scaling": 4.0, "tie_word_embeddings": True}
    return drawn("GraniteForCausalLM", "GraniteConfig", **options)


def _pegasus() -> Any:
    """Return Pegasus with sines for positions, and a bias of its logits."""
    options = {
        **twins.MODELS["pegasus"][1],
        "encoder_layers": 3,
        "scale_embedding": True,
        "activation_function": "relu",
    }
    made = drawn("PegasusForConditionalGeneration", "PegasusConfig", **options)
    for side in (made.model.encoder, made.model.decoder):
        side.embed_positions._init_weight()
    made.final_logits_bias.copy_(torch.tensor(np.random.default_rng(3).normal(0, 0.5, (1, VOCAB))))
    return made


def _nemotron() -> Any:
    options = {**DECODER, "head_dim": 16, "tie_word_embeddings": False}
    return drawn("NemotronForCausalLM", "NemotronConfig", zero_centred=True, **options)


def _squeezebert() -> Any:
    fields = {**_ENCODER, "embedding_size": 32, "num_labels": 5}
    return drawn("SqueezeBertForSequenceClassification", "SqueezeBertConfig", **fields)


def _roberta() -> Any:
    options = {**architectures.ARCHITECTURES["roberta"].options, "tie_word_embeddings": True}
    return drawn("RobertaForMaskedLM", "RobertaConfig", **options)


_PORTS: Final[Mapping[str, OwnPort]] = {
    "ggml-stablelm": port_of("llama-lm", "own_sixth_torch", "GgmlStablelm", "", _stablelm),
    "online-mpnet": port_of("roberta", "own_sixth_torch", "OnlineMpnet", "", _mpnet),
    "pipeline-minilm": OwnPort(lambda: Projected().eval(), sentences, ("own_sixth_torch", "PipelineMinilm")),
    "tree-granite": port_of("llama-lm", "own_sixth_jax", "tree_granite", IDS, _granite),
    "stacked-pegasus": port_of(
        "bart", "own_sixth_jax", "stacked_pegasus", "input_ids attention_mask decoder_input_ids", _pegasus
    ),
    "keras-nemotron": port_of("llama-lm", "own_sixth_keras", "KerasNemotron", IDS, _nemotron),
    "grouped-squeezebert": port_of("bert", "own_sixth_tensorflow", "GroupedSqueezebert", "called", _squeezebert),
    "gluon-roberta-lm": port_of("roberta", "own_sixth_gluon", "GluonRobertaLm", MASKED, _roberta),
}

_MLP: Final = "mlp|intermediate|output.dense|output.conv1d|activation|fc"
_GATE: Final = "gate-swapped swapped-weights"
_QKV: Final = "swapped-weights permuted-weight attention-heads"
_HEAD_NORMS: Final = "q_layernorm|k_layernorm|attn"
_HEAD: Final = "lm_head|output"
_PLACES: Final = "position|LayerNorm|embeddings"

_FAULTS: Final = (
    planted("ggml-stablelm", "head-norms-uncentred", "norm-kind", _HEAD_NORMS, head_norm="rms"),
    planted("ggml-stablelm", "no-head-norms", "missing-norm", _HEAD_NORMS, head_norm="none"),
    planted("ggml-stablelm", "gain-of-first-head", SWAP, _HEAD_NORMS, gains="first"),
    planted("ggml-stablelm", "sequential", STREAM, "layers|mlp|norm", parallel=False),
    planted("ggml-stablelm", "a-quarter-turned", "rotary-partial", ATTENTION, rotary=4),
    planted("ggml-stablelm", "interleaved", "rotary-layout", ATTENTION, interleaved=True),
    planted("ggml-stablelm", "rows-of-llama-in-one", "permuted-weight", ATTENTION, permuted=True, layers=(1,)),
    planted("ggml-stablelm", "no-query-bias", "missing-bias", ATTENTION, unbiased=("q",)),
    planted("ggml-stablelm", "tiled", "attention-groups", ATTENTION, tiled=True),
    planted("ggml-stablelm", "head-of-table", "head-untied different-weight", _HEAD, tied=True),
    planted("online-mpnet", "not-rescaled", "", ATTENTION, rescaled=False),
    planted("online-mpnet", "last-block-left-out", "", ATTENTION, whole_blocks=True),
    planted("online-mpnet", "padding-seen", "mask-ignored", ATTENTION, unmasked=True),
    planted("online-mpnet", "bias-scaled", "attention-bias", ATTENTION, scaled="all"),
    planted("online-mpnet", "distances-turned", "attention-bias", ATTENTION, sign=-1),
    planted("online-mpnet", "buckets-of-a-decoder", "attention-bias", ATTENTION, both=False),
    planted("online-mpnet", "bias-in-first-alone", "attention-bias", ATTENTION, biased=False, layers=(1, 2)),
    planted("online-mpnet", "positions-from-0", "position-ids-offset", _PLACES, places="from 0"),
    planted("online-mpnet", "tanh-gelu", "gelu", _MLP, gelu="tanh"),
    planted(
        *("online-mpnet", "output-transposed-in-one", "transposed-weight", ATTENTION),
        change=weights(r"encoder\.layer\.2\.attention\.attn\.o\.weight", by=transposed),
    ),
    planted("pipeline-minilm", "plain-mean", "pooling", "output|dense", weighted="no"),
    planted("pipeline-minilm", "places-from-0", "pooling", "output|dense", first=0),
    planted("pipeline-minilm", "padding-weighted", "pooling", "output|dense", masked=False),
    planted("pipeline-minilm", "projected-first", "pooling", "output|dense", project="before"),
    planted("pipeline-minilm", "no-tanh", "activation missing-part", "output|dense", tanh=False),
    planted("pipeline-minilm", "no-dense-bias", "missing-bias", "output|dense", dense_bias=False),
    planted("pipeline-minilm", "heads-inside", HEADS, ATTENTION, inside=True),
    planted("pipeline-minilm", "scale-of-width", "attention-scale", ATTENTION, scale_of=384),
    planted("pipeline-minilm", "weights-one-layer-late", SWAP, r"layer\.", shift=1),
    planted(
        *("pipeline-minilm", "weights-in-half", "half-weights", r"layer\."),
        change=weights(r"bert\.encoder\..*\.weight", by=in_bfloat16),
    ),
    planted("tree-granite", "lookup-unscaled", "scaled-lookup", "embed|layers", embedding=1.0),
    planted("tree-granite", "feed-unscaled", "residual-scale", "layers|mlp", residual_of="attention"),
    planted("tree-granite", "sum-scaled-in-one", "residual-scale", "layers", residual_of="sum", layers=(1,)),
    planted("tree-granite", "scale-of-head", "attention-scale", ATTENTION, attention=None),
    planted("tree-granite", "logits-multiplied", "logit-scale", _HEAD, multiplied=True),
    planted("tree-granite", "angles-in-bfloat16", "", ATTENTION, angle_dtype="bfloat16"),
    planted("tree-granite", "norms-in-half", "norm-in-half", NORM, norm_dtype="bfloat16"),
    planted("tree-granite", "up-first", _GATE, _MLP, feed=("up", "gate", "down")),
    planted("tree-granite", "one-ahead", "attention-shift attention-causal", ATTENTION, ahead=1),
    planted("tree-granite", "tiled", "attention-groups", ATTENTION, tiled=True),
    planted(
        "stacked-pegasus", "sines-in-turn", "different-table permuted-weight", "embed_positions|layers", sines="in turn"
    ),
    planted("stacked-pegasus", "positions-from-2", "position-ids-offset", "embed_positions|layers", first=2),
    planted("stacked-pegasus", "lookup-unscaled", "scaled-lookup", "shared|embed|layers", embed_scale=1.0),
    planted("stacked-pegasus", "raw-memory", "missing-norm", "encoder.layer_norm|encoder_attn", memory_norm=False),
    planted("stacked-pegasus", "memory-unmasked", "mask-ignored", "encoder_attn", cross_masked=False),
    planted("stacked-pegasus", "decoder-of-both-sides", "attention-causal", "decoder", causal=False),
    planted("stacked-pegasus", "gelu-for-relu", "activation", _MLP, act="gelu"),
    planted("stacked-pegasus", "layers-backwards", SWAP, "layers", backwards=True),
    planted("stacked-pegasus", "no-logits-bias", "missing-bias", _HEAD, logits_bias=0.0),
    planted(
        *("stacked-pegasus", "key-for-value-in-one", "swapped-weights", "encoder_attn"),
        change=swapped("decoder.layers.1.encoder_attn.k_proj", "decoder.layers.1.encoder_attn.v_proj"),
    ),
    planted("keras-nemotron", "relu-not-squared", "activation", _MLP, act="relu"),
    planted("keras-nemotron", "square-alone-in-one", "activation", _MLP, act="square", layers=(1,)),
    planted("keras-nemotron", "norms-of-weight-alone", "norm-offset different-weight", NORM, offset=0.0),
    planted("keras-nemotron", "norms-uncentred", "norm-kind", NORM, centred=False),
    planted("keras-nemotron", "epsilon-of-keras", EPSILON, NORM, eps=1e-3),
    planted("keras-nemotron", "whole-head-turned", "rotary-partial", ATTENTION, share=1.0),
    planted("keras-nemotron", "heads-inside", HEADS, ATTENTION, inside=True),
    planted("keras-nemotron", "output-as-stored-in-one", "transposed-weight", ATTENTION, reshaped=True, layers=(2,)),
    planted("keras-nemotron", "tiled", "attention-groups", ATTENTION, tiled=True),
    planted("keras-nemotron", "head-of-table", "head-untied different-weight", _HEAD, tied=True),
    planted("grouped-squeezebert", "channels-shuffled", "permuted-weight", _MLP, shuffled=("intermediate.conv1d",)),
    planted(
        *("grouped-squeezebert", "query-as-stored-in-one", "transposed-weight", ATTENTION),
        as_stored=("attention.query",),
        layers=(1,),
    ),
    planted(
        *("grouped-squeezebert", "value-bias-in-one", "missing-bias", ATTENTION),
        unbiased=("attention.value",),
        layers=(2,),
    ),
    planted("grouped-squeezebert", "scale-of-width", "attention-scale", ATTENTION, scale_of=32),
    planted("grouped-squeezebert", "quick-gelu", "gelu activation", _MLP, quick=True),
    planted("grouped-squeezebert", "input-for-residual", STREAM, "layers", residual="input"),
    planted("grouped-squeezebert", "mask-ignored", "mask-ignored", ATTENTION, masked=False),
    planted("grouped-squeezebert", "types-of-zero", "types-ignored", "token_type|embeddings", types=False),
    planted("grouped-squeezebert", "last-pooled", "pooling", "pooler|classifier|output", pooled="last"),
    planted("grouped-squeezebert", "tanh-missing", "activation missing-part", "pooler|classifier", pooler="linear"),
    planted("gluon-roberta-lm", "fused-by-role", _QKV, ATTENTION, fused="by role"),
    planted(*("gluon-roberta-lm", "key-first-in-one", SWAP, ATTENTION), order=("key", "query", "value"), layers=(1,)),
    planted("gluon-roberta-lm", "scaled-twice", "attention-scale", ATTENTION, scaled_twice=True),
    planted("gluon-roberta-lm", "padding-seen", "mask-ignored", ATTENTION, masked=False),
    planted("gluon-roberta-lm", "relu-in-one", "activation", _MLP, act="relu", layers=(2,)),
    planted("gluon-roberta-lm", "no-residual-in-one", "missing-residual", r"layer\.", residual=False, layers=(0,)),
    planted("gluon-roberta-lm", "positions-from-0", "position-ids-offset", _PLACES, places="from 0"),
    planted("gluon-roberta-lm", "head-not-activated", "activation missing-part", "lm_head", head_act="none"),
    planted("gluon-roberta-lm", "head-not-normed", "missing-norm", "lm_head", head_norm=False),
    planted("gluon-roberta-lm", "head-of-its-own", "head-untied different-weight", "lm_head", tied=False),
)

LIST: Final = own_list(
    _PORTS,
    _FAULTS,
    pairs=(
        ("ggml-stablelm", "a-quarter-turned", "no-query-bias"),
        ("online-mpnet", "padding-seen", "tanh-gelu"),
        ("pipeline-minilm", "scale-of-width", "no-dense-bias"),
        ("tree-granite", "lookup-unscaled", "logits-multiplied"),
        ("stacked-pegasus", "raw-memory", "gelu-for-relu"),
        ("keras-nemotron", "relu-not-squared", "whole-head-turned"),
        ("grouped-squeezebert", "types-of-zero", "last-pooled"),
        ("gluon-roberta-lm", "fused-by-role", "head-not-normed"),
    ),
    right=(
        ("ggml-stablelm", "scale-in-gain", {"scale_in": "gain"}),
        ("ggml-stablelm", "turned-by-a-matrix", {"turn": "matrix"}),
        ("ggml-stablelm", "texts-alone", {"texts": "alone", "fused": True}),
        ("online-mpnet", "one-block", {"block": 16}),
        ("online-mpnet", "two-passes", {"passes": 2, "block": 5}),
        ("online-mpnet", "scale-in-weights", {"scaled": "weights"}),
        ("pipeline-minilm", "all-queries", {"chunk": 512}),
        ("pipeline-minilm", "scale-in-weights", {"folded": True}),
        ("pipeline-minilm", "mean-by-product", {"pooled": "matmul"}),
        ("tree-granite", "multipliers-in-tables", {"folded": True}),
        ("tree-granite", "scanned", {"layers": "scanned"}),
        ("tree-granite", "not-compiled", {"jit": False}),
        ("stacked-pegasus", "unrolled", {"unrolled": True, "remat": False}),
        ("stacked-pegasus", "added-mask", {"masked": "added", "jit": False}),
        ("keras-nemotron", "one-in-gains", {"folded": True}),
        ("keras-nemotron", "fused-attention", {"form": "fused"}),
        ("keras-nemotron", "product-with-relu", {"act": "product", "masked": "added"}),
        ("grouped-squeezebert", "blocks-in-matrices", {"form": "dense"}),
        ("grouped-squeezebert", "eager-gathered", {"run": "eager", "lookup": "gather"}),
        ("grouped-squeezebert", "scale-in-kernels", {"folded": True}),
        ("grouped-squeezebert", "xla", {"run": "xla"}),
        ("gluon-roberta-lm", "products-of-heads", {"form": "batch dot"}),
        ("gluon-roberta-lm", "imperative", {"hybrid": False}),
    ),
)
