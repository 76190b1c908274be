"""Search over tokens: texts near a batch's at which an objective is high or low, in NumPy from gradients and forward passes."""

from embgrad.results.search import History, Search
from embgrad.results.substitutions import Substitution, Substitutions
from embgrad.token_search.gcg import GCG
from embgrad.token_search.hotflip import HotFlip
from embgrad.token_search.method import SearchMethod, State
from embgrad.token_search.pez import PEZ
from embgrad.token_search.problem import Problem
from embgrad.token_search.texts import Texts
from embgrad.token_search.universal_trigger import UniversalTrigger
from embgrad.token_search.vocabulary import is_ascii, is_word

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
]
