"""The TensorFlow backend: Keras 2 and 3, Hugging Face's TF classes, `tf.Module`s and `tf.function`s.

PYTEST_DONT_REWRITE: pytest would warn of this package where it is imported before pytest's plugins are looked for.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from embgrad.backend import Call, Listener, Perturber, Point, Prefix, Request, Run, TokenBatch, Weight
from embgrad.checkpoints import WeightTarget
from embgrad.toolkit import MemoryMeter

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

    def points(self, model: Any, batch: TokenBatch, call: Call | None = None) -> Sequence[Point]:
        """Return the lookups and the calls of modules that a forward pass on the batch makes, in order."""
        from embgrad_tensorflow.run import points

        return points(model, batch, call)

    def run(self, model: Any, batch: TokenBatch, request: Request) -> Run:
        """Run one forward pass and a pullback for each set of cotangents; restore the model."""
        from embgrad_tensorflow.run import run

        return run(model, batch, request)

    def paths(self, model: Any) -> Collection[str]:
        """Return the attribute paths of the model's modules and tables, and other names under which they can be named."""
        from embgrad_tensorflow.run import paths

        return paths(model)

    def capture(self, model: Any, listener: Listener) -> AbstractContextManager[None]:
        """Report the user's passes through the model in this thread to the listener while the context is open."""
        from embgrad_tensorflow.capture import capture

        return capture(model, listener)

    def perturb(self, model: Any, perturber: Perturber) -> AbstractContextManager[None]:
        """Add to values in the user's own passes through the model in this thread while the context is open."""
        from embgrad_tensorflow.capture import perturb

        return perturb(model, perturber)

    def weights(self, model: Any) -> Sequence[Weight]:
        """Return the floating variables, trainable or not."""
        from embgrad_tensorflow.parameters import weights

        return weights(model)

    def alone(self, model: Any) -> AbstractContextManager[None]:
        """Keep other threads from running the model while the context is open."""
        from embgrad_tensorflow.parameters import alone

        return alone(model)

    def device_meter(self, model: Any) -> MemoryMeter | None:
        """Return the meter of the memory of the model's GPU; None for a model on the CPU."""
        from embgrad_tensorflow.parameters import device_meter

        return device_meter(model)

    def bert_targets(self, model: Any) -> list[WeightTarget] | None:
        """Return the places of the weights of a BERT as `bert` makes it; None for any other model."""
        from embgrad_tensorflow.bert import bert_targets

        return bert_targets(model)

    def prefix(self, model: Any) -> Prefix | None:
        """Return an empty cache of a text's keys and values; None for a model that takes none."""
        from embgrad_tensorflow.prefix import prefix

        return prefix(model)

    def bert(self, config: dict[str, Any]) -> tuple[Any, list[WeightTarget]]:
        """Return a `transformers.TFBertModel` of that configuration, and its weights' places."""
        from embgrad_tensorflow.bert import bert

        built: tuple[Any, list[WeightTarget]] = bert(config)
        return built
