"""Every list of ports written by hand."""

from __future__ import annotations

from typing import Final

from tests.cross.ports import (
    own_eighth_ports,
    own_fifth_ports,
    own_fourth_ports,
    own_more_ports,
    own_ports,
    own_seventh_ports,
    own_sixth_ports,
    own_third_ports,
)

LISTS: Final = (
    own_ports.LIST, own_more_ports.LIST, own_third_ports.LIST, own_fourth_ports.LIST, own_fifth_ports.LIST,
    own_sixth_ports.LIST, own_seventh_ports.LIST, own_eighth_ports.LIST,
)  # fmt: skip
OWN_FAULTS: Final = tuple(fault for each in LISTS for fault in each.faults)
OWN_PAIRS: Final = tuple(pair for each in LISTS for pair in each.pairs)
OWN_RIGHT: Final = tuple(right for each in LISTS for right in each.right)
