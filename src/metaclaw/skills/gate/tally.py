"""What the paired trials of one candidate have shown so far: wins, losses, ties, regressions, and the evidence in them.

A trial is decided where both sides are known. A **regression** is a passing probe that the skill breaks: every decided run without
it passed, and with it at least `REGRESSED_AFTER` runs, and no fewer than half, failed. One failure alone is no regression (models
and judges are noisy), but it is a reason to try that probe again."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from metaclaw.domain.candidate import Certificate, Probe, ProbeKind, Trial
from metaclaw.domain.ids import TurnId
from metaclaw.domain.skill import SkillState
from metaclaw.domain.verdict import Outcome
from metaclaw.skills.gate.evalue import e_value

REGRESSED_AFTER = 3
HOPELESS_AFTER = 2


@dataclass(slots=True)
class ProbeRecord:
    """The decided runs of one probe."""

    wins: int = 0
    losses: int = 0
    both_passed: int = 0
    both_failed: int = 0
    undecided: int = 0

    @property
    def decided(self) -> int:
        """Trials with both sides known."""
        return self.wins + self.losses + self.both_passed + self.both_failed

    @property
    def is_hopeless(self) -> bool:
        """Whether it could not be decided, and not just once."""
        return self.decided == 0 and self.undecided >= HOPELESS_AFTER

    @property
    def is_stable(self) -> bool:
        """Whether it passed without the skill every time, as far as was seen."""
        return self.wins == 0 and self.both_failed == 0

    @property
    def is_suspect(self) -> bool:
        """Whether the skill may break it: stable without, and failed with the skill at least once, and about half the time."""
        return self.is_stable and self.losses > 0 and 2 * self.losses + 1 >= self.decided

    @property
    def is_regressed(self) -> bool:
        """Whether the skill breaks it."""
        return self.is_stable and self.losses >= REGRESSED_AFTER and 2 * self.losses >= self.decided

    @property
    def passes_with(self) -> bool:
        """Whether it passes with the skill more often than not."""
        return 2 * (self.wins + self.both_passed) > self.decided

    @property
    def passes_without(self) -> bool:
        """Whether it passes without the skill more often than not."""
        return 2 * (self.losses + self.both_passed) > self.decided


@dataclass(slots=True)
class Tally:
    """All trials of one candidate."""

    trials: list[Trial] = field(default_factory=list)
    records: dict[TurnId, ProbeRecord] = field(default_factory=dict)
    kinds: dict[TurnId, ProbeKind] = field(default_factory=dict)

    def add(self, trial: Trial) -> None:
        """Count one more."""
        self.trials.append(trial)
        self.kinds[trial.probe.turn] = trial.probe.kind
        record = self.records.setdefault(trial.probe.turn, ProbeRecord())
        match (trial.without, trial.with_skill):
            case (Outcome.FAIL, Outcome.PASS):
                record.wins += 1
            case (Outcome.PASS, Outcome.FAIL):
                record.losses += 1
            case (Outcome.PASS, Outcome.PASS):
                record.both_passed += 1
            case (Outcome.FAIL, Outcome.FAIL):
                record.both_failed += 1
            case _:
                record.undecided += 1

    def record(self, probe: Probe) -> ProbeRecord:
        """What is known of one probe."""
        return self.records.get(probe.turn) or ProbeRecord()

    def of(self, kind: ProbeKind) -> ProbeRecord:
        """All probes of one kind together."""
        return _sum(record for turn, record in self.records.items() if self.kinds.get(turn) is kind)

    @property
    def all(self) -> ProbeRecord:
        """Everything together."""
        return _sum(self.records.values())

    @property
    def regressions(self) -> int:
        """Passing probes the skill breaks."""
        return sum(record.is_regressed for turn, record in self.records.items() if self.kinds.get(turn) is ProbeKind.PASSING)

    @property
    def tokens(self) -> int:
        """What the trials cost."""
        return sum(trial.tokens for trial in self.trials)

    @property
    def helps(self) -> float:
        """Evidence that it mends failures of the kind it is for."""
        failing = self.of(ProbeKind.FAILING)
        return e_value(failing.wins, failing.losses)

    @property
    def harms(self) -> float:
        """Evidence that it harms: on the passing probes, or on all. Half the stake lies on each."""
        passing, everything = self.of(ProbeKind.PASSING), self.all
        return (e_value(passing.losses, passing.wins) + e_value(everything.losses, everything.wins)) / 2

    def certificate(self, model: str, notes: Iterable[str] = ()) -> Certificate:
        """The trials as a certificate of the shadow stage."""
        everything = self.all
        return Certificate(
            stage=SkillState.SHADOW,
            probes=len(self.records),
            wins=everything.wins,
            losses=everything.losses,
            ties=everything.both_passed + everything.both_failed,
            undecided=everything.undecided,
            regressions=self.regressions,
            e_value=self.helps,
            tokens=self.tokens,
            model=model,
            notes=tuple(notes),
        )


def why_undecided(trials: Iterable[Trial], most: int = 3) -> Mapping[str, int]:
    """The commonest notes of undecided trials, with how often each came."""
    notes: dict[str, int] = {}
    for trial in trials:
        if Outcome.UNKNOWN in (trial.without, trial.with_skill):
            note = trial.note or "no reason given"
            notes[note] = notes.get(note, 0) + 1
    return dict(sorted(notes.items(), key=lambda one: (-one[1], one[0]))[:most])


def _sum(records: Iterable[ProbeRecord]) -> ProbeRecord:
    total = ProbeRecord()
    for record in records:
        total.wins += record.wins
        total.losses += record.losses
        total.both_passed += record.both_passed
        total.both_failed += record.both_failed
        total.undecided += record.undecided
    return total
