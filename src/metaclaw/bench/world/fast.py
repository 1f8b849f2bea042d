"""The fast loop in the simulated world: failures become drafts, and drafts go through the product's gate on simulated replays."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from metaclaw.bench.world.drafting import Draft, draft
from metaclaw.bench.world.policy import Effect, SimulatedPolicy, rules_of
from metaclaw.bench.world.settings import EVOLVERS, Ablation, Evolver, Practice
from metaclaw.bench.world.shelf import Kept, Shelf
from metaclaw.bench.world.turns import Memory, SimTurn, judged
from metaclaw.domain.candidate import Change, Probe, ProbeKind, Proposal, Trial
from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.skill import Skill
from metaclaw.domain.verdict import Outcome
from metaclaw.skills.gate import Admission, Gate, GateMode

_Kind = tuple[str, str]
"""Whose failures, and to follow which rule."""

_FAILING_PROBES: Final = 6
_PASSING_PROBES: Final = 8


@dataclass(frozen=True, slots=True)
class Tried:
    """A draft and what the gate said of it; what it cost in tokens."""

    draft: Draft
    admission: Admission
    attempt: int
    tokens: int


class Fast:
    """Counts failures by the rule that was broken and, when there are enough, has a skill written and admitted."""

    def __init__(
        self, ablation: Ablation, practice: Practice, shelf: Shelf, memory: Memory, rules: Sequence[str], rng: Random
    ) -> None:
        self._evolver: Evolver = EVOLVERS[ablation.evolver]
        self._apart = ablation.separation == "on"
        self._mode = GateMode(ablation.gate)
        self._practice = practice
        self._shelf = shelf
        self._memory = memory
        self._rules = rules
        self._rng = rng
        self._failures: dict[_Kind, list[TurnId]] = {}
        self._attempts: dict[_Kind, int] = {}

    async def learn(self, turn: SimTurn, broken: frozenset[str], policy: SimulatedPolicy) -> list[Tried]:
        """Hear what a round came to. Returns what was tried because of it."""
        if turn.outcome is not Outcome.FAIL:
            return []
        # Somebody who complains without a reason complains about something.
        blamed = sorted(broken & frozenset(turn.item.rules)) or list(turn.item.rules[:1])
        kinds = [(turn.user, rule) for rule in blamed]
        for kind in kinds:
            self._failures.setdefault(kind, []).append(turn.id)
            self._failures[kind] = [one for one in self._failures[kind] if not (self._apart and self._memory.is_taught(one))]
        due = [kind for kind in kinds if len(self._failures[kind]) >= self._practice.min_failures]
        return [tried for kind in due if (tried := await self._write(kind, policy)) is not None]

    async def _write(self, kind: _Kind, policy: SimulatedPolicy) -> Tried | None:
        user, rule = kind
        support = self._failures.pop(kind)
        standing = self._shelf.find(user, rule)
        is_there = standing is not None and rule in standing.draft.effect.mends
        if is_there and self._rng.random() < self._evolver.declines:
            return None
        attempt = self._attempts[kind] = self._attempts.get(kind, 0) + 1
        self._memory.supports(support, self._shelf.generation + 1)
        made = draft(rule, attempt, self._rules, self._evolver, self._rng)
        admission = await self._admit(made, standing, support, attempt, policy)
        if admission.is_in_force:
            self._shelf.publish(made, user, admission.state, attempt)
        replays = 0 if admission.certificate is None else admission.certificate.tokens
        return Tried(made, admission, attempt, self._practice.draft_tokens + replays)

    async def _admit(
        self, made: Draft, standing: Kept | None, support: Sequence[TurnId], attempt: int, policy: SimulatedPolicy
    ) -> Admission:
        replaces = () if standing is None else (standing.draft.skill.name,)
        change = Change.EDIT if replaces else Change.NEW
        proposal = Proposal(made.skill, change, replaces, tuple(support), made.rule, "simulated evolver")
        replays = Replays(made, standing, self._shelf, self._memory, policy, self._practice, self._rng)
        gate = Gate(self._mode, replays, clock=lambda: 0.0)
        return await gate.admit(proposal, _Names(standing), self._probes(made, support), model="simulated", attempt=attempt)

    def _probes(self, made: Draft, support: Sequence[TurnId]) -> list[Probe]:
        """The failures it was written for, and the latest rounds that it would be found for and that passed."""
        alike = (turn for turn in reversed(self._memory.turns.values()) if made.effect.matches & frozenset(turn.item.rules))
        passing = [turn.id for turn in alike if turn.outcome is Outcome.PASS][:_PASSING_PROBES]
        failing = [Probe(turn, ProbeKind.FAILING) for turn in support[-_FAILING_PROBES:]]
        return [*failing, *(Probe(turn, ProbeKind.PASSING) for turn in passing)]


class Replays:
    """A `Replayer`: recorded rounds answered again by the simulated policy, with the library as it is and with the draft in it."""

    def __init__(
        self,
        made: Draft,
        standing: Kept | None,
        shelf: Shelf,
        memory: Memory,
        policy: SimulatedPolicy,
        practice: Practice,
        rng: Random,
    ) -> None:
        self._made = made
        self._standing = standing
        self._shelf = shelf
        self._memory = memory
        self._policy = policy
        self._tokens = 2 * (practice.prompt_tokens + practice.answer_tokens)
        self._rng = rng

    async def trial(self, probe: Probe, skill: Skill, replaces: Sequence[SkillName], seed: int) -> Trial:
        """One paired replay."""
        turn = self._memory.turns[probe.turn]
        others = [one for one in self._shelf.matching(turn.user, turn.item.rules) if one is not self._standing]
        without = [one.draft.effect for one in others]
        now = [*without, self._standing.draft.effect] if self._standing is not None else without
        then = [*without, self._made.effect]
        return Trial(probe, seed, self._outcome(turn, now), self._outcome(turn, then), tokens=self._tokens)

    def _outcome(self, turn: SimTurn, effects: Sequence[Effect]) -> Outcome:
        passed = all(self._rng.random() < self._policy.chance(rule, effects) for rule in rules_of(turn.item))
        return judged(passed, self._policy.traits, self._rng.random(), self._rng.random())


class _Names:
    """The library as far as the gate looks at it here: drafts of different rules have nothing in common."""

    def __init__(self, standing: Kept | None) -> None:
        self._standing = standing

    def get(self, name: str) -> Skill | None:
        return self._standing.draft.skill if self._standing is not None and self._standing.draft.skill.name == name else None

    def near(self, skill: Skill) -> Sequence[Skill]:
        return ()
