"""Faults of BERTs that `embgrad.load_bert` makes in Gluon, JAX and PyTorch, and of transformers' classes in TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from torch import nn

from tests.cross.ports import plants_torch as plants
from tests.cross.ports.architectures import PADDING
from tests.cross.ports.fault import Entry, Fault, Plant, faults_of
from tests.cross.ports.plants_tensorflow import setting, subclassed
from tests.cross.ports.weights import (
    both,
    changed,
    drawn_anew,
    exchanged,
    in_bfloat16,
    permuted,
    rolled,
    row_zeroed,
    times,
    transposed,
    zeros,
)

ALL: Final = (0, 1, 2)
_EMBEDDED: Final = r"embeddings(\.word_embeddings|\.LayerNorm)?$"
_POSITIONS: Final = r"embeddings(\.position_embeddings|\.LayerNorm)?$"
_INNER: Final = r"encoder\.layer\.\d+\.(intermediate|output)"


class QuickGelu(nn.Module):
    """The GELU that OpenAI's CLIP has."""

    def forward(self, x: Any) -> Any:
        return x * (1.702 * x).sigmoid()


def _blocks(model: Any, kind: str) -> list[Any]:
    """Return Gluon's blocks of a class, in order."""
    found = [block for block in _every(model) if type(block).__name__ == kind]
    assert found, kind
    return found


def _every(block: Any) -> list[Any]:
    return [block, *(inner for child in block._children.values() for inner in _every(child))]


def _gluon_epsilon(value: float) -> Plant:
    def plant(model: Any) -> None:
        for block in _blocks(model, "LayerNorm"):
            block._kwargs["eps"] = value
            block._epsilon = value

    return plant


def _gluon_subclassed(kind: str, function: Callable[..., Any], *numbers: int) -> Plant:
    """Return what gives Gluon's blocks of a class another function, all or some in order."""

    def plant(model: Any) -> None:
        blocks = _blocks(model, kind)
        for block in [blocks[number] for number in numbers] if numbers else blocks:
            block.__class__ = type(kind, (type(block),), {"hybrid_forward": function})

    return plant


def _gluon_relu(_: Any, F: Any, x: Any) -> Any:
    return F.relu(x)


def _gluon_same(_: Any, F: Any, x: Any, **parameters: Any) -> Any:
    return F.identity(x)


def _nnx_epsilon(value: float) -> Plant:
    def plant(model: Any) -> None:
        from flax import nnx

        for _, node in nnx.iter_graph(model):
            if isinstance(node, nnx.LayerNorm):
                node.epsilon = value

    return plant


def _nnx_activation(name: str, *numbers: int) -> Plant:
    def plant(model: Any) -> None:
        for number in numbers:
            model.encoder.layer[number].intermediate.activation = name

    return plant


def _nnx_heads(count: int) -> Plant:
    def plant(model: Any) -> None:
        for layer in model.encoder.layer:
            layer.attention.self.heads = count

    return plant


GLUON: Final = faults_of(
    "bert", "gluon", "port",
    Entry("epsilon-all", "layer-norm-epsilon", "LayerNorm", _gluon_epsilon(1e-5), ("1e-12", "1e-05"), ALL),
    Entry("relu", "activation", _INNER, _gluon_subclassed("GELU", _gluon_relu), ("gelu", "relu"), ALL),
    Entry("relu-in-one-layer", "activation", r"encoder\.layer\.2\.(intermediate|output)",
        _gluon_subclassed("GELU", _gluon_relu, 2), ("gelu", "relu"), (2,)),
    Entry("norm-missing", "missing-norm", r"embeddings\.LayerNorm", _gluon_subclassed("LayerNorm", _gluon_same, 0)),
    Entry("query-for-key", "swapped-weights", r"encoder\.layer\.\d+\.attention\.self",
        both(exchanged("query_weight", "key_weight"), exchanged("query_bias", "key_bias")), None, ALL),
    Entry("positions-one-late", "position-ids-offset different-table", _POSITIONS,
        changed("position_weight", rolled(1)), ("0", "-1")),
    Entry("lookup-scaled", "scaled-lookup different-table", _EMBEDDED, changed(r"word_embed.*weight", times(32**0.5)),
        ("1", "5.65685")),
)  # fmt: skip

NNX: Final = faults_of(
    "bert", "jax", "port",
    Entry("epsilon-all", "layer-norm-epsilon", "LayerNorm", _nnx_epsilon(1e-5), ("1e-12", "1e-05"), ALL),
    Entry("tanh-gelu", "gelu", _INNER, _nnx_activation("gelu_new", *ALL), ("gelu", "gelu_new"), ALL),
    Entry("relu-in-one-layer", "activation", r"encoder\.layer\.1\.(intermediate|output)", _nnx_activation("relu", 1),
        ("gelu", "relu"), (1,)),
    Entry("two-heads", "attention-heads", r"encoder\.layer\.\d+\.attention", _nnx_heads(2), ("4", "2"), ALL),
    Entry("value-bias-missing", "missing-bias", r"encoder\.layer\.\d+\.attention\.self\.value",
        changed(r"self\.value\.bias", zeros), None, ALL),
    Entry("output-permuted", "permuted-weight", r"encoder\.layer\.0\.output\.dense",
        changed(r"layer\.0\.output\.dense\.kernel", permuted(1)), None, (0,)),
)  # fmt: skip

