"""Routes for learning: feedback, skills, generations, candidates, forgetting, and the stream of
events.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from metaclaw.api.events import EventFeed
from metaclaw.api.router import ApiError, ApiRequest, ApiStream, Field, Route
from metaclaw.api.rules import RuleRoutes
from metaclaw.api.views import (
    candidate_view,
    generation_view,
    retired_skill_view,
    skill_facts_view,
    skill_view,
    verdict_view,
    whole_candidate_view,
)
from metaclaw.domain.candidate import CandidateId, Standing
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.skill import Skill, SkillState
from metaclaw.domain.verdict import Outcome
from metaclaw.errors import SkillError
from metaclaw.ports import CandidateStore
from metaclaw.skills import LibraryView, Rulebook
from metaclaw.store import GenerationRow, SqlCompliance

if TYPE_CHECKING:
    from metaclaw.learn import OwnerActions


_MOST_ROWS = 1000
_MOST_COMMENT_CHARS = 10_000
_MOST_GENERATION = 2**31 - 1
_FEEDBACK = (
    Field("turn", {"type": "string", "description": "Answers carry it as X-Metaclaw-Turn"}),
    Field("outcome", {"enum": [Outcome.PASS.value, Outcome.FAIL.value]}),
    Field("comment", {"type": "string", "maxLength": _MOST_COMMENT_CHARS}, is_required=False),
)
_REVERT = (Field("generation", {"type": "integer", "minimum": 0, "maximum": _MOST_GENERATION}),)


@dataclass(frozen=True, slots=True)
class LearningRoutes:
    """The routes for learning."""

    feed: EventFeed
    candidates: CandidateStore
    history: Callable[[int], list[GenerationRow]]
    skills: Callable[[], LibraryView]
    owner: Callable[[], Awaitable["OwnerActions"]]
    rulebook: Rulebook
    compliance: SqlCompliance
    noted: Callable[[Skill, TurnId], None]
    """Called with a rule that was stated in a turn. Blocks."""
    begin_forgetting: Callable[[SessionId], None]
    """Records durably that a session is to be forgotten. Called before `owner`, which takes long to
    build. Blocks.
    """

    def table(self) -> list[Route]:
        return [
            Route(
                "POST",
                "/api/feedback",
                self._feedback,
                "A person's verdict on a turn; it overrides the judge",
                (),
                _FEEDBACK,
            ),
            Route(
                "GET",
                "/api/skills",
                self._skills,
                "Skills, rules and facts in force, or in a state",
                ("state",),
            ),
            Route(
                "GET", "/api/skills/{name}", self._skill, "One skill in force, with its certificate"
            ),
            Route("POST", "/api/skills/{name}/retire", self._retire, "Take a skill out of force"),
            Route(
                "GET",
                "/api/generations",
                self._generations,
                "Skill generations, newest first",
                ("limit",),
            ),
            Route(
                "POST",
                "/api/generations/revert",
                self._revert,
                "Go back to a generation's skills",
                (),
                _REVERT,
            ),
            Route(
                "GET",
                "/api/candidates",
                self._candidates,
                "Candidates (proposed skills), newest first",
                ("standing", "limit"),
            ),
            Route(
                "GET",
                "/api/candidates/{id}",
                self._candidate,
                "One candidate with its text and evidence",
            ),
            Route(
                "POST", "/api/candidates/{id}/approve", self._approve, "Approve a waiting candidate"
            ),
            Route(
                "POST", "/api/candidates/{id}/reject", self._reject, "Reject a waiting candidate"
            ),
            Route(
                "POST",
                "/api/sessions/{id}/forget",
                self._forget,
                "Forget a session and what was learned from it",
            ),
            Route(
                "GET",
                "/api/events",
                self._events,
                "What happens, as server-sent events",
                ("after",),
            ),
            *RuleRoutes(self.rulebook, self.compliance, self.owner, self.noted).table(),
        ]

    async def _feedback(self, request: ApiRequest) -> object:
        said = request.json(_FEEDBACK)
        turn, outcome, comment = said.get("turn"), said.get("outcome"), said.get("comment", "")
        if not isinstance(turn, str) or not turn:
            raise ApiError("turn must be the id of a turn; answers carry it as X-Metaclaw-Turn")
        if outcome not in (Outcome.PASS, Outcome.FAIL):
            raise ApiError("outcome must be pass or fail")
        if not isinstance(comment, str) or len(comment) > _MOST_COMMENT_CHARS:
            raise ApiError(f"comment must be a text of at most {_MOST_COMMENT_CHARS} characters")
        verdict = await (await self.owner()).feedback(TurnId(turn), Outcome(outcome), comment)
        if verdict is None:
            raise ApiError(f"there is no turn {turn}", 404)
        return {"turn": turn, "verdict": verdict_view(verdict)}

    async def _skills(self, request: ApiRequest) -> object:
        state, view = request.query.get("state"), self.skills()
        if state not in (None, SkillState.CANARY, SkillState.LIVE, SkillState.RETIRED):
            raise ApiError(f"state must be canary, live or retired, not {state!r}")
        if state == SkillState.RETIRED:
            gone = await anyio.to_thread.run_sync(self.rulebook.retired)
            return {
                "generation": view.generation,
                "skills": [retired_skill_view(retired) for retired in gone],
            }
        found = [skill for skill in view.skills if state is None or skill.state == state]
        return {"generation": view.generation, "skills": [skill_view(skill) for skill in found]}

    async def _skill(self, request: ApiRequest) -> object:
        name = SkillName(request.path["name"])
        skill = self.skills().get(name)
        if skill is None:
            raise ApiError(f"there is no skill {name} in force", 404)
        return {
            **skill_view(skill),
            "body": skill.body,
            **skill_facts_view(await (await self.owner()).skill_facts(name)),
        }

    async def _retire(self, request: ApiRequest) -> object:
        name = SkillName(request.path["name"])
        if self.skills().get(name) is None:
            raise ApiError(f"there is no skill {name} in force", 404)
        try:
            return {
                "skill": name,
                "retired": True,
                "generation": await (await self.owner()).retire(name),
            }
        except SkillError as error:
            raise ApiError(str(error), 409) from error

    async def _generations(self, request: ApiRequest) -> object:
        limit = request.number("limit", 50, _MOST_ROWS)
        rows = await anyio.to_thread.run_sync(self.history, limit)
        return {
            "generation": self.skills().generation,
            "generations": [generation_view(row) for row in rows],
        }

    async def _revert(self, request: ApiRequest) -> object:
        number = request.json(_REVERT).get("generation")
        if (
            not isinstance(number, int)
            or isinstance(number, bool)
            or not 0 <= number <= _MOST_GENERATION
        ):
            raise ApiError(
                "generation must be the number of a generation; /api/generations lists them"
            )
        try:
            return {"reverted_to": number, "generation": await (await self.owner()).revert(number)}
        except SkillError as error:
            # Generations are never deleted, so that an existing one fails only because of a file.
            raise ApiError(str(error), 404 if number > self.skills().generation else 409) from error

    async def _candidates(self, request: ApiRequest) -> object:
        wanted, limit = request.query.get("standing"), request.number("limit", 50, _MOST_ROWS)
        if wanted is not None and wanted not in list(Standing):
            raise ApiError(f"standing must be one of {', '.join(Standing)}, not {wanted!r}")
        standing = None if wanted is None else Standing(wanted)
        rows = await anyio.to_thread.run_sync(lambda: self.candidates.candidates(standing, limit))
        return {"candidates": [candidate_view(row) for row in rows]}

    async def _candidate(self, request: ApiRequest) -> object:
        found = await anyio.to_thread.run_sync(
            self.candidates.candidate, CandidateId(request.path["id"])
        )
        if found is None:
            raise ApiError(f"there is no candidate {request.path['id']}", 404)
        return whole_candidate_view(found)

    async def _approve(self, request: ApiRequest) -> object:
        return await self._decide(request, approved=True)

    async def _reject(self, request: ApiRequest) -> object:
        return await self._decide(request, approved=False)

    async def _decide(self, request: ApiRequest, *, approved: bool) -> object:
        try:
            decided = await (await self.owner()).decide(
                CandidateId(request.path["id"]), approved=approved
            )
        except SkillError as error:
            raise ApiError(str(error), 409) from error
        if decided is None:
            raise ApiError(f"there is no candidate {request.path['id']}", 404)
        return candidate_view(decided)

    async def _forget(self, request: ApiRequest) -> object:
        session = SessionId(request.path["id"])
        await anyio.to_thread.run_sync(self.begin_forgetting, session)
        try:
            forgotten = await (await self.owner()).forget(session)
        except SkillError as error:
            raise ApiError(
                f"its turns are forgotten, but not all it taught is retired: {error}; then ask"
                " again",
                409,
            ) from error
        if forgotten is None:
            raise ApiError(f"there is no session {session}", 404)
        return {"session": session, "forgotten": True, **forgotten}

    async def _events(self, request: ApiRequest) -> object:
        resumed = request.headers.get("last-event-id", "")
        if resumed.isascii() and resumed.isdigit() and len(resumed) < 17:
            after = int(resumed)
        else:
            after = (
                await self.feed.newest()
                if request.query.get("after") == "now"
                else request.number("after", 0)
            )
        if self.feed.is_full:
            raise ApiError(
                f"{self.feed.max_subscribers} clients follow the events already; close one of them,"
                " or raise proxy.max_subscribers",
                429,
            )
        return ApiStream("text/event-stream; charset=utf-8", self.feed.follow(after))
