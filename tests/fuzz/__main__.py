"""Random right and broken calls of every public function: `python -m tests.fuzz --calls 10000 --seed 1`.

EMBGRAD_TEST_BACKENDS names the frameworks, as in the tests. What comes of call N depends on the seed and N alone. The exit
status is 1 where a call failed.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable

from tests.conftest import backends_under_test
from tests.fuzz.running import numbers, run
from tests.fuzz.summary import summary


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=1000, help="how many calls")
    parser.add_argument("--seed", type=int, default=1, help="which calls")
    parser.add_argument("--only", type=int, nargs="+", help="the numbers of calls to make again, and no other")
    parser.add_argument("--seconds", type=float, help="begin no further call after so long")
    options = parser.parse_args()
    frameworks = backends_under_test()
    print(f"frameworks: {', '.join(frameworks)}; seed {options.seed}", flush=True)
    chosen = iter(options.only) if options.only else numbers(options.seed, options.calls, frameworks)
    ended = _until(options.seconds)
    in_time = itertools.takewhile(lambda _: not ended(), chosen)
    tally = run(options.seed, in_time, lambda text: print(text, flush=True))
    print(summary(tally))
    return 1 if tally.failed else 0


def _until(seconds: float | None) -> Callable[[], bool]:
    end = None if seconds is None else time.monotonic() + seconds
    return lambda: end is not None and time.monotonic() > end


if __name__ == "__main__":
    sys.exit(main())
