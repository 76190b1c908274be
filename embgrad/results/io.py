"""Save and load results: one, or several by name, restored bit for bit; files with any other content are refused."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from embgrad.errors import EmbgradError, brief
from embgrad.results.attribution import Attribution, Attributions
from embgrad.results.file_format import read_results, write_results
from embgrad.results.gradients import EmbeddingGradients
from embgrad.results.influence import Influence
from embgrad.results.pair_attribution import PairAttribution
from embgrad.results.port_report import PortReport
from embgrad.results.search import Search
from embgrad.results.substitutions import Substitutions
from embgrad.results.token_attribution import TokenAttribution

__all__ = ["Result", "expect_results", "load", "save"]

#: The classes of results by the names under which files have them.
_CLASSES: Final[dict[str, Callable[..., Any]]] = {
    "EmbeddingGradients": EmbeddingGradients,
    "Attribution": Attribution,
    "TokenAttribution": TokenAttribution,
    "PairAttribution": PairAttribution.from_fields,
    "Substitutions": Substitutions,
    "Search": Search,
    "PortReport": PortReport,
    "Influence": Influence,
}

#: The results that can be compared.
Result: TypeAlias = EmbeddingGradients | Attribution

#: The results that files hold.
Stored: TypeAlias = Result | TokenAttribution | PairAttribution | Substitutions | Search | PortReport | Influence


def save(results: Stored | Mapping[str, Any], path: str | os.PathLike[str], *, durable: bool = False) -> None:
    """Write a result, or several by name, to a safetensors file, which `embgrad.load` reads back bit for bit.

    The file appears whole or not at all.

    Args:
        results: a result of `embgrad.gradients`, `embgrad.attribute`, `embgrad.attribute_tokens`, `embgrad.attribute_pairs`,
            `embgrad.substitutions`, `embgrad.search`, `embgrad.check_port` or `embgrad.tables.influence`, or a mapping of names
            to results; any string is a valid name.
        path: the file's path; its folder must exist.
        durable: return only when the file would survive a power failure.

    Raises:
        EmbgradError: `results` is something else, or a result holds values that the format does not support, such as float16.
        OSError: the file cannot be written.
    """
    single = isinstance(results, Stored)
    named = {"": results} if isinstance(results, Stored) else _expect_stored(results)
    write_results(named, path, single=single, durable=durable)


def load(path: str | os.PathLike[str]) -> Any:
    """Read a file of `embgrad.save`, or of the method `save` of a result.

    Nothing in the file is executed, and reading takes no more memory than the file's size justifies.

    Returns:
        An `EmbeddingGradients`, an `Attribution`, a `TokenAttribution`, a `PairAttribution`, `Substitutions`, a `Search`, a
        `PortReport` or an `Influence`; of a file of several a dict by name in the order written, or `Attributions` where all are
        of the class `Attribution`.

    Raises:
        FileNotFoundError: there is no such file.
        FileFormatError: the file is incomplete, was not written by embgrad, or has a later version of the format.
        EmbgradError: `path` is not a path.
    """
    named, single = read_results(path)
    results = {name: _CLASSES[stored.kind](**stored.fields) for name, stored in named.items()}
    if single:
        return results[""]
    attributions = {name: result for name, result in results.items() if isinstance(result, Attribution)}
    return Attributions(attributions) if len(attributions) == len(results) else results


def expect_results(results: object) -> Mapping[str, Result]:
    """Return the mapping after checking that it maps names to results that can be compared."""
    return _expect(results, Result, "expected a result of embgrad.gradients or embgrad.attribute")


def _expect_stored(results: object) -> Mapping[str, Any]:
    others = (
        "embgrad.attribute_tokens, embgrad.attribute_pairs, embgrad.substitutions, embgrad.search, embgrad.check_port or "
        "embgrad.tables.influence"
    )
    return _expect(results, Stored, f"expected a result of embgrad.gradients, embgrad.attribute, {others}")


def _expect(results: object, classes: Any, of: str) -> Mapping[str, Any]:
    expected = f"{of}, or a mapping of names to results"
    if isinstance(results, (str, os.PathLike)):
        raise EmbgradError(
            f"results is {brief(results)}: {expected}; the path comes second, embgrad.save(results, path)"
        )
    if not isinstance(results, Mapping):
        raise EmbgradError(f"results is of type {type(results).__name__}: {expected}")
    if not results:
        raise EmbgradError(f"results is empty: {expected}, of one at least")
    for name, result in results.items():
        if not isinstance(name, str) or not isinstance(result, classes):
            raise EmbgradError(f"results holds {brief(name)}: {type(result).__name__}: {expected}")
    return results
