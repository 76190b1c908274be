"""The TensorFlow backend: Keras 2 and 3, Hugging Face's TF classes, `tf.Module`s and `tf.function`s.

PYTEST_DONT_REWRITE: pytest would warn of this package where it is imported before pytest's plugins are looked for.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

from embgrad.backend import defer

__all__ = ["TensorFlowBackend"]

#: TensorFlow's classes that models are made of, among the bases of their types.
FOUNDATIONS: Final = ("Module", "AutoTrackable", "PolymorphicFunction", "ConcreteFunction")

#: The libraries that take part, for the provenance.
LIBRARIES: Final = ("tensorflow", "tf_keras", "keras", "keras_hub", "transformers")


class TensorFlowBackend:
    """Runs models eagerly and pulls back on a tape that records only what lies behind the lookups.

    TensorFlow is imported by the methods that need it.
    """

    name = "tensorflow"
    package = "tensorflow"
    extra = "tensorflow"
    supports = frozenset(
        {"word", "training", "split", "native", "float64", "load_bert"}
        | {"modules", "override", "add", "edit", "parameters", "tables", "capture", "perturb", "weights", "compile"}
    )

    def owns(self, part: object) -> bool:
        """Return whether the object is a Keras model or layer on TensorFlow, a `tf.Module` or a `tf.function`."""
        bases = ((base.__module__.partition(".")[0], base.__qualname__) for base in type(part).__mro__)
        return any(root == "tensorflow" and name in FOUNDATIONS for root, name in bases)

    def versions(self) -> Mapping[str, str]:
        """Return the versions of TensorFlow, and of Keras and the model libraries where they are imported."""
        loaded = {name: sys.modules[name] for name in LIBRARIES if name in sys.modules}
        return {name: str(getattr(module, "__version__", "unknown")) for name, module in loaded.items()}

    points = defer("embgrad_tensorflow.run", "points")
    run = defer("embgrad_tensorflow.run", "run")
    paths = defer("embgrad_tensorflow.run", "paths")
    capture = defer("embgrad_tensorflow.capture", "capture")
    perturb = defer("embgrad_tensorflow.capture", "perturb")
    weights = defer("embgrad_tensorflow.parameters", "weights")
    alone = defer("embgrad_tensorflow.parameters", "alone")
    device_meter = defer("embgrad_tensorflow.parameters", "device_meter")
    bert_targets = defer("embgrad_tensorflow.bert", "bert_targets")
    bert = defer("embgrad_tensorflow.bert", "bert")
