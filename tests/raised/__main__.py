"""`python -m tests.raised FOLDER ...`: make the list of errors and its page anew, from what test runs wrote into the folders.

EMBGRAD_RAISED_TO=FOLDER pytest -p tests.raised.plugin tests/core tests/torch ... writes it; runs in several environments add up.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.raised.ledger import chosen, write
from tests.raised.sites import sites

if __name__ == "__main__":
    found = chosen(path for folder in sys.argv[1:] for path in sorted(Path(folder).glob("*.json")))
    missing = [site.key for site in sites() if site.key not in found]
    write(found)
    print(f"{len(found)} of {len(sites())} errors are raised by tests")
    for key in missing:
        print(f"not raised: {key}")
    sys.exit(1 if missing else 0)
