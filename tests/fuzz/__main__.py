"""Random right and broken calls of a model in each framework: `python -m tests.fuzz --calls 10000 --seed 1`.

EMBGRAD_TEST_BACKENDS names the frameworks, as in the tests. The result of call N depends on the seed and N alone. The exit
status is 1 if a call failed.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import time

from tests.conftest import backends_under_test
from tests.fuzz.running import numbers, run
from tests.fuzz.summary import summary


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=1000, help="number of calls")
    parser.add_argument("--seed", type=int, default=1, help="seed of the calls")
    parser.add_argument("--only", type=int, nargs="+", help="numbers of the only calls to make")
    parser.add_argument("--seconds", type=float, help="seconds after which no further call begins")
    options = parser.parse_args()
    frameworks = backends_under_test()
    print(f"frameworks: {', '.join(frameworks)}; seed {options.seed}", flush=True)
    chosen = iter(options.only) if options.only else numbers(options.seed, options.calls, frameworks)
    end = time.monotonic() + options.seconds if options.seconds is not None else math.inf
    in_time = itertools.takewhile(lambda _: time.monotonic() <= end, chosen)
    tally = run(options.seed, in_time, lambda text: print(text, flush=True))
    print(summary(tally))
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main())
