"""Build the BERT that `embgrad.zoo.load_bert` fills: a `transformers.BertModel`, and where each of its weights goes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from embgrad.checkpoints import WeightTarget, bert_names, keras_bert_targets
from embgrad.errors import BackendError, UnsupportedError, brief, quote
from embgrad_torch.parameters import bert_parameters, is_bert, writer
from embgrad_torch.walk import original

__all__ = ["bert", "bert_targets"]


def bert(config: Mapping[str, Any]) -> tuple[Any, list[WeightTarget]]:
    """Return a `transformers.BertModel` of that configuration in evaluation mode, and where each of its weights goes.

    Raises:
        BackendError: transformers is not installed.
        UnsupportedError: the configuration makes a BERT with other weights than the encoder and the pooler.
    """
    try:
        from transformers import BertConfig, BertModel
    except ImportError as error:
        raise BackendError(
            f"load_bert returns a transformers.BertModel, and transformers cannot be imported ({error}). Install it: pip install "
            "'embgrad[torch]'"
        ) from error
    settings = BertConfig.from_dict(dict(config))
    try:
        with torch.random.fork_rng(devices=[]), torch.inference_mode(False):  # the initial weights are overwritten
            model = BertModel(settings).eval()
    except (KeyError, ValueError) as error:
        raise UnsupportedError(
            f"transformers cannot build a BERT of the configuration (hidden_act={brief(config.get('hidden_act'))}, …): "
            f"{error}. Use values that its BertConfig accepts"
        ) from error
    names = bert_names(settings.num_hidden_layers)
    other = sorted({name for name, _ in model.named_parameters()} ^ set(names))
    if other:
        raise UnsupportedError(
            f"the configuration describes a BERT whose weights differ from the plain encoder's and pooler's in {quote(other)}. "
            "Use one without cross-attention, or build it with transformers: embgrad.gradients takes that model directly"
        )
    return model, _targets(model, names)


def bert_targets(model: Any) -> list[WeightTarget] | None:
    """Return where each weight of a checkpoint belongs in a plain `transformers.BertModel` or in keras-hub's BertBackbone.

    None for any other model.
    """
    module = original(model)
    if not is_bert(module):
        return keras_bert_targets(module)
    names = bert_names(module.config.num_hidden_layers)
    return _targets(module, names) if bert_parameters(module).keys() == set(names) else None


def _targets(model: Any, names: Sequence[str]) -> list[WeightTarget]:
    parameters = bert_parameters(model)
    return [
        WeightTarget(source=name, shape=tuple(parameters[name].shape), put=writer(parameters[name]), native=name)
        for name in names
    ]
