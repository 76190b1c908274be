"""The check that all actors of a run have the same weights, namely those of the first."""

from __future__ import annotations

import json
from typing import Any, Final

from ray.experimental import internal_kv

from embgrad.engine.weights import weights_sums
from embgrad.errors import BackendError, listed

__all__ = ["expect_same_weights"]

#: The namespace in Ray's internal key-value store that holds the first weights of each run.
NAMESPACE: Final = "embgrad"

#: The number of digits of a weight's digest that are compared.
DIGITS: Final = 16


def expect_same_weights(run: str, model: Any) -> None:
    """Record the weights of the first actor of a run, or compare an actor's weights with the recorded ones.

    Outside of Ray, where there are no other actors, nothing is checked.

    Args:
        run: the identifier of the run, shared by all of its actors.
        model: the model that the actor has built.

    Raises:
        BackendError: the weights differ.
    """
    if not internal_kv._internal_kv_initialized():
        return
    digests = {name: digest[:DIGITS] for name, digest in weights_sums(model).items()}
    key = f"weights:{run}"
    internal_kv._internal_kv_put(key, json.dumps(digests), overwrite=False, namespace=NAMESPACE)
    first = json.loads(internal_kv._internal_kv_get(key, namespace=NAMESPACE))
    differing = [name for name in dict.fromkeys([*first, *digests]) if first.get(name) != digests.get(name)]
    if differing:
        raise BackendError(
            f"build() returned different weights in different actors ({listed(differing)}): expected the same model in each, and "
            "in restarted ones. Load all weights inside build(), or set the seed there, for example for a classifier's new head"
        )
