"""Writes the page on architectures and roles: `python -m tests.torch.architecture_table` runs each model and prints it."""

from __future__ import annotations

import embgrad
from tests.torch.architectures import ARCHITECTURES, Architecture

HEAD = """# Architectures and roles

What `embgrad.points` tells of small random models of `transformers` in PyTorch, two layers each. The table is made by
running them, `python -m tests.torch.architecture_table`, and the tests compare the gradient at each of these points
with PyTorch's own. Nothing is known of the names: `word` is the lookup whose indices are the batch's ids, `position`
and `type` are lookups whose indices count up or are the types, `layer.N` are the calls of the repeated block,
`embeddings` is what the block gives that makes all lookups, or else what the first layer takes.

| | `word` | `position` | `type` | `embeddings` | `layer.0` | `layer.-1` | |
|---|---|---|---|---|---|---|---|"""

ROLES = ("word", "position", "type", "embeddings", "layer.0", "layer.-1")


def row(architecture: Architecture) -> str:
    """One line of the table."""
    seen = embgrad.points(architecture.build(), architecture.batch())
    names = [next((f"`{point.name}`" for point in seen if role in point.roles), "–") for role in ROLES]
    return f"| {architecture.name} | {' | '.join(names)} | {architecture.note} |"


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *map(row, ARCHITECTURES.values())]) + "\n"


if __name__ == "__main__":
    print(page(), end="")
