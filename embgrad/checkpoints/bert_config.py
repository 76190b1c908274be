"""The BERT configuration in a checkpoint's config.json, validated against the weights' shapes before a model is built."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Final

from embgrad.common.files import read_json
from embgrad.common.schema import FLAG, TEXT, Rule, SchemaError, number, whole
from embgrad.errors import FileFormatError, UnsupportedError, brief, did_you_mean, quote

__all__ = [
    "DEFAULTS",
    "LAYER_MODULES",
    "bert_config",
    "complete_config",
    "expect_expressible",
    "expect_fitting",
    "lacking",
    "misshapen",
    "read_config",
    "weight_names",
]

#: The Linear and LayerNorm modules of one layer of a BERT, in Hugging Face's names.
LAYER_MODULES: Final = (
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "attention.output.LayerNorm",
    "intermediate.dense",
    "output.dense",
    "output.LayerNorm",
)

#: The sizes that define a BERT, with the defaults of Hugging Face's configuration.
DEFAULTS: Final[Mapping[str, int]] = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
}

#: The other fields that change what a BERT computes, with the defaults of Hugging Face's configuration.
_FURTHER: Final[Mapping[str, Any]] = {
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "is_decoder": False,
    "add_cross_attention": False,
}

#: The tables, with the field of the configuration that holds each one's number of rows.
_TABLES: Final = {"word": "vocab_size", "position": "max_position_embeddings", "token_type": "type_vocab_size"}

_LAYER: Final = re.compile(r"encoder\.layer\.(0|[1-9][0-9]{0,9})\.(.+)\.(weight|bias)")

#: The most weights among which a message looks for the name that was meant.
_MOST_MEANT: Final = 1000


#: The fields of config.json that are passed to a framework, each with the values that it may have. All other fields are
#: ignored: they may name code, or the number of labels.
_FIELDS: Final[Mapping[str, Rule]] = {
    **dict.fromkeys(DEFAULTS, whole(1)),
    **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout"), number(0, 1)),
    **dict.fromkeys(("layer_norm_eps", "initializer_range"), number(0)),
    **dict.fromkeys(("model_type", "hidden_act", "position_embedding_type"), TEXT),
    **dict.fromkeys(
        ("is_decoder", "add_cross_attention", "use_cache", "output_attentions", "output_hidden_states", "return_dict"),
        FLAG,
    ),
    "chunk_size_feed_forward": whole(0),
    "pad_token_id": Rule(whole(0).accepts, "a row of the vocabulary"),
}


def read_config(folder: Path) -> dict[str, Any]:
    """Return the content of a checkpoint folder's config.json."""
    path = folder / "config.json"
    try:
        config = read_json(path)
    except FileNotFoundError:
        raise FileFormatError(
            f"{folder} holds no config.json: expected a checkpoint folder in Hugging Face's format, with config.json and "
            "model.safetensors"
        ) from None
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{path} cannot be read as JSON: {error}; expected a model's configuration") from error
    if not isinstance(config, dict):
        raise FileFormatError(f"{path} holds {brief(config)}: expected an object, a model's configuration")
    return config


def bert_config(folder: Path) -> dict[str, Any]:
    """Return the fields of config.json that define a BERT, with their types checked; a field that is null is absent."""
    config, path = read_config(folder), folder / "config.json"
    model_type = config.get("model_type")
    if model_type != "bert":
        raise UnsupportedError(
            f"{path} says model_type {brief(model_type)}: load_bert expects 'bert'. Build other models with their own library; "
            "embgrad.gradients takes them as they are"
        )
    fields = {name: value for name, value in config.items() if name in _FIELDS and value is not None}
    try:
        for name, value in fields.items():
            _FIELDS[name].check(name, value)
    except SchemaError as error:
        raise FileFormatError(f"{path} {error}; is it a BERT's config.json?") from None
    position_type = fields.get("position_embedding_type", "absolute")
    # A library that has dropped the other types ignores the field, and adds absolute positions anyway.
    if position_type != "absolute":
        raise UnsupportedError(
            f"{path} says position_embedding_type {brief(position_type)}: load_bert expects 'absolute', a table of positions. "
            "Build the model with a library that computes it; embgrad.gradients takes it as it is"
        )
    sizes = {**DEFAULTS, **fields}
    if sizes["hidden_size"] % sizes["num_attention_heads"]:
        raise FileFormatError(
            f"{path} says hidden_size {brief(sizes['hidden_size'])} and num_attention_heads "
            f"{brief(sizes['num_attention_heads'])}: expected a multiple of the latter"
        )
    if fields.get("pad_token_id", 0) >= sizes["vocab_size"]:
        raise FileFormatError(
            f"{path} says pad_token_id {brief(fields['pad_token_id'])}: expected a row of the vocabulary, whose vocab_size is "
            f"{brief(sizes['vocab_size'])}"
        )
    return fields


