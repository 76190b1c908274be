"""`python -m tests.raised [--add] FOLDER ...`: make the list of errors and its page, from what test runs wrote into the folders.

EMBGRAD_RAISED_TO=FOLDER pytest tests/core tests/torch ... writes it; runs in several environments add up. With --add what the
list says of errors that are still there is kept, so that the tests of what has changed are enough.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.raised.ledger import chosen, read, write
from tests.raised.sites import sites

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.raised", description=__doc__)
    parser.add_argument("--add", action="store_true", help="keep what the list says of errors that are still there")
    parser.add_argument("folders", metavar="FOLDER", type=Path, nargs="+", help="what a test run wrote")
    given = parser.parse_args()
    if missing_folders := [str(folder) for folder in given.folders if not folder.is_dir()]:
        parser.error(f"no such folder: {', '.join(missing_folders)}")
    found = chosen(path for folder in given.folders for path in sorted(folder.glob("*.json")))
    keys = [site.key for site in sites()]
    if given.add:
        found |= {key: row for key, row in read().items() if key in keys}
    missing = [key for key in keys if key not in found]
    write(found)
    print(f"{len(found)} of {len(sites())} errors are raised by tests")
    for key in missing:
        print(f"not raised: {key}")
    sys.exit(1 if missing else 0)