TORCH: Final = faults_of(
    "bert", "torch", "port",
    Entry("epsilon-all", "layer-norm-epsilon", "LayerNorm", plants.epsilon(".*LayerNorm", 1e-5), ("1e-12", "1e-05"),
        ALL),
    Entry("quick-gelu", "activation gelu", _INNER, plants.setting("intermediate", intermediate_act_fn=QuickGelu()),
        ("gelu", "quick_gelu"), ALL),
    Entry("dropout", "dropout", r"encoder\.layer\.1\.attention",
        plants.replaced(r"layer\.1\.attention\.output\.dropout", lambda _: plants.AlwaysDropping(0.1)), None, (1,)),
    Entry("norm-missing", "missing-norm", r"encoder\.layer\.0\.attention\.output\.LayerNorm",
        plants.replaced(r"layer\.0\.attention\.output\.LayerNorm", lambda _: nn.Identity()), None, (0,)),
    Entry("ids-one-late", "other-ids", _EMBEDDED,
        plants.replaced("word_embeddings", lambda table: plants.Shifted(table, 1))),
)  # fmt: skip


def _relu(x: Any) -> Any:
    import tensorflow

    return tensorflow.nn.relu(x)


def _tanh_gelu(x: Any) -> Any:
    import tensorflow

    return tensorflow.nn.gelu(x, approximate=True)


def _always(self: Any, inner: Any, inputs: Any, training: Any = None) -> Any:
    import tensorflow

    return tensorflow.nn.dropout(inputs, 0.1)


TENSORFLOW: Final = [
    *faults_of(
        "bert", "tensorflow", "port",
        Entry("epsilon-all", "layer-norm-epsilon", "LayerNorm", setting("LayerNorm", epsilon=1e-5), ("1e-12", "1e-05"),
            ALL),
        Entry("tanh-gelu", "gelu", _INNER, setting("intermediate", intermediate_act_fn=_tanh_gelu),
            ("gelu", "gelu_new"), ALL),
        Entry("unscaled", "attention-scale", r"encoder\.layer\.0\.attention",
            setting(r"layer\.0\.attention\.self", sqrt_att_head_size=1.0), ("0.353553", "1"), (0,)),
        Entry("dropout", "dropout", ".", subclassed(r"dropout(_\d+)?", call=_always), None, ALL),
        Entry("types-row-missing", "types-ignored different-table",
            r"embeddings(\.token_type_embeddings|\.LayerNorm)?$", changed(r"token_type_embeddings", zeros)),
        Entry(
            "mask-ignored", "mask-ignored",
            r"encoder\.layer\.\d+\.attention",
            subclassed(r"attention\.self",
                call=lambda self, inner, *given, **named: inner(*given, **{**named, "attention_mask": None})),
            None, ALL,
        ),
    ),
    *faults_of(
        "roberta", "tensorflow", "port",
        Entry("relu", "activation", _INNER, setting("intermediate", intermediate_act_fn=_relu), ("gelu", "relu"), ALL),
        Entry("epsilon-all", "layer-norm-epsilon", "LayerNorm", setting("LayerNorm", epsilon=1e-12), ("1e-05", "1e-12"),
            ALL),
    ),
    *faults_of(
        "distilbert", "tensorflow", "port",
        Entry("output-transposed", "transposed-weight", r"transformer\.layer\.2\.attention\.out_lin",
            changed(r"layer\.2\.attention\.out_lin\.kernel", transposed), None, (2,)),
    ),
    *faults_of("albert", "tensorflow", "port",
        Entry("table-anew", "different-table", _EMBEDDED, changed(r"word_embeddings", drawn_anew))),
    *faults_of(
        "gpt2", "tensorflow", "port",
        Entry("unscaled", "attention-scale", r"h\.\d+\.attn", setting("attn", scale=False), ("0.353553", "1"), ALL),
        Entry("epsilon-all", "layer-norm-epsilon", "ln_", setting(r"ln_\w", epsilon=1e-6), ("1e-05", "1e-06"), ALL),
        Entry("padding-zeroed", "padding-row", r"(wte|drop|h\.0\.ln_1)$", changed("wte", row_zeroed(PADDING))),
    ),
    *faults_of(
        "t5", "tensorflow", "port",
        Entry("relu", "activation", r"block\.\d+\.layer\.\d\.DenseReluDense", setting("DenseReluDense", act=_relu),
            ("gelu_new", "relu"), (0, 1)),
        Entry("epsilon-of-last", "layer-norm-epsilon", r"(en|de)coder\.final_layer_norm",
            setting(r"final_layer_norm", variance_epsilon=1e-2), ("1e-06", "0.01")),
    ),
    *faults_of(
        "bart", "tensorflow", "port",
        Entry("scale", "attention-scale", r"layers\.\d+\.(self_attn|encoder_attn)",
            setting("(self|encoder)_attn", scaling=1.0), ("0.353553", "1"), (0, 1)),
        Entry("weights-in-bfloat16", "half-weights", ".", changed(r"kernel", in_bfloat16), None, (0, 1)),
    ),
]  # fmt: skip

FAULTS: Final[list[Fault]] = [*GLUON, *NNX, *TORCH, *TENSORFLOW]
