"""The protocol of a backend, and helpers for authors of backends. Import from here: the modules inside may move."""

from embgrad.backend.arguments import integer_arguments, named_arguments
from embgrad.backend.cotangents import Answer, Cotangents, Tensors, compute_dtype
from embgrad.backend.locks import model_lock
from embgrad.backend.model_pass import ModelPass, Pullback
from embgrad.backend.module_calls import ModuleCalls, RecordedCall, call_recorded
from embgrad.backend.object_state import ObjectState
from embgrad.backend.point_changes import PointChanges, additions
from embgrad.backend.prefix import Prefix
from embgrad.backend.protocol import (
    ABILITIES,
    Backend,
    Call,
    Callback,
    Change,
    Listener,
    NativeObjective,
    ParameterValues,
    PassListener,
    Perturber,
    Point,
    PointValues,
    Request,
    Respond,
    Response,
    Run,
    TableRest,
    Weight,
)
from embgrad.backend.registry import list_backends, refresh_backends
from embgrad.backend.rests import table_rests
from embgrad.backend.signature import as_parts, expect_single, parameters_of, plan_call
from embgrad.common.arrays import owned
from embgrad.forward.points import Lookup
from embgrad.forward.recorder import PassRecorder
from embgrad.inputs.batch import TokenBatch

__all__ = [
    "ABILITIES",
    "Answer",
    "Backend",
    "Call",
    "Callback",
    "Change",
    "Cotangents",
    "Listener",
    "Lookup",
    "ModelPass",
    "ModuleCalls",
    "NativeObjective",
    "ObjectState",
    "ParameterValues",
    "PassListener",
    "PassRecorder",
    "Perturber",
    "Point",
    "PointChanges",
    "PointValues",
    "Prefix",
    "Pullback",
    "RecordedCall",
    "Request",
    "Respond",
    "Response",
    "Run",
    "TableRest",
    "Tensors",
    "TokenBatch",
    "Weight",
    "additions",
    "as_parts",
    "call_recorded",
    "compute_dtype",
    "expect_single",
    "integer_arguments",
    "list_backends",
    "model_lock",
    "named_arguments",
    "owned",
    "parameters_of",
    "plan_call",
    "refresh_backends",
    "table_rests",
]
