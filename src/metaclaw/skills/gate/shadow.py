"""Shadow: a candidate is tried on recorded turns, with and without it, before anybody is served with it.

Trials alternate between failures of the kind the skill is for and similar turns that passed, in waves; each probe comes again with
other seeds. After every wave the evidence is looked at, which an e-process allows (see `evalue`):

- a regression beyond the budget, or harm proven          → reject
- mended failures proven, and every passing probe tried   → pass
- the rest could not prove it, even with more luck        → reject, early: not proven
- probes, tokens, trials or time used up                  → reject: not proven. Ties prove nothing.
- too few trials could be decided to say anything, or the budget ended before the passing probes → undecided. An outcome that is not
  known is never guessed.

A merge of existing skills cannot be asked to do better than they do; it is asked to *keep*: every probe its parents pass must still
pass, each tried with every seed.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import sqrt

import anyio

from metaclaw.domain.candidate import Certificate, Change, Probe, ProbeKind, Proposal, Trial
from metaclaw.ports import Replayer
from metaclaw.skills.gate.evalue import e_value, spend
from metaclaw.skills.gate.tally import ProbeRecord, Tally, why_undecided

_ENOUGH_TO_GIVE_UP = 12


@dataclass(frozen=True, slots=True)
class Budget:
    """What proving one candidate may cost. Whatever runs out first ends it."""

    trials: int = 96
    tokens: int = 600_000
    seconds: float = 1_800.0


@dataclass(frozen=True, slots=True)
class Rules:
    """When a candidate passes.

    `alpha` is the chance that a useless one does, over all attempts at the same kind of failure; `alpha_harm` the chance that a
    harmless one is called harmful. `regressions` is how many passing probes it may break.
    """

    alpha: float = 0.05
    alpha_harm: float = 0.1
    regressions: int = 0
    failing_seeds: int = 12
    passing_seeds: int = 3
    confirmations: int = 4
    least_decided: int = 4
    at_once: int = 4


class Decision(StrEnum):
    """What a test came to."""

    PASS = "pass"
    REJECT = "reject"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class ShadowReport:
    """A decision, why, the certificate, and the trials behind it."""

    decision: Decision
    reason: str
    certificate: Certificate
    trials: tuple[Trial, ...]
    is_harmful: bool = False


@dataclass(frozen=True, slots=True)
class _End:
    decision: Decision
    reason: str
    is_harmful: bool = False


async def shadow(
    proposal: Proposal,
    probes: Sequence[Probe],
    replayer: Replayer,
    budget: Budget,
    clock: Callable[[], float] = time.monotonic,
    *,
    rules: Rules | None = None,
    model: str = "",
    attempt: int = 1,
) -> ShadowReport:
    """Try a candidate until it is decided or the budget is used up.

    `attempt` counts the candidates tried for this kind of failure, from 1: the more there were, the more evidence one needs.
    """
    run = _Run(proposal, probes, budget, clock() + budget.seconds, rules or Rules(), attempt)
    while (end := run.end(clock())) is None:
        run.learn(await _wave(replayer, proposal, run.next_wave()))
    certificate = run.tally.certificate(model, run.notes())
    return ShadowReport(end.decision, end.reason, certificate, tuple(run.tally.trials), end.is_harmful)


async def _wave(replayer: Replayer, proposal: Proposal, wave: Sequence[tuple[Probe, int]]) -> list[Trial]:
    """Some trials at once, their results in the order asked for."""
    done: dict[int, Trial] = {}

    async def one(at: int, probe: Probe, seed: int) -> None:
        done[at] = await replayer.trial(probe, proposal.skill, proposal.replaces, seed)

    async with anyio.create_task_group() as group:
        for at, (probe, seed) in enumerate(wave):
            group.start_soon(one, at, probe, seed)
    return [done[at] for at in range(len(wave))]


class _Run:
    """The state of one test: what was seen, and what to try next."""

    def __init__(
        self, proposal: Proposal, probes: Sequence[Probe], budget: Budget, until: float, rules: Rules, attempt: int
    ) -> None:
        self.tally = Tally()
        self._keeps = proposal.change is Change.MERGE
        self._budget = budget
        self._until = until
        self._rules = rules
        self._needed = 1 / spend(rules.alpha, attempt)
        self._failing = [probe for probe in probes if probe.kind is ProbeKind.FAILING]
        self._passing = [probe for probe in probes if probe.kind is ProbeKind.PASSING]
        self._tries: dict[Probe, int] = dict.fromkeys(probes, 0)
        self._mend = deque(self._failing * (rules.passing_seeds if self._keeps else rules.failing_seeds))
        self._keep = deque(self._passing * rules.passing_seeds)
        self._mended_last = False

    def next_wave(self) -> list[tuple[Probe, int]]:
        """What to try next: suspected regressions first, then failing and passing probes by turns. Never empty before the end."""
        most = min(self._rules.at_once, self._trials_left)
        wave = [self._take(probe) for probe in self._suspects()[:most]]
        while len(wave) < most and (probe := self._pick()) is not None:
            wave.append(self._take(probe))
        return wave

    def learn(self, trials: Sequence[Trial]) -> None:
        """Count what a wave has shown. A probe that could not be decided twice will not be with another seed: it is let go."""
        for trial in trials:
            self.tally.add(trial)
        hopeless = {trial.probe for trial in trials if self.tally.record(trial.probe).is_hopeless}
        if hopeless:
            self._mend = deque(probe for probe in self._mend if probe not in hopeless)
            self._keep = deque(probe for probe in self._keep if probe not in hopeless)

    def _pick(self) -> Probe | None:
        mend = self._mend if self._wants_mending() else deque[Probe]()
        first, second = (self._keep, mend) if self._mended_last else (mend, self._keep)
        queue = first or second
        self._mended_last = queue is mend
        return queue.popleft() if queue else None

    def end(self, now: float) -> _End | None:
        """The decision, or None while there is something to try that could change it."""
        return self._end_of_merge(now) if self._keeps else self._end_of_candidate(now)

    def notes(self) -> list[str]:
        """What a person should know beside the numbers."""
        notes = [f"undecided {times}×: {note}" for note, times in why_undecided(self.tally.trials).items()]
        if len(self._failing) == 1:
            notes.append("one recorded failure was all there was to try it on")
        if not self.tally.of(ProbeKind.PASSING).decided:
            notes.append("not tested for regressions: there was no similar turn that passed, or none could be decided")
        return notes

    def _end_of_candidate(self, now: float) -> _End | None:
        if not self._failing:
            return _End(Decision.UNDECIDED, "there is no recorded failure of its kind to try it on")
        if harmful := self._harm():
            return harmful
        failing, helps = self.tally.of(ProbeKind.FAILING), self.tally.helps
        shown = f"{failing.wins} mended, {failing.losses} broken, e = {helps:.3g} of {self._needed:.3g} needed"
        is_proven = helps >= self._needed
        if is_proven and not self._keep and not self._suspects():
            return _End(Decision.PASS, shown)
        if not is_proven and self._hoped(failing) < self._needed:
            return self._not_proven(failing.decided, shown)
        if spent := self._spent(now):
            shown = f"{shown}; {spent}"
            return _End(Decision.UNDECIDED, shown) if is_proven else self._not_proven(failing.decided, shown)
        return None

    def _end_of_merge(self, now: float) -> _End | None:
        if not self._tries:
            return _End(Decision.UNDECIDED, "there are no probes of its parents to try it on")
        if harmful := self._harm():
            return harmful
        if self._mend or self._keep or self._suspects():
            spent = self._spent(now)
            return _End(Decision.UNDECIDED, spent) if spent else None
        records = [self.tally.record(probe) for probe in self._tries]
        if any(record.decided == 0 for record in records):
            return _End(Decision.UNDECIDED, "not every probe of its parents could be decided")
        lost = sum(record.passes_without and not record.passes_with for record in records)
        if lost:
            return _End(Decision.REJECT, f"{lost} of {len(records)} probes that its parents pass fail with it")
        return _End(Decision.PASS, f"all {len(records)} probes of its parents hold")

    def _harm(self) -> _End | None:
        if self.tally.regressions > self._rules.regressions:
            return _End(Decision.REJECT, f"it breaks {self.tally.regressions} turns that passed without it", is_harmful=True)
        if self.tally.harms >= 1 / self._rules.alpha_harm:
            return _End(Decision.REJECT, f"it harms (e = {self.tally.harms:.3g})", is_harmful=True)
        return None

    def _not_proven(self, decided: int, shown: str) -> _End:
        if decided < self._rules.least_decided:
            return _End(Decision.UNDECIDED, f"only {decided} trials on its kind of failure could be decided")
        return _End(Decision.REJECT, f"not proven: {shown}")

    def _hoped(self, failing: ProbeRecord) -> float:
        """The evidence there will be if the rest goes better than so far, by two standard errors of both rates; by any luck at all
        while little is decided. Giving up early costs power at worst: it never lets a candidate pass that would not have passed."""
        left, decided = min(len(self._mend), self._trials_left), failing.decided
        if decided < _ENOUGH_TO_GIVE_UP:
            return e_value(failing.wins + left, failing.losses)
        wins, losses = ((count + 1) / (decided + 2) for count in (failing.wins, failing.losses))
        wins, losses = wins + 2 * sqrt(wins * (1 - wins) / decided), losses - 2 * sqrt(losses * (1 - losses) / decided)
        return e_value(failing.wins + round(left * min(wins, 1.0)), failing.losses + round(left * max(losses, 0.0)))

    def _spent(self, now: float) -> str | None:
        used = (
            (not self._mend and not self._keep and not self._suspects(), "every probe and seed was tried"),
            (self._trials_left <= 0, f"the {self._budget.trials} trials of the budget are used"),
            (self.tally.tokens >= self._budget.tokens, f"the {self._budget.tokens} tokens of the budget are used"),
            (now >= self._until, f"the {self._budget.seconds:g} s of the budget are used"),
        )
        return next((why for is_so, why in used if is_so), None)

    @property
    def _trials_left(self) -> int:
        return self._budget.trials - len(self.tally.trials)

    def _wants_mending(self) -> bool:
        """Once enough failures were mended, only the passing probes are still of interest."""
        return bool(self._mend) and (self._keeps or self.tally.helps < self._needed)

    def _suspects(self) -> list[Probe]:
        most = self._rules.passing_seeds + self._rules.confirmations
        return [
            probe
            for probe in self._passing
            if self._tries[probe] < most and self.tally.record(probe).is_suspect and not self.tally.record(probe).is_regressed
        ]

    def _take(self, probe: Probe) -> tuple[Probe, int]:
        seed = self._tries[probe]
        self._tries[probe] = seed + 1
        return probe, seed
