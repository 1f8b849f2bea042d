"""Routes for learning: feedback, generations, candidates, forgetting, and the stream of events."""

from dataclasses import dataclass
from itertools import islice
from typing import cast

from anyio.to_thread import run_sync

from metaclaw.api.home_routes import HomeRoutes
from metaclaw.api.router import ApiError, ApiRequest, ApiStream, RequestBody, route
from metaclaw.api.status_words import short
from metaclaw.api.turns import last_words
from metaclaw.api.views import (
    candidate_question,
    candidate_view,
    generation_view,
    verdict_view,
    whole_candidate_view,
)
from metaclaw.clock import utc_now
from metaclaw.domain.candidate import PROPOSED, Candidate, Change, Proposal, Standing
from metaclaw.domain.verdict import Outcome
from metaclaw.errors import SkillError
from metaclaw.skills import RuleFields, find_same
from metaclaw.store import SqlForgetting, SqlGenerations
from metaclaw.text import hides_characters

_MOST_ROWS = 100_000
_MOST_SAID = 160
_MOST_WAITING = 100
_MOST_COMMENT_CHARS = 10_000
_MOST_GENERATION = 2**31 - 1
_FEEDBACK = RequestBody(
    {
        "turn": {
            "type": "string",
            "minLength": 1,
            "description": "Answers carry it as X-Metaclaw-Turn",
        },
        "outcome": {"enum": [Outcome.PASS, Outcome.FAIL]},
        "comment": {"type": "string", "maxLength": _MOST_COMMENT_CHARS},
    },
    ("turn", "outcome"),
)
_PROPOSAL = RequestBody(
    {
        "text": {"type": "string", "description": "What is to be followed or remembered"},
        "kind": {"enum": ["rule", "fact"]},
        "when": {"type": "string", "description": "The situation that it is for [always]"},
        "workspace": {"type": ["string", "null"], "description": "The project it is for [all]"},
        "source": {
            "type": "string",
            "maxLength": _MOST_SAID,
            "description": "Where it comes from, such as AGENTS.md, for the person who decides",
        },
    },
    ("text", "source"),
)
_REVERT = RequestBody(
    {"generation": {"type": "integer", "minimum": 0, "maximum": _MOST_GENERATION}},
    ("generation",),
)


