"""Proposals for teams: what several members said, or learned from the same failure, each for
themselves, becomes a candidate for their team. An owner decides about it; what the members have of
their own stays."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from metaclaw.clock import utc_now
from metaclaw.domain.candidate import Candidate, Change, Proposal, Standing
from metaclaw.domain.skill import Authorship, Lesson, Skill
from metaclaw.skills import SkillLibrary, Teams, free_name, plain_words
from metaclaw.store import SqlCandidates

_MEMBERS: Final = 2
_MOST_CANDIDATES: Final = 10_000
FOR_TEAM: Final = "team"
"""The kind of a proposal that is for a team."""


@dataclass(slots=True)
class TeamProposals:
    """Looks for what a team's members share whenever the library has changed."""

    library: SkillLibrary
    candidates: SqlCandidates
    teams: Teams
    now: Callable[[], datetime] = utc_now
    _seen: int = -1

    def look(self) -> list[Candidate]:
        """Propose what is new, and return it. Blocks. Raises StoreError."""
        view = self.library.follow()
        if view.generation == self._seen or not self.teams:
            return []
        asked = self.candidates.candidates(limit=_MOST_CANDIDATES)
        known = {
            (skill.scope, _meaning(skill))
            for skill in (
                *view.skills,
                *(one.proposal.skill for one in asked if one.proposal.kind == FOR_TEAM),
            )
        }
        made = []
        for team, skill, members in self._shared(view.skills):
            scope, meaning = f"team:{team}", _meaning(skill)
            if (scope, meaning) in known or (None, meaning) in known:
                continue
            wish = self._wish(skill, scope, members)
            self.candidates.save_candidate(wish)
            made.append(wish)
        self._seen = view.generation
        return made

    def _shared(self, skills: Iterable[Skill]) -> Iterable[tuple[str, Skill, list[str]]]:
        """What enough members of a team have, with these members."""
        same: defaultdict[Hashable, dict[str, Skill]] = defaultdict(dict)
        for skill in skills:
            kind, _, user = (skill.scope or "").partition(":")
            if kind == "user" and not skill.is_skill:
                same[_meaning(skill)].setdefault(user, skill)
        for team, users in sorted(self.teams.items()):
            for found in same.values():
                members = sorted(user for user in found if user in users)
                if len(members) >= _MEMBERS:
                    yield team, found[members[0]], members

    def _wish(self, skill: Skill, scope: str, members: list[str]) -> Candidate:
        author = skill.author if isinstance(skill, Lesson) else Authorship.PERSON
        put = replace(
            skill,
            name=free_name(
                f"{scope} {skill.name}", lambda name: self.library.view.get(name) is not None
            ),
            scope=scope,
            source=None,
            author=author,
            pinned=False,
        )
        said_by = ", ".join(members)
        proposal = Proposal(put, Change.NEW, (), (), FOR_TEAM, said_by, said_by=said_by)
        reason = f"{len(members)} members have it"
        generation = self.library.view.generation
        return Candidate.new(proposal, Standing.WAITING, reason, generation, self.now())


def _meaning(skill: Skill) -> Hashable:
    """What must be equal: the failure of a lesson, the words of a rule or fact, and where they
    apply."""
    said = skill.signatures or plain_words(skill.body)
    return (
        skill.kind,
        said,
        skill.trigger if not skill.signatures else "",
        skill.workspace,
        skill.channel,
    )
