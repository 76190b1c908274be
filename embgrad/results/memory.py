"""The forecast of `embgrad.memory`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from embgrad.common.options import count_or_none

__all__ = ["Memory"]

UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB")


@dataclass(frozen=True)
class Memory:
    """The memory that `embgrad.gradients` takes with a batch size, in bytes, extrapolated from measured runs of sub-batches.

    Attributes:
        device: the device whose memory this is: "cpu" for the resident size of the process, or "cuda:0" or "GPU:0" for the bytes
            that the framework's allocator hands out there.
        examples: the number of examples in the batch.
        batch_size: how many of them are run at once.
        weights: the size of the model's floating-point parameters and buffers, part of `base`; None where the backend cannot
            list them.
        base: what is in use between two calls, after a first one: weights, libraries, other data of the process or on the
            device.
        fixed: what a call takes besides, however many examples it runs.
        per_example: what a call takes for each example that is run at once: activations, gradients, temporary arrays, results.
        result: the size of one example's results, part of `per_example`; those of all examples are held until the call returns.
            0 on a GPU, since results lie in the memory of the process.
        measured: what calls took beyond `base`, by the number of examples in the sub-batches that were run.
    """

    device: str
    examples: int
    batch_size: int
    weights: int | None
    base: int
    fixed: int
    per_example: int
    result: int
    measured: Mapping[int, int] = field(repr=False)

    @property
    def activations(self) -> int:
        """The bytes that the call takes at its peak beyond `base`, the results of all examples included."""
        run = self.fixed + self.batch_size * self.per_example
        others = self.examples - self.batch_size
        # Sub-batches' results are held, then joined into new arrays, while allocators still keep what the runs have freed.
        return run + (others + self.examples) * self.result if others else run

    @property
    def peak(self) -> int:
        """The most memory in use during the call, in bytes: `base` and `activations`."""
        return self.base + self.activations

    def with_batch_size(self, batch_size: int) -> Memory:
        """Return the forecast for another number of examples at once; a smaller batch is taken to have that many.

        Raises:
            BatchError: it is not a whole number of at least 1.
        """
        size = count_or_none(batch_size, "batch_size") or self.examples
        return replace(self, batch_size=size, examples=max(size, self.examples))

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON-compatible values, `activations` and `peak` included."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "measured"}
        measured = {str(count): size for count, size in self.measured.items()}
        return {**fields, "activations": self.activations, "peak": self.peak, "measured": measured}

    def __repr__(self) -> str:
        weights = "" if self.weights is None else f", weights {_show(self.weights)}"
        return (
            f"Memory(peak {_show(self.peak)} on {self.device} with batch_size={self.batch_size} of {self.examples} examples: "
            f"{_show(self.base)} before the call{weights}; {_show(self.activations)} in it, {_show(self.per_example)} for "
            "each example at once)"
        )


def _show(size: int) -> str:
    """Return a number of bytes with three significant digits in the largest unit of which there is one, such as '1.25 GiB'."""
    number, unit = float(size), 0
    while number >= 1000 and unit < len(UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:.3g} {UNITS[unit]}"
