"""The names of `embgrad` and their types: `__init__.py` imports each when it is first used."""

from embgrad.attribution.attribute import attribute
from embgrad.attribution.attribute_tokens import attribute_tokens
from embgrad.attribution.discretized import DiscretizedIntegratedGradients
from embgrad.attribution.faithfulness import faithfulness
from embgrad.attribution.gradient_methods import InputXGradient, Saliency, SmoothGrad
from embgrad.attribution.infidelity import infidelity
from embgrad.attribution.path_methods import GradientShap, IntegratedGradients, SequentialIntegratedGradients
from embgrad.attribution.perturbation_methods import KernelShap, Lime, Occlusion
from embgrad.attribution.sensitivity import sensitivity
from embgrad.backend.protocol import Backend, Listener, ParameterValues, PointValues, Request, Run, TableRest
from embgrad.backend.registry import list_backends, refresh_backends
from embgrad.checkpoints.load_bert import load_bert
from embgrad.common.metrics import Figures
from embgrad.comparison.bisect import Bisection, bisect
from embgrad.comparison.compare import compare
from embgrad.comparison.diagnosis.findings import Finding
from embgrad.comparison.golden import Golden, golden
from embgrad.comparison.result import Comparison, Comparisons
from embgrad.engine.capture import Tap, capture
from embgrad.engine.embedding_table import embedding_table
from embgrad.engine.evaluate import evaluate
from embgrad.engine.gradients import gradients, points
from embgrad.engine.memory import memory
from embgrad.engine.padding_report import PaddingReport, padding_report
from embgrad.engine.parameter_gradients import ParameterGradients, parameter_gradients
from embgrad.engine.perturbed import perturbed
from embgrad.engine.table_gradients import TableGradients, table_gradients
from embgrad.errors import (
    AmbiguousPointError,
    BackendError,
    BatchError,
    CertificationError,
    EmbgradError,
    EmbgradWarning,
    FileFormatError,
    GoldenError,
    NoGradientError,
    ObjectiveError,
    OutputError,
    PointError,
    PointNotReachedError,
    UnknownPointError,
    UnsupportedError,
)
from embgrad.forward.points import Point
from embgrad.inputs.batch import TokenBatch
from embgrad.inputs.encode import encode
from embgrad.objectives.log_probability import LogProbability
from embgrad.objectives.native import NativeObjective
from embgrad.objectives.objectives import (
    CrossEntropy,
    Logit,
    Margin,
    Objective,
    Probability,
    Projection,
    Scalar,
    Sum,
)
from embgrad.results.attribution import Attribution, Attributions
from embgrad.results.certificate import Certificate, Slope
from embgrad.results.faithfulness import Faithfulness
from embgrad.results.gradients import EmbeddingGradients, Word
from embgrad.results.io import load, save
from embgrad.results.memory import Memory
from embgrad.results.row_sparse import RowSparse
from embgrad.results.search import Search
from embgrad.results.spans import Span
from embgrad.results.substitutions import Substitution, Substitutions
from embgrad.results.table_norms import clipped_table, table_norms, table_products
from embgrad.results.token_attribution import TokenAttribution
from embgrad.results.token_matrix import TokenMatrix
from embgrad.streaming.saliencies import Saliencies
from embgrad.streaming.stream import Labelled, PerBatch, Stream, StreamFolder, open_stream, stream
from embgrad.token_search.gcg import GCG
from embgrad.token_search.hotflip import HotFlip
from embgrad.token_search.pez import PEZ
from embgrad.token_search.search import search
from embgrad.token_search.substitutions import substitutions
from embgrad.token_search.universal_trigger import UniversalTrigger
from embgrad.version import __version__

__all__ = [
    "GCG",
    "PEZ",
    "AmbiguousPointError",
    "Attribution",
    "Attributions",
    "Backend",
    "BackendError",
    "BatchError",
    "Bisection",
    "Certificate",
    "CertificationError",
    "Comparison",
    "Comparisons",
    "CrossEntropy",
    "DiscretizedIntegratedGradients",
    "EmbeddingGradients",
    "EmbgradError",
    "EmbgradWarning",
    "Faithfulness",
    "Figures",
    "FileFormatError",
    "Finding",
    "Golden",
    "GoldenError",
    "GradientShap",
    "HotFlip",
    "InputXGradient",
    "IntegratedGradients",
    "KernelShap",
    "Labelled",
    "Lime",
    "Listener",
    "LogProbability",
    "Logit",
    "Margin",
    "Memory",
    "NativeObjective",
    "NoGradientError",
    "Objective",
    "ObjectiveError",
    "Occlusion",
    "OutputError",
    "PaddingReport",
    "ParameterGradients",
    "ParameterValues",
    "PerBatch",
    "Point",
    "PointError",
    "PointNotReachedError",
    "PointValues",
    "Probability",
    "Projection",
    "Request",
    "RowSparse",
    "Run",
    "Saliencies",
    "Saliency",
    "Scalar",
    "Search",
    "SequentialIntegratedGradients",
    "Slope",
    "SmoothGrad",
    "Span",
    "Stream",
    "StreamFolder",
    "Substitution",
    "Substitutions",
    "Sum",
    "TableGradients",
    "TableRest",
    "Tap",
    "TokenAttribution",
    "TokenBatch",
    "TokenMatrix",
    "UniversalTrigger",
    "UnknownPointError",
    "UnsupportedError",
    "Word",
    "__version__",
    "attribute",
    "attribute_tokens",
    "bisect",
    "capture",
    "clipped_table",
    "compare",
    "embedding_table",
    "encode",
    "evaluate",
    "faithfulness",
    "golden",
    "gradients",
    "infidelity",
    "list_backends",
    "load",
    "load_bert",
    "memory",
    "open_stream",
    "padding_report",
    "parameter_gradients",
    "perturbed",
    "points",
    "refresh_backends",
    "save",
    "search",
    "sensitivity",
    "stream",
    "substitutions",
    "table_gradients",
    "table_norms",
    "table_products",
]
