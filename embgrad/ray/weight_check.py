"""Sees to it that all actors of a run compute with the same weights: what each has built is held to what the first had."""

from __future__ import annotations

import json
from typing import Any, Final

from ray.experimental import internal_kv

from embgrad.engine.weights import weights_sums
from embgrad.errors import BackendError, listed

__all__ = ["expect_same_weights"]

#: Where, in what Ray keeps by keys for a cluster, the runs' first weights are told.
NAMESPACE: Final = "embgrad"

#: So much of a weight's digest tells it from others.
SHORT: Final = 16


def expect_same_weights(run: str, model: Any) -> None:
    """Take down an actor's weights where no other has, and else compare them with those of the one that has.

    Outside of Ray there are no other actors.

    Args:
        run: the same for all actors that make one dataset, and for no others.
        model: what the actor has built.

    Raises:
        BackendError: they differ.
    """
    if not internal_kv._internal_kv_initialized():
        return
    own = {name: digest[:SHORT] for name, digest in weights_sums(model).items()}
    key = f"weights:{run}"
    internal_kv._internal_kv_put(key, json.dumps(own), overwrite=False, namespace=NAMESPACE)
    first = json.loads(internal_kv._internal_kv_get(key, namespace=NAMESPACE))
    others = [name for name in dict.fromkeys([*first, *own]) if first.get(name) != own.get(name)]
    if others:
        raise BackendError(
            f"build() gave one actor other weights than another ({listed(others)}): expected the same model in each, and in one "
            "that is started anew; load all weights inside build(), or set the seed there, as of a classifier's new head"
        )
