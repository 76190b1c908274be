"""A process of the zoo: it reads the names of models, a line each, and writes a row of JSON for each."""

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
    families = models.entries()
    _write(replies, {"families": families})
    for line in sys.stdin:
        _write(replies, examined(line.strip(), sys.argv[1], families, models, hand).plain())


def examined(name: str, framework: str, families: dict[str, str], models: Any, hand: Any) -> Row:
    """Return the row of a model."""
    row = Row(name, families[name], framework)
    try:
        case = models.build(name)
    except Unchecked as reason:
        row.unchecked = str(reason)
        return row
    return examine(row, case, hand)


def _write(replies: Any, value: dict[str, Any]) -> None:
    print(json.dumps(value), file=replies, flush=True)


if __name__ == "__main__":
    main()
