"""The planted faults: every one written down before what is to find it, and known by its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.cross.ports import (
    faults_flax,
    faults_keras_decoders,
    faults_keras_encoders,
    faults_load_bert,
    faults_own,
    faults_reference_decoders,
    faults_reference_encoders,
)
from tests.cross.ports.fault import Fault

LISTED: Final[list[Fault]] = [
    *(*faults_keras_encoders.FAULTS, *faults_keras_decoders.FAULTS, *faults_flax.FAULTS),
    *(*faults_load_bert.FAULTS, *faults_own.FAULTS),
    *(*faults_reference_encoders.FAULTS, *faults_reference_decoders.FAULTS),
]

#: The faults by their names.
FAULTS: Final[Mapping[str, Fault]] = {fault.name: fault for fault in LISTED}