def complete_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with Hugging Face's defaults for the absent fields that change what a BERT computes."""
    return {**DEFAULTS, **_FURTHER, **{name: value for name, value in config.items() if value is not None}}


def expect_expressible(
    config: Mapping[str, Any], activations: Collection[str], model: str, *, one_dropout: bool = False
) -> None:
    """Refuse a configuration of which a class cannot be built.

    Args:
        model: the class's name for the message.
        one_dropout: whether the class drops as much of the attention as of the hidden states.
    """
    dropout = config["hidden_dropout_prob"]
    supported = {
        "hidden_act": (activations, f"one of {quote(activations)}"),
        "is_decoder": ((False,), "False"),
        "add_cross_attention": ((False,), "False"),
    }
    if one_dropout:
        supported["attention_probs_dropout_prob"] = ((dropout,), f"{dropout}, the value of hidden_dropout_prob")
    for name, (values, expected) in supported.items():
        if config[name] not in values:
            raise UnsupportedError(
                f"the checkpoint's configuration has {name} {brief(config[name])}, and {model} supports only {expected}. Load it "
                "with framework='torch'"
            )


def weight_names(layers: int) -> Iterator[str]:
    """Yield the names of all weights of a BERT with a pooler in Hugging Face's spelling, in the model's order."""
    yield from (f"embeddings.{table}_embeddings.weight" for table in _TABLES)
    yield from (f"embeddings.LayerNorm.{parameter}" for parameter in ("weight", "bias"))
    for layer in range(layers):
        for module in LAYER_MODULES:
            yield from (f"encoder.layer.{layer}.{module}.{parameter}" for parameter in ("weight", "bias"))
    yield from (f"pooler.dense.{parameter}" for parameter in ("weight", "bias"))


def expect_fitting(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], folder: Path) -> None:
    """Check that a configuration matches the weights, without building the model, which could be arbitrarily large.

    Args:
        shapes: the shapes of the checkpoint's weights, by the names of `weight_names`; other weights are ignored.
    """
    sizes = {**DEFAULTS, **config}
    expected = {name: shape for name in shapes if (shape := _shape(name, sizes)) is not None}
    count = 7 + 2 * len(LAYER_MODULES) * sizes["num_hidden_layers"]
    if len(expected) < count:
        first = islice((name for name in weight_names(sizes["num_hidden_layers"]) if name not in expected), 8)
        raise FileFormatError(lacking(folder, list(first), count - len(expected), count, set(shapes) - set(expected)))
    for name in weight_names(sizes["num_hidden_layers"]):
        if shapes[name] != expected[name]:
            raise FileFormatError(misshapen(folder, name, shapes[name], expected[name]))


def lacking(folder: Path, first: list[str], missing: int, count: int, left: set[str]) -> str:
    """Return the message about missing weights.

    Args:
        left: the names of the checkpoint's weights that the model does not have, for a hint.
    """
    more = f" and {missing - len(first)} more" if missing > len(first) else ""
    hint = did_you_mean(first[0], islice(sorted(left), _MOST_MEANT))
    return (
        f"{folder} lacks {missing} of the model's weights: {', '.join(map(repr, first))}{more}; expected all of {count}, as "
        f"config.json says.{hint}"
    )


def misshapen(folder: Path, name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> str:
    """Return the message about a weight whose shape is not the expected one."""
    return (
        f"{folder} holds {name!r} of shape {brief(shape)}: the configuration requires {brief(expected)}. Check that config.json "
        "and the weights belong to the same model"
    )


def _shape(name: str, sizes: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return the shape of a weight, or None if the model has no weight of that name."""
    hidden, inner = sizes["hidden_size"], sizes["intermediate_size"]
    for table, rows in _TABLES.items():
        if name == f"embeddings.{table}_embeddings.weight":
            return (sizes[rows], hidden)
    if name in ("embeddings.LayerNorm.weight", "embeddings.LayerNorm.bias", "pooler.dense.bias"):
        return (hidden,)
    if name == "pooler.dense.weight":
        return (hidden, hidden)
    match = _LAYER.fullmatch(name)
    if match is None or int(match[1]) >= sizes["num_hidden_layers"] or match[2] not in LAYER_MODULES:
        return None
    module, parameter = match[2], match[3]
    if module.endswith("LayerNorm"):
        return (hidden,)
    rows, columns = (
        (inner if module == "intermediate.dense" else hidden),
        (inner if module == "output.dense" else hidden),
    )
    return (rows, columns) if parameter == "weight" else (rows,)
