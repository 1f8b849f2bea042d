"""From failures to proposals: kinds of failure, and the evolver that a model helps."""

from metaclaw.skills.evolve.evolver import Evolution, Evolver
from metaclaw.skills.evolve.failure import Failure, is_on_users_word, is_spoken_against
from metaclaw.skills.evolve.kinds import Kind, group, ripe
from metaclaw.skills.evolve.names import named_apart
from metaclaw.skills.evolve.request import MOST_SHOWN

__all__ = [
    "MOST_SHOWN",
    "Evolution",
    "Evolver",
    "Failure",
    "Kind",
    "group",
    "is_on_users_word",
    "is_spoken_against",
    "named_apart",
    "ripe",
]