@dataclass(frozen=True, slots=True)
class LearningRoutes:
    """The routes for learning."""

    home: HomeRoutes

    @route(
        "POST",
        "/api/feedback",
        "A person's verdict on a turn; it overrides the judge",
        body=_FEEDBACK,
    )
    async def _feedback(self, request: ApiRequest) -> object:
        named, outcome = request.said["turn"], Outcome(request.said["outcome"])
        turn = await run_sync(self.home.turn_id, named)
        comment = request.said.get("comment", "")
        verdict = await (await self.home.owner()).feedback(turn, outcome, comment)
        if verdict is None:
            raise ApiError(f"there is no turn {turn}", 404)
        return {"turn": turn, "verdict": verdict_view(verdict)}

    @route("GET", "/api/generations", "Skill generations, newest first", ("limit",))
    def _generations(self, request: ApiRequest) -> object:
        """All generations; for those who are no owners only which one is in force, because others'
        words are in the reasons."""
        limit = request.number("limit", 50, _MOST_ROWS)
        is_owner = self.home.person.is_owner
        rows = SqlGenerations(self.home.database).history(limit) if is_owner else []
        return {
            "generation": self.home.rulebook.library.follow().generation,
            "generations": [generation_view(row) for row in rows],
        }

    @route("POST", "/api/generations/revert", "Go back to a generation's skills", body=_REVERT)
    async def _revert(self, request: ApiRequest) -> object:
        number = request.said["generation"]
        try:
            return {
                "reverted_to": number,
                "generation": await (await self.home.owner()).revert(number),
            }
        except SkillError as error:
            # Generations are never deleted, so that an existing one fails only because of a file.
            raise ApiError(
                str(error), 404 if number > self.home.rulebook.library.follow().generation else 409
            ) from error

    @route(
        "GET",
        "/api/candidates",
        "Candidates (proposed skills), newest first",
        ("standing", "limit"),
    )
    def _candidates(self, request: ApiRequest) -> object:
        wanted = request.choice("standing", Standing)
        limit = request.number("limit", 50, _MOST_ROWS)
        standing = None if wanted is None else Standing(wanted)
        most = limit if self.home.person.is_owner else _MOST_ROWS
        rows = filter(self.home.shows, self.home.candidates.candidates(standing, most))
        return {
            "candidates": [
                {**candidate_view(row), "question": self._question(row)}
                for row in islice(rows, limit)
            ]
        }

    @route(
        "POST",
        "/api/candidates",
        "Propose a rule or fact, which is not in force until a person approves it",
        body=_PROPOSAL,
    )
    def _propose(self, request: ApiRequest) -> object:
        """What says the same as something in force, or as an earlier proposal, is not proposed
        again."""
        home, said = self.home, dict(request.said)
        source, name = said.pop("source"), home.person.name
        if any(hides_characters(str(value)) for value in said.values()):
            raise ApiError(
                "the text hides or reorders characters: what is read must be what it says"
            )
        scope = None if home.person.is_owner else f"user:{name}"
        rule = home.rulebook.draft(cast(RuleFields, {**said, "scope": scope}))
        if (same := find_same(rule, home.rulebook.skills())) is not None:
            return {"added": False, "standing": "in force", "skill": same.name, "candidate": None}
        earlier = [
            one
            for one in home.candidates.candidates(limit=_MOST_ROWS)
            if one.proposal.kind == PROPOSED and home.shows(one)
        ]
        for one in earlier:
            if find_same(rule, [one.proposal.skill]) is not None:
                return {"added": False, **_short_view(one)}
        if sum(one.standing is Standing.WAITING for one in earlier) >= _MOST_WAITING:
            raise ApiError(
                f"{_MOST_WAITING} proposals wait already; decide about them first with: metaclaw"
                " candidates",
                409,
            )
        proposal = Proposal(rule, Change.NEW, (), (), PROPOSED, source, said_by=name)
        generation = home.rulebook.library.view.generation
        reason = f"{source} proposes it"
        asked = Candidate.new(proposal, Standing.WAITING, reason, generation, utc_now())
        home.candidates.save_candidate(asked)
        return {"added": True, **_short_view(asked)}

    def _question(self, candidate: Candidate) -> str | None:
        """What the person is asked; null if the candidate does not wait for them. Blocks."""
        if candidate.standing is not Standing.WAITING:
            return None
        support = candidate.proposal.support
        taught_by = self.home.reader.turn(support[0]) if support else None
        words = "" if taught_by is None else last_words(taught_by.turn, self.home.words)
        return candidate_question(candidate, short(words, _MOST_SAID))

    @route("GET", "/api/candidates/{id}", "One candidate with its text and evidence")
    def _candidate(self, request: ApiRequest) -> object:
        named = self.home.candidate_id(request.path["id"])
        found = self.home.candidates.candidate(named)
        if found is None:
            raise ApiError(f"there is no candidate {named}", 404)
        return {**whole_candidate_view(found), "question": self._question(found)}

    @route("POST", "/api/candidates/{id}/approve", "Approve a waiting candidate")
    async def _approve(self, request: ApiRequest) -> object:
        return await self._decide(request, approved=True)

    @route("POST", "/api/candidates/{id}/reject", "Reject a waiting candidate")
    async def _reject(self, request: ApiRequest) -> object:
        return await self._decide(request, approved=False)

    async def _decide(self, request: ApiRequest, *, approved: bool) -> object:
        named = await run_sync(self.home.candidate_id, request.path["id"])
        found = await run_sync(self.home.candidates.candidate, named)
        if found is not None and not self.home.rulebook.owns(found.proposal.skill):
            raise ApiError("an owner's key decides about what is for others", 403)
        decided = await (await self.home.owner()).decide(named, approved=approved)
        if decided is None:
            raise ApiError(f"there is no candidate {named}", 404)
        return candidate_view(decided)

    @route("POST", "/api/sessions/{id}/forget", "Forget a session and what was learned from it")
    async def _forget(self, request: ApiRequest) -> object:
        session = await run_sync(self.home.session_id, request.path["id"])
        # Before `owner`, which takes long to build.
        await run_sync(SqlForgetting(self.home.database).begin, session)
        try:
            forgotten = await (await self.home.owner()).forget(session)
        except SkillError as error:
            raise ApiError(
                f"its turns are forgotten, but not all it taught is retired: {error}; then ask"
                " again",
                409,
            ) from error
        if forgotten is None:
            raise ApiError(
                f"there is no session {session}; if its first answer is under way, that is not"
                " recorded",
                404,
            )
        return {"session": session, "forgotten": True, **forgotten}

    @route("GET", "/api/events", "What happens, as server-sent events", ("after",))
    async def _events(self, request: ApiRequest) -> object:
        resumed = request.headers.get("last-event-id", "")
        if resumed.isascii() and resumed.isdigit() and len(resumed) < 17:
            after = int(resumed)
        else:
            after = (
                await self.home.feed.newest()
                if request.query.get("after") == "now"
                else request.number("after", 0)
            )
        if self.home.feed.is_full:
            raise ApiError(
                f"{self.home.feed.max_subscribers} clients follow the events already; close one of them,"
                " or raise proxy.max_subscribers",
                429,
            )
        own = None if self.home.person.is_owner else self.home.reader.own_events
        return ApiStream("text/event-stream; charset=utf-8", self.home.feed.follow(after, own))


def _short_view(candidate: Candidate) -> dict[str, str]:
    """A proposal as it is told to who made it."""
    return {
        "standing": candidate.standing,
        "skill": candidate.proposal.skill.name,
        "candidate": candidate.id,
    }
