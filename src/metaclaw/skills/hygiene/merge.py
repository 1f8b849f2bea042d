"""Which skills to merge: near-duplicates of one scope. The merged text goes through the gate like any other."""

from collections.abc import Sequence

from metaclaw.domain.skill import Authorship, Skill
from metaclaw.skills.hygiene.similar import find_similar, group_similar

_MOST_PARENTS = 4


def find_merges(skills: Sequence[Skill], at_least: float = 0.7) -> list[tuple[Skill, ...]]:
    """Groups of near-duplicates of one scope that the program may merge: nothing a person wrote, said or pinned."""
    own = [skill for skill in skills if skill.author is Authorship.EVOLVER and not skill.pinned]
    return [group[:_MOST_PARENTS] for group in group_similar(find_similar(own, at_least))]
