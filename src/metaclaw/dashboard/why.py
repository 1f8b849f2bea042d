"""`GET /api/turns/{id}/why`: what was placed in a turn's prompt, what not, and why."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from anyio.to_thread import run_sync

from metaclaw.dashboard.routes import ApiError, Ask, Route
from metaclaw.dashboard.views import lesson_view
from metaclaw.domain.chat import Json
from metaclaw.domain.ids import TurnId
from metaclaw.domain.skill import Skill, SkillGeneration
from metaclaw.domain.turn import Turn
from metaclaw.skills import Teams
from metaclaw.skills.explanation import explain
from metaclaw.store import LedgerReader


@dataclass(frozen=True, slots=True)
class WhyRoutes:
    """Explains turns. `generation_at` blocks; `absorbed` says what the weights of a version know without being told."""

    reader: LedgerReader
    generation_at: Callable[[int], SkillGeneration | None]
    skills: Callable[[], Sequence[Skill]]
    teams: Teams
    enabled: bool = True
    absorbed: Callable[[int], Collection[str]] = lambda version: ()

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
        generation = self.generation_at(turn.stamp.generation)
        explanation = explain(
            turn,
            () if generation is None else generation.skills,
            self.skills(),
            teams=self.teams,
            absorbed=self.absorbed(turn.stamp.policy_version),
            enabled=self.enabled,
        )
        return {
            "turn": turn.id,
            "session": turn.session,
            "kind": turn.kind.value,
            "at": turn.times.received_at.isoformat(),
            "generation": turn.stamp.generation,
            "scope": {"user": turn.scope.user, "workspace": turn.scope.workspace},
            "considered": [skill.name for skill in explanation.considered],
            "placed": [lesson_view(skill) for skill in explanation.placed],
            "listed": [lesson_view(skill) for skill in explanation.listed],
            "withheld": [{**lesson_view(skill), "share": share} for skill, share in explanation.withheld],
            "not_placed": [{**lesson_view(one.skill), "reason": one.reason} for one in explanation.not_placed],
            "forgotten": list(explanation.gone),
        }
