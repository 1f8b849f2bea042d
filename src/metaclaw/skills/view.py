"""One generation of skills as readers see it: searched by request and by who is speaking, and never changed."""

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


class ShelfView:
    """One generation of skills, ready to be searched. Never changes."""

    __slots__ = ("_index", "_scopes", "_search", "_standing", "generation", "hash", "skipped")

    def __init__(self, generation: int, content_hash: str, index: SkillIndex, skipped: tuple[SkippedSkill, ...] = ()) -> None:
        self.generation = generation
        self.hash = content_hash
        self.skipped = skipped
        self._index = index
        self._scopes = index.scopes
        self._standing = index.standing()
        self._search = lru_cache(_CACHED_QUERIES)(partial(_search, index))

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
        """The skills to place for a request, best first, or none. Scoped skills are found only for whom they are, and of those that
        say the same only the most specific."""
        if limit <= 0:
            return ()
        # Requests that differ only in words no skill knows (a ticket's number, today's date), or in who speaks where no skill is
        # theirs, are the same request here.
        ranks = self._ranks(scope, teams) if self._scopes else _FOR_EVERYONE
        found = self._search(self._index.read(query), limit, ranks)
        workspace = None if scope is None else scope.workspace
        standing = [one for one in self._standing if one.scope is None or any(one.scope == named for named, _ in ranks)]
        # What a person wants in every task comes first, and takes no place from what this task needs.
        chosen = (*standing[:MOST_STANDING], *(one for one in found if not one.applies_always)) if standing else found
        return tuple(one for one in chosen if one.is_for_workspace(workspace))

    def _ranks(self, scope: Scope | None, teams: Teams | None) -> Ranks:
        return frozenset(named for named in applying(scope, teams).items() if named[0] in self._scopes)


def _search(index: SkillIndex, wanted: Wanted, limit: int, ranks: Ranks) -> tuple[Skill, ...]:
    rank = dict(ranks)
    found = index.find(wanted, limit * _SPARE if ranks else limit, frozenset(rank))
    return most_specific([one.skill for one in found], rank)[:limit]
