"""Every list of ports written by hand; each was written down before any of it was tried, but for causes that had no name then."""

from __future__ import annotations

from typing import Final

from tests.cross.ports import own_faults_jax, own_faults_others, own_faults_tensorflow, own_faults_torch

LISTS: Final = (own_faults_torch.LIST, own_faults_jax.LIST, own_faults_tensorflow.LIST, own_faults_others.LIST)
OWN_FAULTS: Final = tuple(fault for each in LISTS for fault in each.faults)
OWN_PAIRS: Final = tuple(pair for each in LISTS for pair in each.pairs)
OWN_RIGHT: Final = tuple(right for each in LISTS for right in each.right)
