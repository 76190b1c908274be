"""The former name of `embgrad.cli.demo`, for one release."""

from __future__ import annotations

import sys

from embgrad.cli.demo import FRAMEWORKS, TEXTS, main, minilm_folder

__all__ = ["FRAMEWORKS", "TEXTS", "main", "minilm_folder"]

if __name__ == "__main__":
    sys.exit(main())
