"""`GET /api/turns/{id}/why`: what was placed in a turn's prompt, what not, and why."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from anyio.to_thread import run_sync

from metaclaw.dashboard.routes import ApiError, Ask, Route
from metaclaw.dashboard.views import enforced_view, lesson_view
from metaclaw.domain.chat import Json, ToolCall
from metaclaw.domain.ids import TurnId
from metaclaw.domain.skill import Skill, SkillGeneration
from metaclaw.domain.turn import REMINDER, WITHHELD, Turn
from metaclaw.errors import WireError
from metaclaw.skills import Budgets, Considered, Fate, Library, ShelfView, Teams, applies, explain
from metaclaw.store import LedgerReader
from metaclaw.wires import said_parts

_MOST_ARGUMENTS = 500


@dataclass(frozen=True, slots=True)
class WhyRoutes:
    """Explains turns. `generation_at` blocks; `absorbed` says what the weights of a version know without being told."""

    reader: LedgerReader
    generation_at: Callable[[int], SkillGeneration | None]
    skills: Callable[[], Sequence[Skill]]
    budgets: Budgets
    teams: Teams
    absorbed: Callable[[int], Collection[str]] = lambda version: ()
    embedded: str | None = None
    """The provider whose model is given no list, if there is one."""

    def table(self) -> list[Route]:
        """The routes."""
        return [Route("GET", "/api/turns/{id}/why", self._why, "What was placed in a turn's prompt, what not, and why")]

    async def _why(self, ask: Ask) -> object:
        explained = await run_sync(self.explain, TurnId(ask.path["id"]))
        if explained is None:
            raise ApiError(f"there is no turn {ask.path['id']}", 404)
        return explained

    def explain(self, turn: TurnId) -> dict[str, Json] | None:
        """The explanation as JSON; None where there is no such turn. Blocks."""
        found = self.reader.turn(turn)
        return None if found is None else self._explained(found.turn)

    def _explained(self, turn: Turn) -> dict[str, Json]:
        number = turn.stamp.generation
        generation = self.generation_at(number)
        skills = () if generation is None else generation.skills
        considered = explain(
            turn,
            _task(turn),
            ShelfView(number, turn.stamp.library_hash, Library.of(skills).index),
            self.budgets._replace(is_brief=turn.provider == self.embedded),
            self.teams,
            today=turn.times.received_at.astimezone().date(),
            absorbed=frozenset(self.absorbed(turn.stamp.policy_version)),
        )
        known = {skill.name for skill in skills}
        withheld = {draw.skill: draw.propensity for draw in turn.draws if not draw.placed}
        left_out = [one for one in considered if one.fate is Fate.NOT_PLACED and one.skill.name not in withheld]
        later = [one for one in self.skills() if one.name not in known and one.name not in turn.stamp.skills]
        later = [one for one in later if applies(one.scope, turn.scope, self.teams)]
        return {
            "turn": turn.id,
            "session": turn.session,
            "kind": turn.kind.value,
            "at": turn.times.received_at.isoformat(),
            "generation": number,
            "scope": {"user": turn.scope.user, "workspace": turn.scope.workspace},
            "considered": [one.skill.name for one in considered],
            "placed": [_view(one) for one in considered if one.fate is Fate.PLACED],
            "listed": [_view(one) for one in considered if one.fate is Fate.LISTED],
            "withheld": [{**_view(one), "share": withheld[one.skill.name]} for one in considered if one.skill.name in withheld],
            "not_placed": [
                *(_view(one) for one in left_out),
                *({**lesson_view(skill), "reason": f"it came into force after generation {number}"} for skill in later),
            ],
            "reminded": _names_at(turn, REMINDER),
            "reminders_left_out": _names_at(turn, WITHHELD),
            "enforced": [enforced_view(one) for one in (() if turn.enforcement is None else turn.enforcement.rules)],
            "attempts": [_attempt(one) for one in (() if turn.enforcement is None else turn.enforcement.attempts)],
            "forgotten": [name for name in (*turn.stamp.skills, *turn.listed) if name not in known],
        }


def _names_at(turn: Turn, anchor: bytes) -> list[Json]:
    return [name for placement in turn.placements if placement.anchor == anchor for name in placement.skills]


def _attempt(turn: Turn) -> dict[str, Json]:
    """One attempt at the answer: its id, and the tool calls it made."""
    parts = said_parts(turn.wire, turn.stream, turn.exchange.shown)
    calls: list[Json] = [
        {"name": part.name, "arguments": part.arguments[:_MOST_ARGUMENTS]} for part in parts if isinstance(part, ToolCall)
    ]
    return {"turn": turn.id, "calls": calls}


def _view(one: Considered) -> dict[str, Json]:
    note = one.skill.extra.get("check_note")
    return {**lesson_view(one.skill), "reason": one.reason, **({} if note is None else {"check_note": str(note)})}


def _task(turn: Turn) -> str:
    """What the person asked for last, in their own words; empty where that cannot be read."""
    from metaclaw.learn import StepBuilder, read_request
    from metaclaw.proxy import own_words

    builder = StepBuilder(own_words)
    try:
        messages = read_request(turn.wire, turn.exchange.request).messages
    except WireError:
        return ""
    said = (builder.own_words(turn.agent, message) for message in reversed(messages))
    return next(filter(None, said), "")
