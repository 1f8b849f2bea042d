"""From failures to proposals: kinds of failure, and the evolver that a model helps."""

from metaclaw.skills.evolve.evolver import Evolution, Evolver
from metaclaw.skills.evolve.failure import Failure, is_on_users_word
from metaclaw.skills.evolve.kinds import Kind, group, ripe
from metaclaw.skills.evolve.names import named_apart

__all__ = ["Evolution", "Evolver", "Failure", "Kind", "group", "is_on_users_word", "named_apart", "ripe"]
