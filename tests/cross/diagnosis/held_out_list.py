"""What the held-out list is made of: a net, a fault in it, and the statements about it that are true."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

#: The cause that is true of whatever a weight is.
WEIGHT: Final = "different-weight"


@dataclass(frozen=True)
class Net:
    """A kind of net.

    Attributes:
        framework: the framework.
        kind: its name.
        build: makes a healthy one from its kind and a seed.
    """

    framework: str
    kind: str
    build: Callable[[str, int], Any]


@dataclass(frozen=True)
class Broken:
    """A net with a fault.

    Attributes:
        model: the net.
        causes: the causes that are true of it; empty where nothing may be named.
        where: what the text must name, the end of the path of a module; "" for nothing.
    """

    model: Any
    causes: tuple[str, ...]
    where: str = ""


#: Breaks a copy of a net; None where the net has nothing to break so.
Injection = Callable[[Any, np.random.Generator], Broken | None]
