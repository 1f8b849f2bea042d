"""A daily chore: a lesson that several users learned by themselves becomes a proposal for their team, or for everyone."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from anyio.abc import TaskGroup
from anyio.to_thread import run_sync

from metaclaw.domain.candidate import Change, Proposal
from metaclaw.domain.skill import Skill
from metaclaw.learn.admission import CandidateAdmission, Learned, accepted_candidate
from metaclaw.learn.probes import Probes
from metaclaw.learn.shelf import SkillShelf
from metaclaw.skills import Promotion, Teams, find_promotions, own_name
from metaclaw.store import SqlCandidates, SqlCursors

log = logging.getLogger(__name__)

_MOST_A_DAY: Final = 10


class ScopePromotion:
    """Proposes; the gate decides. The same text is proposed for the same scope once."""

    name = "widening"

    def __init__(
        self,
        *,
        shelf: SkillShelf,
        candidates: SqlCandidates,
        cursors: SqlCursors,
        probes: Probes,
        admission: CandidateAdmission,
        teams: Teams,
    ) -> None:
        self._shelf = shelf
        self._candidates = candidates
        self._cursors = cursors
        self._probes = probes
        self._admission = admission
        self._teams = teams

    async def do(self, learned: Sequence[Skill], aside: TaskGroup) -> None:
        """Everyone first: what is everybody's need not be a team's as well."""
        left = _MOST_A_DAY
        for scope, users in [(None, None), *((f"team:{name}", users) for name, users in self._teams.items())]:
            mine = learned if users is None else [skill for skill in learned if _user(skill) in users]
            for promotion in await run_sync(find_promotions, mine, scope):
                if left and await self._propose(promotion, aside):
                    left -= 1

    async def _propose(self, promotion: Promotion, aside: TaskGroup) -> bool:
        found = await run_sync(self._proposal, promotion)
        if found is None:
            return False
        proposal, model = found
        log.info("lesson_of_many hash=%s users=%d scope=%s", proposal.skill.content_hash, promotion.users, proposal.skill.scope)
        scopes = frozenset((proposal.skill.scope,)) if proposal.skill.scope else frozenset()
        await self._admission.admit(proposal, Learned(partial(self._probes.choose, proposal), model, scopes), aside)
        return True

    def _proposal(self, promotion: Promotion) -> tuple[Proposal, str] | None:
        """The proposal, and the model it was learned with; None where it was made before, or nobody knows who taught it."""
        skill = promotion.skill
        mark = f"widened {skill.content_hash}"
        parents = [parent for name in promotion.learned_in if (parent := self._shelf.view.get(name)) is not None]
        found = [mine for parent in parents if (mine := accepted_candidate(self._candidates, parent)) is not None]
        if self._cursors.cursor(mark) or not found:
            return None
        self._cursors.move_cursor(mark, 1)
        support = tuple(dict.fromkeys(turn for mine in found for turn in mine.proposal.support))
        name = own_name(skill.name, lambda name: self._shelf.view.get(name) is not None)
        model = next((mine.certificate.model for mine in found if mine.certificate is not None), "")
        return Proposal(replace(skill, name=name), Change.NEW, (), support, f"lesson-of-many-{skill.name}", "widening"), model


def _user(skill: Skill) -> str | None:
    kind, _, who = (skill.scope or "").partition(":")
    return who if kind == "user" else None
