"""Every text architecture of keras-hub, small, with random weights, from its backbone's parameters."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final

import keras_hub
import numpy as np

from tests.support.keras_hub_zoo import draw_weights
from tests.zoo.configurations import VOCAB, small_size
from tests.zoo.exceptions import BACKBONES
from tests.zoo.hand import Case, Unchecked

__all__ = ["build", "entries"]

#: The tasks of a backbone, and whether their logits are of the next tokens.
TASKS: Final[Mapping[str, bool]] = {
    "Backbone": False, "CausalLM": True, "Seq2SeqLM": True, "TextClassifier": False, "MaskedLM": False,
}  # fmt: skip

#: Two examples, of which the second is shorter; no id is there twice but the padding.
IDS: Final = np.random.default_rng(0).permutation(np.arange(5, 41))[:14].reshape(2, 7).astype(np.int32)
MASK: Final = np.array([[1] * 7, [1] * 5 + [0] * 2], np.int32)
DECODER: Final = np.array([[1, 45, 47, 49], [1, 46, 48, 50]], np.int32)

#: A batch, by the names of inputs.
INPUTS: Final[Mapping[str, np.ndarray]] = {
    **{f"{prefix}token_ids": np.where(MASK == 1, IDS, 0).astype(np.int32) for prefix in ("", "encoder_")},
    **{f"{prefix}padding_mask": MASK for prefix in ("", "encoder_")},
    "decoder_token_ids": DECODER,
    "decoder_padding_mask": np.ones_like(DECODER),
    "segment_ids": np.where(np.arange(7) > 3, MASK, 0).astype(np.int32),
    "position_ids": np.tile(np.arange(7, dtype=np.int32), (2, 1)),
    "mask_positions": np.array([[1, 2], [2, 3]], np.int32),
}


def entries() -> dict[str, str]:
    """Return the families by the names of the classes: those whose backbone has a vocabulary."""
    names = {}
    for task in TASKS:
        for name in dir(keras_hub.models):
            family = name.removesuffix(task)
            backbone = getattr(keras_hub.models, f"{family}Backbone", None)
            if name != task and name.endswith(task) and backbone is not None and _takes_ids(backbone):
                names[name] = family
    return names


def _takes_ids(backbone: Any) -> bool:
    return "vocabulary_size" in inspect.signature(backbone.__init__).parameters


def build(name: str) -> Case:
    """Return a model with its batch.

    Raises:
        Unchecked: the model is not to be had with these sizes, or takes further inputs than text.
    """
    family = entries()[name]
    task = name.removeprefix(family)
    try:
        model = getattr(keras_hub.models, f"{family}Backbone")(**_sizes(family))
        if task != "Backbone":
            options = {"num_classes": 3} if task == "TextClassifier" else {}
            model = getattr(keras_hub.models, name)(backbone=model, preprocessor=None, **options)
    except Exception as error:  # a class's own checks raise what they like
        raise Unchecked(f"{type(error).__name__}: {' '.join(str(error).split())}") from error
    if not isinstance(model.input, Mapping):
        raise Unchecked("the model takes no inputs by name, such as token_ids")
    unknown = sorted(set(model.input) - set(INPUTS))
    if unknown:
        raise Unchecked(f"the model takes further inputs than text: {', '.join(unknown)}")
    draw_weights(model)
    decoder = "decoder_token_ids" in model.input
    prefix = "encoder_" if decoder else ""
    labels = "decoder_token_ids" if decoder else "token_ids"
    return Case(
        model,
        {key: INPUTS[key] for key in model.input},
        ids=f"{prefix}token_ids",
        mask=f"{prefix}padding_mask",
        labels=labels if TASKS[task] else None,
        decoder="decoder_token_ids" if decoder else None,
    )


def _sizes(family: str) -> dict[str, Any]:
    """Return the arguments of a backbone."""
    known = BACKBONES.get(family, {})
    sizes = {}
    for name, parameter in inspect.signature(
        getattr(keras_hub.models, f"{family}Backbone").__init__
    ).parameters.items():
        if name in known:
            sizes[name] = known[name]
        elif name == "vocabulary_size":
            sizes[name] = VOCAB
        elif name != "self" and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            given = parameter.default is not parameter.empty
            if not given or (type(parameter.default) is int and parameter.default > 8):
                sizes[name] = small_size(name, parameter.default if given else 2**20)
    return sizes
