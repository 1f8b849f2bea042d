"""From failures to proposals: kinds of failure, and the evolver that a model helps."""

from metaclaw.skills.evolve.evolver import Evolution, Evolver
from metaclaw.skills.evolve.failures import Failure, FailureGroup, group, is_on_users_word, is_spoken_against, ripe
from metaclaw.skills.evolve.request import MOST_SHOWN
from metaclaw.skills.names import named_apart

__all__ = [
    "MOST_SHOWN",
    "Evolution",
    "Evolver",
    "Failure",
    "FailureGroup",
    "group",
    "is_on_users_word",
    "is_spoken_against",
    "named_apart",
    "ripe",
]
