"""Every text architecture of `transformers`, small, with random weights, from its configuration class."""

from __future__ import annotations

import dataclasses
import inspect
import re
import zlib
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
import transformers
from transformers.models.auto import modeling_auto

from tests.zoo.configurations import small_configuration
from tests.zoo.exceptions import EVERYWHERE, SETTINGS
from tests.zoo.hand import Case, Unchecked
from tests.zoo.hand_torch import TorchHand

__all__ = ["build", "entries"]

#: The heads of an architecture, by the names of transformers' own tables, and whether its logits are of the next tokens.
HEADS: Final[Mapping[str, bool]] = {
    "MODEL_MAPPING_NAMES": False,
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": True,
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES": True,
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES": True,
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES": False,
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES": False,
    "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES": False,
    "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES": False,
}

#: Two examples, of which the second is shorter; no id is there twice but the padding.
IDS: Final = np.random.default_rng(0).permutation(np.arange(5, 41))[:14].reshape(2, 7)
MASK: Final = np.array([[1] * 7, [1] * 5 + [0] * 2])
DECODER: Final = np.array([[1, 45, 47, 49], [1, 46, 48, 50]])


def entries() -> dict[str, str]:
    """Return the model types by the names of their classes: those that take ids."""
    return {name: _kind(name, listed) for name, (listed, _) in _listed().items() if "input_ids" in _parameters(name)}


def _listed() -> dict[str, tuple[str, bool]]:
    """Return the classes of `HEADS` with the model type for which each is first listed, and whether it continues texts."""
    classes: dict[str, tuple[str, bool]] = {}
    for head, generates in HEADS.items():
        for kind, names in getattr(modeling_auto, head).items():
            for name in [names] if isinstance(names, str) else names:
                classes.setdefault(name, (kind, generates))
    return classes


def _kind(name: str, listed: str) -> str:
    """Return the model type of a class, which may be listed for other types too."""
    own = getattr(getattr(transformers, name).config_class, "model_type", "")
    return own if own in transformers.CONFIG_MAPPING else listed


def _parameters(name: str) -> Mapping[str, Any]:
    """Return the parameters of a class's forward pass; none of a class that stands in for a package that is missing."""
    cls = getattr(transformers, name, None)
    if cls is None or type(cls).__name__ == "DummyObject":
        return {}
    return inspect.signature(cls.forward).parameters


def build(name: str) -> Case:
    """Return a model with its batch.

    Raises:
        Unchecked: its configuration or the model is not to be had with these sizes.
    """
    listed, generates = _listed()[name]
    kind, cls = _kind(name, listed), getattr(transformers, name)
    try:
        configuration = small_configuration(
            transformers.CONFIG_MAPPING[kind], SETTINGS.get(kind, {}), EVERYWHERE.get(kind, {})
        )
        _expect_small(cls, configuration)
        torch.manual_seed(1)
        model = cls(configuration).float().eval()
    except Unchecked:
        raise
    except Exception as error:  # a configuration class's own checks raise what they like
        raise Unchecked(f"{type(error).__name__}: {' '.join(str(error).split())}") from error
    _draw(model)
    return _with_further(_case(name, model, generates), _parameters(name))


#: The most weights of a model.
MOST: Final = 20_000_000


def _expect_small(cls: Any, configuration: Any) -> None:
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in cls(configuration).parameters())
    if count > MOST:
        raise Unchecked(f"the configuration has {count:,} weights")


def _draw(model: Any) -> None:
    """Move each weight away from where it begins: zeros and ones would hide what depends on them."""
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            if parameter.is_floating_point():
                generator = torch.Generator().manual_seed(zlib.crc32(path.encode()))
                parameter += 0.05 * torch.randn(parameter.shape, generator=generator)


def _case(name: str, model: Any, generates: bool) -> Case:
    parameters = _parameters(name)
    batch = {"input_ids": IDS.copy()}
    if "attention_mask" in parameters:
        batch = {"input_ids": np.where(MASK == 1, IDS, 0), "attention_mask": MASK}
    # A classifier whose decoder reads the same text makes the decoder's ids, and reads the class at the end token.
    rereads = (
        "decoder_input_ids" in parameters and re.search("SequenceClassification|QuestionAnswering", name) is not None
    )
    if rereads:
        ends = MASK.sum(1) - 1
        batch["input_ids"][np.arange(len(IDS)), ends] = model.config.eos_token_id
    decoder = None
    if "decoder_input_ids" in parameters and model.config.is_encoder_decoder and not rereads:
        decoder = "decoder_input_ids"
        batch[decoder] = DECODER
    return Case(model, batch, labels=(decoder or "input_ids") if generates else None, decoder=decoder)


def _with_further(case: Case, parameters: Mapping[str, Any]) -> Case:
    """Return the case, with small images or with boxes of words where the model does not run on text alone."""
    configuration = case.model.config
    size = getattr(getattr(configuration, "vision_config", configuration), "image_size", None)
    further: dict[str, np.ndarray] = {}
    if "pixel_values" in parameters and isinstance(size, int):
        further["pixel_values"] = np.random.default_rng(2).normal(size=(len(IDS), 3, size, size)).astype(np.float32)
    if "bbox" in parameters:
        further["bbox"] = np.tile(np.array([1, 2, 3, 4]), (*IDS.shape, 1))
    if not further or _runs(case):
        return case
    completed = dataclasses.replace(case, batch={**case.batch, **further})
    return completed if _runs(completed) else case


def _runs(case: Case) -> bool:
    try:
        TorchHand().outputs(case)
    except Exception:  # what a model raises that lacks an input is its own affair; the row has it if nothing helps
        return False
    return True
