"""Search over tokens: texts near a batch's at which an objective is high or low, in NumPy from gradients and forward passes."""

from embgrad.results.search import History, Search
from embgrad.results.substitutions import Substitution, Substitutions
from embgrad.search.gcg import GCG
from embgrad.search.hotflip import HotFlip
from embgrad.search.method import SearchMethod, State
from embgrad.search.pez import PEZ
from embgrad.search.problem import Problem
from embgrad.search.substitutions import substitutions
from embgrad.search.texts import Texts
from embgrad.search.universal_trigger import UniversalTrigger
from embgrad.search.vocabulary import is_ascii, is_word

__all__ = [
    "GCG",
    "PEZ",
    "History",
    "HotFlip",
    "Problem",
    "Search",
    "SearchMethod",
    "State",
    "Substitution",
    "Substitutions",
    "Texts",
    "UniversalTrigger",
    "is_ascii",
    "is_word",
    "substitutions",
]
