"""One generation of skills as readers see it: searched by request and by who is speaking, and never changed."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial

from metaclaw.domain.skill import Skill
from metaclaw.domain.status import SkippedSkill
from metaclaw.domain.turn import Scope
from metaclaw.skills.index import SkillIndex, Wanted
from metaclaw.skills.scopes import Teams, applying, most_specific

_CACHED_QUERIES = 256
# Where one of the best few stands in for others, the next ones move up: so many times the limit is looked at.
_SPARE = 3
MOST_STANDING = 5
"""Most skills placed for whatever the task is."""

Ranks = frozenset[tuple[str, int]]
_FOR_EVERYONE: Ranks = frozenset()
Standing = Mapping[str | None, Sequence[Skill]]
"""The skills for whatever the task is, by scope."""


class ShelfView:
    """One generation of skills, ready to be searched. Never changes."""

    __slots__ = ("_index", "_scopes", "_search", "generation", "hash", "skipped")

    def __init__(self, generation: int, content_hash: str, index: SkillIndex, skipped: tuple[SkippedSkill, ...] = ()) -> None:
        self.generation = generation
        self.hash = content_hash
        self.skipped = skipped
        self._index = index
        self._scopes = index.scopes
        self._search = lru_cache(_CACHED_QUERIES)(partial(_search, index, _by_scope(index.standing())))

    @property
    def index(self) -> SkillIndex:
        """The index, for whoever compares skills with one another."""
        return self._index

    @property
    def count(self) -> int:
        """How many skills there are."""
        return len(self._index)

    @property
    def skills(self) -> tuple[Skill, ...]:
        """Every skill, by name."""
        return tuple(sorted(self._index.skills(), key=lambda skill: skill.name))

    def get(self, name: str) -> Skill | None:
        """The skill of this name."""
        return self._index.get(name)

    def retrieve(self, query: str, limit: int, scope: Scope | None = None, teams: Teams | None = None) -> tuple[Skill, ...]:
        """The skills to place for a request, or none: first what applies to every task, then up to `limit` for this, best first.
        Scoped skills are found only for whom they are, and of those that say the same only the most specific."""
        if limit <= 0:
            return ()
        # Requests that differ only in words no skill knows (a ticket's number, today's date), or in who speaks where no skill is
        # theirs, are the same request here.
        ranks = self._ranks(scope, teams) if self._scopes else _FOR_EVERYONE
        return self._search(self._index.read(query), limit, ranks, None if scope is None else scope.workspace)

    def _ranks(self, scope: Scope | None, teams: Teams | None) -> Ranks:
        return frozenset(named for named in applying(scope, teams).items() if named[0] in self._scopes)


def _search(
    index: SkillIndex, standing: Standing, wanted: Wanted, limit: int, ranks: Ranks, workspace: str | None
) -> tuple[Skill, ...]:
    rank = dict(ranks)
    nearest_first = (*sorted(rank, key=lambda named: (-rank[named], named)), None)
    always = [one for named in nearest_first for one in standing.get(named, ()) if one.is_for_workspace(workspace)]
    found = index.find(wanted, limit * _SPARE if ranks or standing else limit, frozenset(rank))
    fitting = [one.skill for one in found if not one.skill.applies_always and one.skill.is_for_workspace(workspace)]
    chosen = most_specific([*always[:MOST_STANDING], *fitting], rank)
    # What a person wants in every task comes first, and takes no place from what this task needs.
    general = sum(one.applies_always for one in chosen)
    return chosen[: general + limit]


def _by_scope(skills: Iterable[Skill]) -> Standing:
    grouped: dict[str | None, list[Skill]] = {}
    for skill in skills:
        grouped.setdefault(skill.scope, []).append(skill)
    return grouped
