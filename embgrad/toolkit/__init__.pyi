"""The names of `embgrad.toolkit` and their types: `__init__.py` imports each when it is first used."""

from embgrad.common.arrays import copy_owned, take_owned, to_numpy, whole_numbers
from embgrad.common.lru import LRUCache
from embgrad.common.memory_meter import MemoryMeter
from embgrad.common.pytree import PLAIN, copy_nest, every, first, is_nest, map_nest, with_first
from embgrad.common.tolerance import coarsest
from embgrad.toolkit.arguments import integer_arguments, named_arguments
from embgrad.toolkit.code import attributes_of, content_of, globals_of, is_installed, members_of
from embgrad.toolkit.locks import held, locks_of, model_lock, process_lock
from embgrad.toolkit.module_calls import (
    CallRecorder,
    ModuleCalls,
    RecordedCall,
    call_recorded,
    split_last_factor,
)
from embgrad.toolkit.object_state import ObjectState, contains
from embgrad.toolkit.patching import Interception
from embgrad.toolkit.recorded_changes import is_recorded, may_be_state, record_change, record_kept
from embgrad.toolkit.rng import SharedGenerator, draw_states, is_generator, preserve_generators, states_of
from embgrad.toolkit.signature import NAMES, CallPlan, as_parts, expect_single, parameters_of, plan_call, plan_mapping

__all__ = [
    "NAMES",
    "PLAIN",
    "CallPlan",
    "CallRecorder",
    "Interception",
    "LRUCache",
    "MemoryMeter",
    "ModuleCalls",
    "ObjectState",
    "RecordedCall",
    "SharedGenerator",
    "as_parts",
    "attributes_of",
    "call_recorded",
    "coarsest",
    "contains",
    "content_of",
    "copy_nest",
    "copy_owned",
    "draw_states",
    "every",
    "expect_single",
    "first",
    "globals_of",
    "held",
    "integer_arguments",
    "is_generator",
    "is_installed",
    "is_nest",
    "is_recorded",
    "locks_of",
    "map_nest",
    "may_be_state",
    "members_of",
    "model_lock",
    "named_arguments",
    "parameters_of",
    "plan_call",
    "plan_mapping",
    "preserve_generators",
    "process_lock",
    "record_change",
    "record_kept",
    "split_last_factor",
    "states_of",
    "take_owned",
    "to_numpy",
    "whole_numbers",
    "with_first",
]
