"""The classes of `embgrad.results` and their types: `__init__.py` imports each when it is first used."""

from embgrad.common.metrics import Figures
from embgrad.comparison.bisection_records import Bisection
from embgrad.comparison.findings import Finding
from embgrad.comparison.golden import Golden
from embgrad.comparison.result import Comparison, Comparisons
from embgrad.display.lines import TokenMatrix
from embgrad.engine.capture import Tap
from embgrad.engine.padding_report import PaddingReport
from embgrad.engine.parameter_gradients import ParameterGradients
from embgrad.engine.table_gradients import TableGradients
from embgrad.model_points.points import Point
from embgrad.results.attribution import Attribution, Attributions
from embgrad.results.certificate import Certificate, Slope
from embgrad.results.faithfulness import Faithfulness
from embgrad.results.gradients import EmbeddingGradients, Word
from embgrad.results.influence import Influence
from embgrad.results.memory import Memory
from embgrad.results.pair_attribution import PairAttribution
from embgrad.results.port_records import Cause, PortPoint, PortWeights, SettingDifference, WeightPair
from embgrad.results.port_report import PortReport
from embgrad.results.row_sparse import RowSparse
from embgrad.results.search import Search
from embgrad.results.spans import Span
from embgrad.results.substitutions import Substitution, Substitutions
from embgrad.results.token_attribution import TokenAttribution
from embgrad.streaming.stream import Stream, StreamFolder

__all__ = [
    "Attribution",
    "Attributions",
    "Bisection",
    "Cause",
    "Certificate",
    "Comparison",
    "Comparisons",
    "EmbeddingGradients",
    "Faithfulness",
    "Figures",
    "Finding",
    "Golden",
    "Influence",
    "Memory",
    "PaddingReport",
    "PairAttribution",
    "ParameterGradients",
    "Point",
    "PortPoint",
    "PortReport",
    "PortWeights",
    "RowSparse",
    "Search",
    "SettingDifference",
    "Slope",
    "Span",
    "Stream",
    "StreamFolder",
    "Substitution",
    "Substitutions",
    "TableGradients",
    "Tap",
    "TokenAttribution",
    "TokenMatrix",
    "WeightPair",
    "Word",
]
