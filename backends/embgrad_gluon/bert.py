"""Build gluonnlp's BERT from a Hugging Face configuration, and name its weights and outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from embgrad.checkpoints import WeightTarget, complete_config, expect_expressible
from embgrad_gluon.importing import import_gluonnlp, import_mxnet
from embgrad_gluon.walk import arrays_of, unique_names

__all__ = ["build", "is_stack", "output_names", "setter_of", "sources", "targets"]

#: What is built, for messages.
MODEL: Final = "gluonnlp's BERT"

#: gluonnlp's names of the activations: its "gelu" is the exact one, by the error function.
ACTIVATIONS: Final[Mapping[str, str]] = {
    "gelu": "gelu",
    "gelu_new": "approx_gelu",
    "gelu_pytorch_tanh": "approx_gelu",
    "relu": "relu",
}

#: gluonnlp's modules outside the layers, with Hugging Face's names, and then those of one layer.
OUTER: Final[Mapping[str, str]] = {"encoder.layer_norm": "embeddings.LayerNorm", "pooler": "pooler.dense"}
INNER: Final[Mapping[str, str]] = {
    "attention_cell.proj_query": "attention.self.query",
    "attention_cell.proj_key": "attention.self.key",
    "attention_cell.proj_value": "attention.self.value",
    "proj": "attention.output.dense",
    "layer_norm": "attention.output.LayerNorm",
    "ffn.ffn_1": "intermediate.dense",
    "ffn.ffn_2": "output.dense",
    "ffn.layer_norm": "output.LayerNorm",
}
TABLES: Final[Mapping[str, str]] = {
    "word_embed.0.weight": "embeddings.word_embeddings.weight",
    "encoder.position_weight": "embeddings.position_embeddings.weight",
    "token_type_embed.0.weight": "embeddings.token_type_embeddings.weight",
}


def build(config: Mapping[str, Any]) -> tuple[Any, list[WeightTarget]]:
    """Build a `gluonnlp.model.BERTModel` of this configuration on the CPU; return it and where its weights go.

    Raises:
        UnsupportedError: gluonnlp has no such BERT.
    """
    known = complete_config(config)
    expect_expressible(known, ACTIVATIONS, MODEL, one_dropout=True)
    mx, model = import_mxnet(), _model(known)
    model.initialize(mx.init.Zero(), ctx=mx.cpu())
    with mx.autograd.pause():
        ids = mx.nd.zeros((1, 1))
        model(ids, ids, mx.nd.ones((1,)))  # the first call gives the layers their sizes
    known_targets = targets(model)
    assert known_targets is not None, "a model of this class has these parameters"
    return model, known_targets


def targets(model: Any) -> list[WeightTarget] | None:
    """Return where a checkpoint's weights go in a gluonnlp BERT of the form that `build` makes; None for another model."""
    if not is_stack(model):
        return None
    parameters = unique_names([model])
    named = sources(len(model.encoder.transformer_cells))
    if parameters.keys() != named.keys():  # it has other heads, shared parameters, or lacks a part
        return None
    return [WeightTarget(named[name], tuple(p.shape), setter_of(p), native=name) for name, p in parameters.items()]


def output_names(model: Any, returned: Any) -> tuple[str, ...]:
    """Return the names of the outputs that a gluonnlp BERT returns in order; none for another model."""
    if not _is_bert(model):
        return ()
    outputs = {
        "sequence_output": True,
        "attention": isinstance(returned, tuple) and isinstance(returned[1], (list, tuple)),  # one array a layer
        "pooled_output": hasattr(model, "pooler"),
        "classifier": hasattr(model, "classifier"),
        "logits": hasattr(model, "decoder"),
    }
    return tuple(name for name, exists in outputs.items() if exists)


def is_stack(model: Any) -> bool:
    """Return whether a model is a gluonnlp BERT with the layers that `build` makes, whatever heads it has."""
    return _is_bert(model) and hasattr(model.encoder, "transformer_cells")


def _is_bert(model: Any) -> bool:
    return any(
        (base.__module__, base.__qualname__) == ("gluonnlp.model.bert", "BERTModel") for base in type(model).__mro__
    )


def _model(known: Mapping[str, Any]) -> Any:
    bert = import_gluonnlp().model.bert
    encoder = bert.BERTEncoder(
        num_layers=known["num_hidden_layers"],
        units=known["hidden_size"],
        hidden_size=known["intermediate_size"],
        max_length=known["max_position_embeddings"],
        num_heads=known["num_attention_heads"],
        dropout=known["hidden_dropout_prob"],
        activation=ACTIVATIONS[known["hidden_act"]],
        layer_norm_eps=known["layer_norm_eps"],
    )
    return bert.BERTModel(
        encoder,
        vocab_size=known["vocab_size"],
        token_type_vocab_size=known["type_vocab_size"],
        units=known["hidden_size"],
        embed_size=known["hidden_size"],
        use_pooler=True,
        use_decoder=False,
        use_classifier=False,
    )


def sources(layers: int) -> dict[str, str]:
    """Return Hugging Face's names of the parameters by gluonnlp's."""
    modules = dict(OUTER)
    for layer in range(layers):
        modules |= {f"encoder.transformer_cells.{layer}.{a}": f"encoder.layer.{layer}.{b}" for a, b in INNER.items()}
    named = dict(TABLES)
    for module, source in modules.items():
        pair = ("gamma", "beta") if source.endswith("LayerNorm") else ("weight", "bias")
        named |= {f"{module}.{pair[0]}": f"{source}.weight", f"{module}.{pair[1]}": f"{source}.bias"}
    return named


def setter_of(parameter: Any) -> Callable[[np.ndarray], None]:
    """Return a function that writes values into a parameter's own arrays."""

    def put(value: np.ndarray) -> None:
        mx = import_mxnet()
        if not arrays_of(parameter):  # its initialization is deferred, and it keeps the values until then
            parameter.set_data(mx.nd.array(value, dtype=parameter.dtype))
            return
        # Not `set_data`, which resets a trainer's state of the parameter.
        with mx.autograd.pause():
            for array in arrays_of(parameter):
                plain = array.as_nd_ndarray() if isinstance(array, mx.np.ndarray) else array
                plain[:] = mx.nd.array(np.reshape(value, plain.shape), ctx=plain.context, dtype=plain.dtype)

    return put
