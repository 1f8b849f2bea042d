"""A daily chore: tell a person when answers pass less often since a rule of theirs is in force. Nothing is withdrawn.

Compared are the known outcomes of the person's turns with the rule in the prompt and of those before the rule. They may differ for
other reasons, too; hence a notice, once for each text of a rule.
"""

from collections.abc import Sequence
from typing import Final

from anyio.abc import TaskGroup
from anyio.to_thread import run_sync

from metaclaw.domain.skill import Skill, SkillKind
from metaclaw.domain.verdict import Outcome
from metaclaw.learn.admission import Announce
from metaclaw.learn.chores import members_of_scope
from metaclaw.learn.worker.store_rpc import SkillShelf
from metaclaw.skills import Belief, PassRate, Teams
from metaclaw.store import SqlCursors, SqlGenerations, SqlUses

_MOST_RULES: Final = 500
_MOST_TURNS: Final = 60
_LEAST_TURNS: Final = 20
_LEAST_DIFFERENCE: Final = -0.15
_LIKELY: Final = 0.02  # the probability that the rule does no harm


class RuleWatch:
    """Gives a `notice` for rules that seem to do harm."""

    name = "rule watch"

    def __init__(
        self,
        *,
        uses: SqlUses,
        generations: SqlGenerations,
        cursors: SqlCursors,
        shelf: SkillShelf,
        announce: Announce,
        teams: Teams,
    ) -> None:
        self._uses = uses
        self._generations = generations
        self._cursors = cursors
        self._shelf = shelf
        self._announce = announce
        self._teams = teams

    async def do(self, learned: Sequence[Skill], aside: TaskGroup) -> None:
        """Look at every rule in force, also at those in files that a person wrote."""
        rules = [skill for skill in self._shelf.view.index.skills() if skill.kind is SkillKind.RULE]
        for rule in rules[:_MOST_RULES]:
            text = await run_sync(self._harm, rule)
            if text is not None:
                await self._announce("notice", {"skill": rule.name, "text": text})

    def _harm(self, rule: Skill) -> str | None:
        """The notice, or None where none is due. Blocks."""
        since = self._generations.in_force(rule.name)
        if since is None:
            return None
        who = members_of_scope(rule.scope, self._teams)
        before = self._uses.outcomes(
            since.text_since, _MOST_TURNS, users=who.users, workspaces=who.workspaces, nobody=who.is_nobody
        )
        now = self._uses.outcomes(
            since.text_since, _MOST_TURNS, placed=rule.name, users=who.users, workspaces=who.workspaces, nobody=who.is_nobody
        )
        mark = f"rule noticed {rule.content_hash}"
        if not _is_worse(before, now) or self._cursors.cursor(mark):
            return None
        self._cursors.move_cursor(mark, 1)
        return (
            f"Fewer answers pass since your rule {rule.name} is in force: {_share(now)} now, {_share(before)} before."
            f" It stays in force; to take it back: metaclaw rules remove {rule.name}"
        )


def _is_worse(before: Sequence[Outcome], now: Sequence[Outcome]) -> bool:
    belief = Belief(_rate(now), _rate(before))
    is_seen = min(len(before), len(now)) >= _LEAST_TURNS
    return is_seen and belief.difference <= _LEAST_DIFFERENCE and belief.is_better <= _LIKELY


def _rate(outcomes: Sequence[Outcome]) -> PassRate:
    passed = outcomes.count(Outcome.PASS)
    return PassRate(passed, len(outcomes) - passed)


def _share(outcomes: Sequence[Outcome]) -> str:
    return f"{outcomes.count(Outcome.PASS)} of {len(outcomes)} turns"
