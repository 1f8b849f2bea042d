"""From failures to proposals: kinds of failure, the evolver that a model helps, and templates from a person's own words."""

from metaclaw.skills.evolve.corrections import find_correction
from metaclaw.skills.evolve.evolver import Evolution, Evolver
from metaclaw.skills.evolve.failure import Failure, is_on_users_word
from metaclaw.skills.evolve.grammar import Polarity
from metaclaw.skills.evolve.instructions import Instruction, find_instructions
from metaclaw.skills.evolve.kinds import Kind, group, ripe
from metaclaw.skills.evolve.names import named_apart
from metaclaw.skills.evolve.template import from_correction, from_words

__all__ = [
    "Evolution",
    "Evolver",
    "Failure",
    "Instruction",
    "Kind",
    "Polarity",
    "find_correction",
    "find_instructions",
    "from_correction",
    "from_words",
    "group",
    "is_on_users_word",
    "named_apart",
    "ripe",
]
