"""The provenance of a result, as lines of a table."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from embgrad.results.attribution import Attribution
from embgrad.results.gradients import EmbeddingGradients

__all__ = ["Origin", "origin"]

#: The largest number of letters in an entry.
MOST: Final = 400


@dataclass(frozen=True)
class Origin:
    """One result's provenance.

    Attributes:
        label: the result's name on the page.
        brief: the framework and model in one line.
        lines: all entries, by name.
    """

    label: str
    brief: str
    lines: tuple[tuple[str, str], ...]


def origin(label: str, result: EmbeddingGradients | Attribution, points: Sequence[str]) -> Origin:
    """Return the provenance of a result, one of several at these points."""
    source = result.provenance
    versions = source.get("versions")
    version = next(iter(versions.values()), "") if isinstance(versions, Mapping) else ""
    model = str(source.get("model", "?")).rpartition(".")[2]
    brief = f"{model}, {source.get('backend', '?')} {version}".strip()
    shape = " × ".join(map(str, result.shape))
    if isinstance(result, Attribution):
        lines = {"attribution": shape, **dict(_lines(source))}
        if result.delta is not None:
            lines["largest error of completeness"] = f"{abs(result.delta).max():.2e}"
    else:
        lines = {
            "gradient": f"{shape}, {result.values.dtype}",
            **dict(_lines(source)),
            "largest at padding": "no mask" if result.mask is None else f"{result.pad_leak:.2e}",
        }
    if len(points) > 1:
        lines["points"] = ", ".join(points)
    if isinstance(result, EmbeddingGradients) and result.certificate is not None:
        slopes = result.certificate.slopes
        held = sum(slope.holds for slope in slopes)
        lines["certificate"] = f"{held} of {len(slopes)} slopes by finite differences hold"
    return Origin(
        label, brief, tuple((name, text[:MOST] + ("…" if len(text) > MOST else "")) for name, text in lines.items())
    )


def _lines(source: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield the entries, with nested mappings flattened."""
    for name, value in source.items():
        if isinstance(value, Mapping):
            yield from _lines(value, f"{above}{name}, ")
        elif isinstance(value, str):
            yield f"{above}{name}".replace("_", " "), value
        else:
            yield f"{above}{name}".replace("_", " "), json.dumps(value, ensure_ascii=False, default=repr)
