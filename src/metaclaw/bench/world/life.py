"""One simulated run: days of rounds, answered, learned from by the loops that the condition has, and written down."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random

from metaclaw.bench.records import EventKind, Phase, Record
from metaclaw.bench.workdays.model import Item, Workday
from metaclaw.bench.world.diary import Diary
from metaclaw.bench.world.fast import Fast, Tried
from metaclaw.bench.world.idle import Stretch, stretches
from metaclaw.bench.world.policy import Answered, SimulatedPolicy
from metaclaw.bench.world.settings import Ablation, Condition, Practice, Traits
from metaclaw.bench.world.shelf import Placed, Shelf
from metaclaw.bench.world.slow import Slow
from metaclaw.bench.world.training import Finished, Training
from metaclaw.bench.world.turns import Memory, SimTurn, judged
from metaclaw.domain.ids import TurnId
from metaclaw.domain.turn import Stamp


@dataclass(frozen=True, slots=True)
class Life:
    """What a run is about: whose days, under which condition. `stream` is learned from, `held_out` never is; the first `again` days
    are asked once more at the end, and nothing is learned from them then. `words` tell of the settings."""

    stream: Sequence[Workday]
    held_out: Sequence[Workday]
    again: int
    condition: Condition
    ablation: Ablation
    seed: int
    benchmark: str
    traits: Traits
    practice: Practice
    words: str = ""


async def live(life: Life) -> list[Record]:
    """The records of the whole run."""
    return await _Living(life).live()


class _Living:
    """The state of a run. Luck is drawn from the seed and the question alone, so that two conditions meet the same luck."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._is_fast, self._is_slow = life.condition in ("skills", "full"), life.condition in ("rl", "full")
        self._diary = Diary(life.condition, life.ablation, life.seed, life.benchmark, life.practice)
        chance = Random(f"{life.seed} {life.condition} {life.ablation.labels}")
        memory, self._shelf = Memory(), Shelf(life.ablation.gate, life.practice)
        self._memory = memory
        self._fast = Fast(life.ablation, life.practice, self._shelf, memory, _rules(life.stream), chance)
        self._slow = Slow(SimulatedPolicy(life.traits, {}), life.ablation, life.practice, self._shelf, memory, chance)
        self._training = Training(self._slow, self._shelf, life.ablation, life.practice, self._trained)
        self._day, self._after = life.stream[0], 0

    async def live(self) -> list[Record]:
        life = self._life
        again = life.stream[: life.again]
        stream, repeated, held_out = (sum(len(day.items) for day in days) for days in (life.stream, again, life.held_out))
        self._diary.plan(stream=stream, again=repeated, held_out=held_out, words=life.words)
        times = stretches([len(day.items) for day in life.stream], Random(f"{life.seed} times"))
        for day in life.stream:
            await self._live_day(day, [next(times) for _ in day.items])
        self._diary.event("windows", self._day, self._after, numbers=self._training.numbers())
        for day in again:
            self._ask_day(day, "again")
        for day in life.held_out:
            self._ask_day(day, "held_out")
        return self._diary.records

    async def _live_day(self, day: Workday, times: Sequence[Sequence[Stretch]]) -> None:
        for self._after, (item, before) in enumerate(zip(day.items, times, strict=True)):
            is_slowed = self._is_slow and self._training.pass_time(before)
            self._day = day
            placed, answered = self._answer(day, item, "stream")
            turn = self._turn(day, item, placed, answered)
            self._write(day, item, "stream", placed, answered, turn.reward, is_slowed)
            await self._learn(turn, placed, answered)
        self._after = len(day.items)
        for change in self._shelf.tend():
            draft = change.kept.draft
            if change.is_retired:
                self._diary.event("skill_retired", day, self._after, name=draft.skill.name, why=f"{change.why} ({draft.worth})")
            self._diary.event("generation", day, self._after, number=self._shelf.generation, why=change.why)

    def _ask_day(self, day: Workday, phase: Phase) -> None:
        """Nothing is learned from these."""
        for item in day.items:
            placed, answered = self._answer(day, item, phase)
            self._write(day, item, phase, placed, answered)

    def _answer(self, day: Workday, item: Item, phase: Phase) -> tuple[list[Placed], Answered]:
        luck = self._luck(day, item, phase)
        placed = self._shelf.place(day.user, item.rules, lambda rule: luck(f"place {rule}"))
        effects = [one.kept.draft.effect for one in placed if one.placed]
        return placed, self._slow.policy.answer(item, effects, luck)

    def _turn(self, day: Workday, item: Item, placed: Sequence[Placed], answered: Answered) -> SimTurn:
        luck = self._luck(day, item, "stream")
        drafts = [one.kept.draft for one in placed if one.placed]
        stamp = Stamp(self._shelf.generation, self._slow.version, "", tuple(one.skill.name for one in drafts))
        outcome = judged(answered.passed, self._life.traits, luck("heard"), luck("mistaken"))
        turn = TurnId(f"{self._life.seed}/{day.day.id}/{item.round.id}")
        return SimTurn(turn, item, day.user, stamp, tuple(one.effect for one in drafts), outcome)

    async def _learn(self, turn: SimTurn, placed: Sequence[Placed], answered: Answered) -> None:
        self._memory.add(turn)
        self._shelf.learn(placed, turn.outcome)
        if self._is_slow:
            self._slow.add(turn)
        if self._is_fast:
            self._after += 1
            for tried in await self._fast.learn(turn, answered.broken, self._slow.policy):
                self._tell_of(tried)

    def _tell_of(self, tried: Tried) -> None:
        name, numbers = tried.draft.skill.name, {"tokens": float(tried.tokens)}
        why = f"{tried.admission.reason} ({tried.draft.worth})"
        is_born = tried.admission.is_in_force
        self._diary.event("skill_born" if is_born else "skill_refused", self._day, self._after, name=name, why=why, numbers=numbers)
        if is_born:
            self._diary.event("generation", self._day, self._after, number=self._shelf.generation, why=f"{name} came into force")

    def _trained(self, finished: Finished) -> None:
        kind: EventKind = "version_refused" if finished.version is None else "version"
        self._diary.event(kind, self._day, self._after, number=finished.version, why=finished.why)

    def _write(
        self,
        day: Workday,
        item: Item,
        phase: Phase,
        placed: Sequence[Placed],
        answered: Answered,
        reward: float | None = None,
        is_slowed: bool = False,
    ) -> None:
        clocks = self._shelf.generation, self._slow.version
        skills = [one.kept.draft.skill.name for one in placed if one.placed]
        self._diary.round(day, item, phase, answered, clocks=clocks, skills=skills, reward=reward, is_slowed=is_slowed)

    def _luck(self, day: Workday, item: Item, phase: Phase) -> Callable[[str], float]:
        # Asked again, a question meets the luck it met at first: who learned and lost nothing answers the same.
        asked = "stream" if phase == "again" else phase
        prefix = f"{self._life.seed}\0{asked}\0{day.day.id}\0{item.round.id}\0"
        return lambda what: _drawn(prefix + what)


def _drawn(what: str) -> float:
    return int.from_bytes(hashlib.blake2b(what.encode(), digest_size=7).digest(), "big") / 2**56


def _rules(days: Iterable[Workday]) -> tuple[str, ...]:
    return tuple(sorted({rule for day in days for item in day.items for rule in item.rules}))
