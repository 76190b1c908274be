"""`python -m tests.raised [--add] FOLDER ...`: make the list of errors and its page, from what test runs wrote into the folders.

EMBGRAD_RAISED_TO=FOLDER pytest tests/core tests/torch ... writes it; runs in several environments add up. With --add what the
list says of errors that are still there is kept, so that the tests of what has changed are enough.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.raised.ledger import chosen, read, write
from tests.raised.sites import sites

if __name__ == "__main__":
    folders = [given for given in sys.argv[1:] if given != "--add"]
    found = chosen(path for folder in folders for path in sorted(Path(folder).glob("*.json")))
    keys = [site.key for site in sites()]
    if "--add" in sys.argv[1:]:
        found |= {key: row for key, row in read().items() if key in keys}
    missing = [key for key in keys if key not in found]
    write(found)
    print(f"{len(found)} of {len(sites())} errors are raised by tests")
    for key in missing:
        print(f"not raised: {key}")
    sys.exit(1 if missing else 0)
