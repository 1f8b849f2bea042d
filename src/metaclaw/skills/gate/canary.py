"""Canary: what live turns say of a skill that is placed on a random share of those it matches. Pure arithmetic on logged draws.

Each matching turn with a known outcome is one coin (see `evalue`). Looking after every turn is allowed; only one number is spent on
errors, α for promoting a useless skill and another for demoting a harmless one, over the skill's whole canary.

**Promote** when helping is proven. **Demote** when harm is proven: over all turns, or in one stratum of them (a kind of task in
which it misleads although it helps elsewhere); half the stake is on all turns, half is split over the strata, so the
mean is still one e-process. Demote too, as not proven, when `most` turns have not been enough. Else **wait**.

**Always placed** (propensity 1: a person's standing instruction). No turn is withheld, so helping cannot be shown, and need not
be: the person said so. What can be shown is harm against the time before: from the turns it would have matched then, a pass rate
is taken that the true one is below with probability at most α/2, and a bet is made at α/2 that the rate is lower now. Error α in
all, as long as the tasks are of the same mix as before; that is an assumption, which is why it leads to a notice and not in
silence to a removal. Where there was no such time, nothing can be said, and nothing is. After `settle_after` turns without proof
of harm it is live.

Turns whose outcome is unknown are counted and not guessed. That is fair as long as a skill does not change *whether* an outcome
can be known; the report shows both shares of unknown outcomes, so that one can see if it does.

A certificate is good for the model it was earned with: with another model the skill goes back to the canary (`needs_regate`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from metaclaw.domain.candidate import Certificate
from metaclaw.domain.skill import Authorship, Skill, SkillState
from metaclaw.domain.turn import Draw
from metaclaw.domain.verdict import Outcome
from metaclaw.skills.gate.evalue import Coin, CoinBets, e_below, rate_at_least, spend


@dataclass(frozen=True, slots=True)
class LiveTrial:
    """One matching turn: the logged draw, what came of it, and the stratum it is counted in."""

    placed: bool
    propensity: float
    outcome: Outcome
    stratum: str = ""

    @staticmethod
    def of(draw: Draw, outcome: Outcome, stratum: str = "") -> "LiveTrial":
        """From a turn's logged draw and its verdict."""
        return LiveTrial(draw.placed, draw.propensity, outcome, stratum)


@dataclass(frozen=True, slots=True)
class Baseline:
    """Turns from before a skill was placed that it would have matched: how many were decided, and how many of them passed."""

    passes: int
    turns: int

    def __post_init__(self) -> None:
        if not 0 <= self.passes <= self.turns:
            raise ValueError(f"a baseline of {self.passes} passes in {self.turns} turns")


@dataclass(frozen=True, slots=True)
class CanaryRules:
    """When a canary ends. `attempt` counts the canaries this skill has had: another model, another try, less error to spend."""

    alpha: float = 0.05
    alpha_harm: float = 0.05
    most: int = 800
    settle_after: int = 50
    attempt: int = 1


class CanaryDecision(StrEnum):
    """What becomes of a canary."""

    PROMOTE = "promote"
    DEMOTE = "demote"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Counts:
    """Matching turns by how the coin fell and what came out."""

    placed_passed: int = 0
    placed_failed: int = 0
    withheld_passed: int = 0
    withheld_failed: int = 0
    unknown_placed: int = 0
    unknown_withheld: int = 0

    @property
    def decided(self) -> int:
        """Turns with a known outcome."""
        return self.placed_passed + self.placed_failed + self.withheld_passed + self.withheld_failed

    def in_words(self) -> str:
        """For people."""
        placed, withheld = self.placed_passed + self.placed_failed, self.withheld_passed + self.withheld_failed
        unknown = f"unknown {self.unknown_placed} placed, {self.unknown_withheld} withheld"
        return f"placed: {self.placed_passed} of {placed} passed; withheld: {self.withheld_passed} of {withheld}; {unknown}"


@dataclass(frozen=True, slots=True)
class CanaryReport:
    """The decision, why, and the numbers behind it. `is_harmful` only where harm is proven."""

    decision: CanaryDecision
    reason: str
    helps: float
    harms: float
    counts: Counts
    is_harmful: bool = False

    def certificate(self, model: str, notes: Iterable[str] = ()) -> Certificate:
        """The canary as a certificate: a turn that passed when placed or failed when withheld speaks for the skill, a win."""
        counts = self.counts
        return Certificate(
            stage=SkillState.CANARY,
            probes=counts.decided,
            wins=counts.placed_passed + counts.withheld_failed,
            losses=counts.placed_failed + counts.withheld_passed,
            ties=0,
            undecided=counts.unknown_placed + counts.unknown_withheld,
            regressions=0,
            e_value=self.helps,
            tokens=0,
            model=model,
            notes=(counts.in_words(), *notes),
        )


