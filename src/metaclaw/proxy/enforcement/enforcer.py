"""Which rules hold a request's calls, whether enforcement is on, and what is told of answers that were held."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from metaclaw.domain.chat import Json, Wire
from metaclaw.domain.turn import KEEP_RULES, Origin, Stamp, TrueAnswer, Turn
from metaclaw.proxy.held_rules import CallJudge, HeldRule, HeldRules
from metaclaw.proxy.http.client import Incoming
from metaclaw.proxy.true_answers import TrueAnswers

log = logging.getLogger(__name__)

OPT_OUT: Final = "x-metaclaw-enforce"
_KEPT_ELSEWHERE: Final = "the provider keeps the conversation, or answers in the background"


class Enforcer:
    """Knows which rules hold, whether enforcement is on, and what became of answers that were held."""

    def __init__(
        self,
        rules: HeldRules,
        answers: TrueAnswers | None = None,
        *,
        judge: CallJudge | None = None,
        may_opt_out: bool = False,
        announce: Callable[[str, dict[str, Json]], Awaitable[bool]] | None = None,
    ) -> None:
        self.answers = answers or TrueAnswers()
        self.judge = judge or CallJudge()
        self.is_on = True
        self._rules = rules
        self._may_opt_out = may_opt_out
        self._announce = announce

    def rules_for(self, incoming: Incoming, origin: Origin, stamp: Stamp) -> tuple[HeldRule, ...]:
        """The rules that hold this request's calls."""
        if not self.is_on:
            return ()
        rules = self._rules.for_speaker(origin.scope, stamp.skills)
        if not rules:
            return rules
        if self._may_opt_out and incoming.headers.get(OPT_OUT, "").lower() == "off":
            return ()
        return rules

    @staticmethod
    def can_hold(incoming: Incoming) -> bool:
        """Whether this request's calls can be refused: not where the provider keeps the conversation, or answers later."""
        return incoming.wire is not Wire.RESPONSES or not (
            incoming.json.get("conversation") or incoming.json.get("background") is True
        )

    async def histories(self, incoming: Incoming, origin: Origin) -> tuple[TrueAnswer, ...]:
        """What must be put back into this request's history."""
        turns = self.answers.concerns(incoming, origin)
        return await self.answers.read(turns) if turns else ()

    async def recorded(self, turn: Turn, failed: Sequence[tuple[HeldRule, str]], not_held: Sequence[HeldRule] = ()) -> None:
        """Tell of what was held, and of rules that could not hold, once the turn is recorded."""
        found = turn.enforcement
        told: dict[str, Json]
        if not_held:
            names: list[Json] = [rule.name for rule in not_held if rule.name != KEEP_RULES]
            log.warning("rules_not_held turn=%s rules=%s reason=%s", turn.id, ",".join(map(str, names)), _KEPT_ELSEWHERE)
            about: dict[str, Json] = {"turn": turn.id, "session": turn.session, "agent": turn.agent}
            await self._tell("rules_not_held", {"rules": names, **about, "reason": _KEPT_ELSEWHERE})
        for rule, reason in failed:
            told = {"rule": rule.name, "turn": turn.id, "session": turn.session, "reason": reason, "held": found is not None}
            await self._tell("check_failed", told)
        for one in () if found is None else found.rules:
            told = {
                "rule": one.rule,
                "turn": turn.id,
                "session": turn.session,
                "agent": turn.agent,
                "attempts": one.attempts,
                "end": one.end.value,
                "calls": 0 if found is None or found.answer is None else len(found.answer.calls),
            }
            await self._tell("rule_held", told)

    def remember(self, turn: Turn) -> None:
        """From now on the true answer takes the place of what the client was shown."""
        if turn.enforcement is not None and turn.enforcement.answer is not None:
            self.answers.add(turn.id, turn.session, turn.scope.user, turn.enforcement.answer)

    async def _tell(self, kind: str, data: dict[str, Json]) -> None:
        if self._announce is not None:
            await self._announce(kind, data)
