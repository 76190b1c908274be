"""A process of the zoo: it reads a model and its architecture, a line each, and writes a row of JSON for each.

The empty line asks for all models with their architectures.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from typing import Any

from tests.zoo.comparing import Row, examine
from tests.zoo.frameworks import FRAMEWORKS
from tests.zoo.hand import Unchecked


def main() -> None:
    framework = FRAMEWORKS[sys.argv[1]]
    # Frameworks write on the standard output too: what they write goes to the standard error.
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    models, hand = import_module(framework.models), framework.hand()
    _write(replies, {})
    for line in sys.stdin:
        name, _, family = line.strip().partition(" ")
        row = Row(name, family, sys.argv[1])
        _write(replies, examined(row, models, hand).plain() if name else models.entries())


def examined(row: Row, models: Any, hand: Any) -> Row:
    """Fill in the row of a model."""
    try:
        case = models.build(row.name)
    except Unchecked as reason:
        row.unchecked = str(reason)
        return row
    return examine(row, case, hand)


def _write(replies: Any, value: dict[str, Any]) -> None:
    print(json.dumps(value), file=replies, flush=True)


if __name__ == "__main__":
    main()