def judge_canary(trials: Sequence[LiveTrial], rules: CanaryRules | None = None, baseline: Baseline | None = None) -> CanaryReport:
    """What the draws so far, oldest first, say. The first moment at which they were decisive stands, however many came later."""
    rules = rules or CanaryRules()
    evidence = _Evidence(rules, baseline)
    for trial in trials:
        evidence.add(trial)
        if trial.outcome is not Outcome.UNKNOWN and (report := evidence.verdict()).decision is not CanaryDecision.WAIT:
            return report
    return evidence.verdict()


def needs_regate(certificate: Certificate | None, model: str) -> bool:
    """Whether what was proven was proven with another model than the one that serves now."""
    return certificate is None or certificate.model != model


def after_model_change(skill: Skill, certificate: Certificate | None, model: str) -> SkillState:
    """Where a skill stands under this model: what was learned and not proven with it goes back to the canary; a person's stays."""
    is_persons = skill.author is Authorship.PERSON or skill.pinned
    if skill.state is SkillState.LIVE and not is_persons and needs_regate(certificate, model):
        return SkillState.CANARY
    return skill.state


class _Evidence:
    """The bets of one canary."""

    def __init__(self, rules: CanaryRules, baseline: Baseline | None) -> None:
        self._rules = rules
        self._needed = 1 / spend(rules.alpha, rules.attempt)
        self._harm_needed = 1 / spend(rules.alpha_harm, rules.attempt)
        self._floor = 0.0 if baseline is None else rate_at_least(baseline.passes, baseline.turns, 0.5 / self._harm_needed)
        self._helps, self._harms = CoinBets(), CoinBets(harm=True)
        self._harms_in: dict[str, CoinBets] = {}
        self._always = [0, 0]  # passes and failures of turns where nothing was left to chance
        self._counts = dict.fromkeys(Counts.__dataclass_fields__, 0)

    def add(self, trial: LiveTrial) -> None:
        where = "placed" if trial.placed else "withheld"
        if trial.outcome is Outcome.UNKNOWN:
            self._counts[f"unknown_{where}"] += 1
            return
        passed = trial.outcome is Outcome.PASS
        self._counts[f"{where}_{'passed' if passed else 'failed'}"] += 1
        coin = Coin(trial.placed, trial.propensity, passed)
        if trial.propensity == 1.0:
            self._always[not passed] += 1
            return
        self._helps.add(coin)
        self._harms.add(coin)
        self._harms_in.setdefault(trial.stratum, CoinBets(harm=True)).add(coin)

    def verdict(self) -> CanaryReport:
        helps, counts, always = self._helps.e_value, Counts(**self._counts), sum(self._always)
        harms, worse = self._harm(), e_below(self._floor, *self._always)
        chance = counts.decided - always
        shown = f"e = {helps:.3g} of {self._needed:.3g} needed after {counts.decided} turns"
        decision, reason, is_harmful = CanaryDecision.WAIT, shown, False
        if harms >= self._harm_needed:
            decision, reason, is_harmful = CanaryDecision.DEMOTE, f"it harms (e = {harms:.3g})", True
        elif worse >= 2 * self._harm_needed:
            reason = f"fewer turns pass than before it (below {self._floor:.0%}, e = {worse:.3g})"
            decision, is_harmful = CanaryDecision.DEMOTE, True
        elif helps >= self._needed:
            decision, reason = CanaryDecision.PROMOTE, f"it helps: {shown}"
        elif chance == 0 and always >= self._rules.settle_after:
            decision, reason = CanaryDecision.PROMOTE, f"no harm was seen in {always} turns"
        elif chance >= self._rules.most:
            decision, reason = CanaryDecision.DEMOTE, f"not proven: {shown}"
        return CanaryReport(decision, reason, helps, max(harms, worse), counts, is_harmful)

    def _harm(self) -> float:
        """Half the stake on all turns; of the other half the k-th stratum to be seen gets 1/(k(k+1)): that adds up to one, however
        many are still to come."""
        split = sum(bets.e_value / (place * (place + 1)) for place, bets in enumerate(self._harms_in.values(), 1))
        idle = 1 / (len(self._harms_in) + 1)  # the stake of strata not seen yet, not bet
        return (self._harms.e_value + split + idle) / 2
