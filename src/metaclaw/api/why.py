"""The route that explains a turn's prompt: which rules and skills were in it, which not, and why."""

from dataclasses import dataclass
from typing import Any

from metaclaw.api.home_routes import HomeRoutes
from metaclaw.api.router import ApiError, ApiRequest, route
from metaclaw.api.status_words import short
from metaclaw.api.turns import MOST_ARGUMENTS, held_view, inner, last_words, messages_of
from metaclaw.api.views import lesson_view, picked
from metaclaw.domain.chat import ToolCall, ToolResult
from metaclaw.domain.status import CAME_LATER
from metaclaw.domain.turn import REMINDER, WITHHELD, Turn
from metaclaw.skills import Budgets, LibraryView, SkillExplanation, applies, explain
from metaclaw.store import SqlGenerations


@dataclass(frozen=True, slots=True)
class WhyRoutes:
    """Explains the prompts of turns."""

    home: HomeRoutes

    @route("GET", "/api/turns/{id}/why", "What was placed in a turn's prompt, what not, and why")
    def _why(self, request: ApiRequest) -> object:
        reader = self.home.reader
        turn = self.home.turn_id(request.path["id"])
        found = reader.turn(turn)
        if found is None:
            raise ApiError(f"there is no turn {turn}", 404)
        return self._explained(found.turn)

    def _explained(self, turn: Turn) -> dict[str, Any]:
        home, number = self.home, turn.stamp.generation
        generation = SqlGenerations(home.database).at(number)
        skills = () if generation is None else generation.skills
        budgets = Budgets.configured(home.config.skills)
        considered = explain(
            turn,
            last_words(turn, home.words),
            LibraryView.of(number, skills),
            # The prompts of the embedded model list no skills.
            budgets._replace(is_brief=turn.provider == home.embedded),
            home.teams,
            today=turn.times.received_at.astimezone().date(),
            absorbed=frozenset(home.absorbed(turn.stamp.policy_version)),
        )
        known = {skill.name for skill in skills}
        failed = _failed_calls(turn)
        said = home.overview.places_of([one.skill.source for one in considered if one.skill.source])
        names = ("placed", "listed", "not_placed")
        groups: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        for one in considered:
            place = None if one.skill.source is None else said.get(one.skill.source)
            view = {
                **_considered_view(one),
                "failed": failed.get(one.skill.name),
                "said": place and picked(place, "turn", "agent", "workspace", "channel"),
            }
            groups[one.fate.replace(" ", "_")].append(view)
        groups["not_placed"] += (
            {**lesson_view(skill), "reason": CAME_LATER}
            for skill in home.rulebook.library.view.skills
            if skill.name not in (*known, *turn.stamp.skills)
            and applies(skill.scope, turn.scope, home.teams)
        )
        return {
            **picked(turn, "session", "kind"),
            "turn": turn.id,
            "at": turn.times.received_at.isoformat(),
            "generation": number,
            "scope": picked(turn.scope, "user", "workspace", "channel"),
            "considered": [one.skill.name for one in considered],
            **groups,
            "reminded": _names_at(turn, REMINDER),
            "reminders_left_out": _names_at(turn, WITHHELD),
            **held_view(turn),
            "broken": [
                {"rule": rule, "reason": reason}
                for rule, reason in home.reader.broken_rules(turn.id)
            ],
            "forgotten": [name for name in (*turn.stamp.skills, *turn.listed) if name not in known],
        }


def _failed_calls(turn: Turn) -> dict[str, dict[str, str]]:
    """The failed calls of a turn by the lesson that was placed behind their results."""
    lessons = {one.call_id: one.skills[0] for one in turn.placements if one.call_id is not None}
    messages = messages_of(turn.wire, turn.exchange.request) if lessons else ()
    parts = [part for message in messages or () for part in message.parts]
    calls = {part.id: part for part in parts if isinstance(part, ToolCall)}
    return {
        lessons[part.call_id]: {
            "name": calls[part.call_id].name,
            "arguments": calls[part.call_id].arguments[:MOST_ARGUMENTS],
            "result": short("\n".join(inner(part.parts)), MOST_ARGUMENTS),
        }
        for part in parts
        if isinstance(part, ToolResult) and part.call_id in lessons and part.call_id in calls
    }


def _names_at(turn: Turn, anchor: bytes) -> list[Any]:
    return [
        name
        for placement in turn.placements
        if placement.anchor == anchor
        for name in placement.skills
    ]


def _considered_view(explanation: SkillExplanation) -> dict[str, Any]:
    note = explanation.skill.check_note
    return {
        **lesson_view(explanation.skill),
        "reason": explanation.reason,
        **({} if note is None else {"check_note": note}),
    }
