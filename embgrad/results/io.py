"""Results in files: one or several by name, read back bit for bit; what else a file may hold is refused, never guessed."""

from __future__ import annotations

import os
from collections.abc import Mapping

from embgrad.errors import EmbgradError, brief
from embgrad.results.file_format import read_results, write_results
from embgrad.results.gradients import EmbeddingGradients

__all__ = ["expect_results", "load", "save"]


def save(
    results: EmbeddingGradients | Mapping[str, EmbeddingGradients],
    path: str | os.PathLike[str],
    *,
    durable: bool = False,
) -> None:
    """Write a result, or several by name, to a safetensors file, which `embgrad.load` reads back bit for bit.

    The file appears whole or not at all.

    Args:
        results: a result of `embgrad.gradients`, or a mapping of names to results; any string is a name.
        path: where to; the folder must be there.
        durable: come back only when the file would outlast a power failure.

    Raises:
        EmbgradError: `results` is something else, or a result holds what no file can, such as float16 values.
        OSError: the file cannot be written.
    """
    single = isinstance(results, EmbeddingGradients)
    named = {"": results} if isinstance(results, EmbeddingGradients) else expect_results(results)
    write_results(named, path, single=single, durable=durable)


def load(path: str | os.PathLike[str]) -> EmbeddingGradients | dict[str, EmbeddingGradients]:
    """What `embgrad.save` or `EmbeddingGradients.save` has written: a result, or a dict of results in the order as written.

    Nothing in the file is run, and reading takes no more memory than its size warrants.

    Raises:
        FileNotFoundError: there is no such file.
        FileFormatError: it is not whole, not embgrad's, or of a later version of the format.
        EmbgradError: `path` is no path.
    """
    named, single = read_results(path)
    results = {name: EmbeddingGradients(**fields) for name, fields in named.items()}
    return results[""] if single else results


def expect_results(results: object) -> Mapping[str, EmbeddingGradients]:
    """The mapping of names to results that it is.

    Raises:
        EmbgradError: it is no such mapping, or an empty one.
    """
    expected = "expected a result of embgrad.gradients, or a mapping of names to results"
    if isinstance(results, (str, os.PathLike)):
        raise EmbgradError(
            f"results is {brief(results)}: {expected}; the path comes second, embgrad.save(results, path)"
        )
    if not isinstance(results, Mapping):
        raise EmbgradError(f"results is of type {type(results).__name__}: {expected}")
    if not results:
        raise EmbgradError(f"results is empty: {expected}, of one at least")
    for name, result in results.items():
        if not isinstance(name, str) or not isinstance(result, EmbeddingGradients):
            raise EmbgradError(f"results holds {brief(name)}: {type(result).__name__}: {expected}")
    return results
