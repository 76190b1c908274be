"""The threads of streams that are read ahead."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any


def stream_threads() -> list[threading.Thread]:
    """Return the threads of streams that are alive."""
    return [thread for thread in threading.enumerate() if thread.name == "embgrad.stream"]


def wait_until(condition: Callable[[], Any]) -> None:
    """Wait until a condition holds, and fail where it takes too long."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and not condition():
        time.sleep(0.01)
    assert condition()
