"""What a library holds for each scope: what stands in every prompt, and the skills that may be listed. Immutable."""

from collections.abc import Mapping

from metaclaw.domain.skill import Skill, SkillKind

MOST_LISTABLE = 512
"""A scope with more skills than this is never listed whole, so only their number is kept."""

Group = Mapping[str, Skill]
_SKILL = SkillKind.SKILL
_EMPTY: Group = {}


class Members:
    """Rules, facts and skills by scope (None: everyone's), each group by name.

    A change copies the groups it touches and shares all others.
    """

    __slots__ = ("_counts", "_skills", "_standing")

    def __init__(self) -> None:
        self._standing: dict[str | None, Group] = {}
        self._skills: dict[str | None, Group] = {}
        self._counts: dict[str | None, int] = {}

    def standing(self, scope: str | None) -> Group:
        """The rules and facts of a scope, and its skills that apply to every task."""
        return self._standing.get(scope, _EMPTY)

    def skills(self, scope: str | None) -> Group | None:
        """The other skills of a scope, or None where they are too many to be listed."""
        skills = self._skills.get(scope, _EMPTY)
        return skills if len(skills) == self._counts.get(scope, 0) else None


class MembersDraft:
    """The next state while it is being made."""

    def __init__(self, members: Members) -> None:
        self._next = Members()
        self._next._standing = members._standing.copy()
        self._next._skills = members._skills.copy()
        self._next._counts = members._counts.copy()
        self._own: dict[tuple[bool, str | None], dict[str, Skill]] = {}

    def add(self, skill: Skill) -> None:
        """Put in one whose name is not there."""
        is_listable = _is_listable(skill)
        if is_listable:
            count = self._next._counts[skill.scope] = self._next._counts.get(skill.scope, 0) + 1
            if count > MOST_LISTABLE:
                return
        self._group(skill.scope, is_listable=is_listable)[skill.name] = skill

    def remove(self, skill: Skill) -> None:
        """Take one out that is there."""
        is_listable = _is_listable(skill)
        if is_listable:
            self._next._counts[skill.scope] -= 1
        self._group(skill.scope, is_listable=is_listable).pop(skill.name, None)

    def finish(self) -> Members:
        """The finished state."""
        return self._next

    def _group(self, scope: str | None, *, is_listable: bool) -> dict[str, Skill]:
        own = self._own.get((is_listable, scope))
        if own is None:
            groups = self._next._skills if is_listable else self._next._standing
            own = self._own[is_listable, scope] = dict(groups.get(scope, _EMPTY))
            groups[scope] = own
        return own


def _is_listable(skill: Skill) -> bool:
    return skill.kind is _SKILL and not skill.applies_always
