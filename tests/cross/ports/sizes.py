"""How far each planted fault moves the output, recorded in sizes.json; `python -m tests.cross.ports.sizes` measures anew."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

RECORD: Final = Path(__file__).parent / "sizes.json"

#: A healthy pair agrees to less than this, relative in the L2 norm; a fault moves the output by more.
HEALTHY: Final = 1e-5
SMALLEST: Final = 1e-6


def measure(fault: Any) -> tuple[float, float, float]:
    """Return how far a pair's outputs are apart before and after a fault is planted, and how far it moves its side's output."""
    pair = fault.healthy()
    first = pair.outputs()
    fault.plant_in(pair)
    then = pair.outputs()
    from tests.cross.ports.architectures import difference

    return difference(*first), difference(*then), max(difference(*sides) for sides in zip(first, then, strict=True))


def recorded() -> Mapping[str, float]:
    """Return the recorded sizes by the faults' names: how far the fault moves the output."""
    return json.loads(RECORD.read_text(encoding="utf-8"))


def _rows(faults: Iterable[Any]) -> Iterable[tuple[str, float]]:
    for fault in faults:
        try:
            before, after, moved = measure(fault)
        except Exception as error:  # a fault that cannot be planted is shown with the others
            print(f"{fault.name}: {type(error).__name__}: {str(error)[:300]}", flush=True)
            continue
        mark = "" if before < HEALTHY and moved > SMALLEST else "   <-- not a fault of a healthy pair"
        print(f"{fault.name}: {before:.1e} before, {after:.1e} after, moved by {moved:.1e}{mark}", flush=True)
        yield fault.name, float(f"{moved:.2g}")


def main(arguments: list[str] | None = None) -> int:
    from tests.cross.ports.faults import FAULTS
    from tests.cross.ports.pairs_of_faults import PAIRS

    parser = argparse.ArgumentParser(prog="python -m tests.cross.ports.sizes", description=__doc__)
    parser.add_argument("--only", default="", help="a part of the names")
    parser.add_argument("--write", action="store_true", help="record the sizes")
    options = parser.parse_args(arguments)
    chosen = [fault for name, fault in {**FAULTS, **PAIRS}.items() if options.only in name]
    sizes = dict(_rows(chosen))
    if options.write:
        known = {} if not RECORD.exists() else dict(recorded())
        named = {name: size for name, size in {**known, **sizes}.items() if name in FAULTS or name in PAIRS}
        RECORD.write_text(json.dumps(dict(sorted(named.items())), indent=1) + "\n", encoding="utf-8")
    return 0 if len(sizes) == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
