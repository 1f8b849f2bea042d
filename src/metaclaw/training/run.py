"""One training run: a pool of turns, optimiser steps as long as they help, and the best checkpoint.

Each step: the prompts that need it most are answered again by the weights as they are (drawn and
scored pieces are in the journal, so nothing is drawn twice), rewards become advantages, and the
data are learned from piece by piece, beside some of the untrained model's own answers to ordinary
questions; then the optimiser moves. A run learns, settles with a falling rate, and takes one of the
checkpoints it kept. Every decision is a function of the journal: what was begun and lost is done
again and comes out the same."""

import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Final

import msgspec
from anyio.to_thread import run_sync

from metaclaw.domain.chat import Json, Text
from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.policy import Weights
from metaclaw.domain.training import Datum, Drawing, Loss, LossKind, PieceStats, Rollout
from metaclaw.ports import RunPlan, Tokeniser, TrainingBackend, Windows
from metaclaw.training.advantages import (
    MAX_ADVANTAGE,
    ScoredGroup,
    Skip,
    TrainingData,
    group_advantages,
    normaliser,
    step_size,
)
from metaclaw.training.backends.calls import gather_all
from metaclaw.training.checkpoints import RunCheckpoints, add_varied, set_aside
from metaclaw.training.curriculum import TrainingPrompt, choose_prompts, cut_pieces
from metaclaw.training.drawn_elsewhere import EngineGap, engine_gap
from metaclaw.training.golden import golden_items
from metaclaw.training.held_calls import teaches, with_recorded
from metaclaw.training.hosts.run_sampler import RolloutServer, RunSampler
from metaclaw.training.imitation import (
    RETRY_TEMPERATURE,
    Demonstration,
    best_answers,
    better_answers,
    demonstrate,
    demonstration_share,
    distil,
    habits,
    imitate_best,
    is_flat,
    is_settled,
    longest_demonstration,
    may_help,
)
from metaclaw.training.journal import Journal, StaleError, record_name
from metaclaw.training.progress import Phase, is_validation_due, next_step, token_cap
from metaclaw.training.recipe import Recipe
from metaclaw.training.recorded_tasks import rewards_of_tasks
from metaclaw.training.records import (
    BestAnswer,
    StepRecord,
    earned_lengths,
    find_drift,
    group_record,
    mean_reward,
    moved_prefix,
    weighted_mean,
)
from metaclaw.training.rehearsal import (
    REHEARSAL_TOKENS,
    SURE_ANSWER_COPIES,
    RehearsalQuestion,
    Rehearsed,
    forgotten_nats,
    ordinary_questions,
    rehearse,
)
from metaclaw.training.rewards import Rewards
from metaclaw.training.sampling import VersionSampler
from metaclaw.training.training_turns import TrainingTurn
from metaclaw.training.variations import base_turn

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Manner:
    """How answers to prompts are drawn: their pieces are numbered from `first`."""

    first: int = 0
    heat: float = 1.0
    is_hinted: bool = False


_PLAIN: Final = _Manner()
_HOTTER: Final = _Manner(25_000, heat=RETRY_TEMPERATURE)
_HINTED: Final = _Manner(50_000, is_hinted=True)
_PPO = Loss()
_CROSS_ENTROPY = Loss(LossKind.CROSS_ENTROPY)


@dataclass(slots=True)
class RunTally:
    """How far a run is, for people. `validated` is what the likeliest answers to the validation
    prompts earned when they were last asked, `phase` what the run does, and `reason` why it stopped
    learning."""

    steps: int = 0
    of_steps: int = 0
    moved: int = 0
    drawn: int = 0
    mean_reward: float | None = None
    validated: float | None = None
    skipped: Counter[Skip] = field(default_factory=Counter)
    phase: str = Phase.LEARN.value
    reason: str = ""
    notice: str | None = None

    def facts(self) -> dict[str, Json]:
        """The same for `status`."""
        return {
            "step": self.steps,
            "steps": self.of_steps,
            "drawn": self.drawn,
            "mean_reward": self.mean_reward,
            "validated": self.validated,
            "skipped": {reason.value: count for reason, count in self.skipped.items()},
        }


@dataclass(eq=False, kw_only=True)
class TrainingRun:
    """One batch. `is_stale` says whether nothing of it may be learned from any more; it may block.
    `find_demonstrations` finds right answers that are known for prompts like these; `varied` are
    prompts that were made from those of the turns. `may_step` raises TrainingError where a step
    must not begin now. `broken_share` is the share of turns in which a rule was broken; it blocks.
    `server`, if there is one, draws the rollouts."""

    plan: RunPlan
    turns: Sequence[TrainingTurn]
    recipe: Recipe
    backend: TrainingBackend
    rewards: Rewards
    journal: Journal
    windows: Windows
    is_stale: Callable[[], bool]
    find_demonstrations: Callable[[Sequence[TrainingTurn]], Awaitable[list[Demonstration]]]
    varied: Sequence[TrainingTurn]
    broken_share: Callable[[SkillName], float]
    may_step: Callable[[], Awaitable[object]]
    server: RolloutServer | None = None

    def __post_init__(self) -> None:
        self._turns = {turn.id: turn for turn in (*self.turns, *self.varied)}
        most = self.recipe.validation
        pool, validation = set_aside([TrainingPrompt(one.id, one.key) for one in self.turns], most)
        drawn_from = {prompt.turn for prompt in pool}
        varied = [
            TrainingPrompt(one.id, one.key)
            for one in self.varied
            if base_turn(one.id) in drawn_from
        ]
        self._pool, self._validation = add_varied(pool, validation, varied, most)
        self._demonstrations: list[Demonstration] = []
        self._wanted: dict[str, BestAnswer] = {}
        self._urgency: dict[str, float] = {}
        self._done = 0
        """Pieces of the next step that are accumulated already."""
        self._records: list[StepRecord] = []
        self._rehearsed: list[Rehearsed] = []
        self._checkpoints = RunCheckpoints(
            plan=self.plan,
            recipe=self.recipe,
            sampler=VersionSampler(
                self.backend, self._may_go_on, self.recipe.max_tokens, self.recipe.temperature
            ),
            journal=self.journal,
            greedy_reward=self._greedy_reward,
        )
        self.tally = RunTally(of_steps=self.recipe.steps)
        self._sampler = RunSampler(
            plan=self.plan, backend=self.backend, journal=self.journal, server=self.server
        )

    def drawn_by(self) -> str:
        """What drew the answers of the run; empty if it was the trainer alone."""
        gaps = [record.gap for record in self._records if record.gap is not None]
        if self.server is None or not gaps:
            return ""
        mean = EngineGap(
            sum(gap.difference for gap in gaps) / len(gaps), sum(gap.kl for gap in gaps) / len(gaps)
        )
        return (
            f"{self.server.name} in {len(gaps)} of {len(self._records)} steps; its log-probabilities"
            f" differ from the trainer's by {mean}"
        )

    async def complete(self, label: str) -> Weights:
        """Everything that is left of the run, as windows allow; the weights it ends with. Raises
        TrainingError.
        """
        try:
            return await self._complete(label)
        finally:
            await self._sampler.aclose()

    async def _complete(self, label: str) -> Weights:
        chosen = await self.journal.find("weights-chosen", Weights)
        if chosen is None:
            await self._open()
            await self._learn(label)
            chosen = await self._checkpoints.choose(label, self._records, self.tally.reason)
            await self.journal.keep("weights-chosen", chosen)
        for weights in await self.journal.all_weights():
            if weights != chosen:
                await self.backend.discard(weights)
        return chosen

    async def _open(self) -> None:
        self._records = await self.journal.records()
        self._tell(sum(record.moved for record in self._records))
        await self._ready_to_step()
        await self._may_go_on()
        progress = await self.backend.open(self.plan)
        log.info(
            "run_opened run=%s steps=%d pieces=%d", self.plan.name, progress.steps, progress.pieces
        )
        self._records = moved_prefix(self._records, progress.steps)
        if sum(record.moved for record in self._records) < progress.steps:
            raise StaleError(
                f"run {self.plan.name}: its journal does not tell of all steps that were made"
            )
        await self.journal.drop_records(len(self._records))
        self._done = progress.pieces
        self._tell(progress.steps)
        self._rehearsed = await self._rehearsal()
        self._demonstrations = await self._known_demonstrations()
        self._wanted = {one.turn: one for one in await self._wanted_answers()}
        self._urgency = await self.journal.once("urgency", dict[str, float], self._urgent_keys)

    async def _learn(self, label: str) -> None:
        """Make steps until the schedule ends the run; keep checkpoints on the way."""
        while True:
            await self._validate()
            await self._checkpoints.keep(label, self._records)
            following = next_step(self._records, self.recipe)
            self.tally.phase, self.tally.reason = following.phase.value, following.reason
            if following.phase is Phase.CHOOSE:
                break
            await self._step(len(self._records), following.rate)
        log.info(
            "run_learned run=%s steps=%d reason=%r",
            self.plan.name,
            len(self._records),
            self.tally.reason,
        )
        if not self.tally.moved:
            raise StaleError(
                f"run {self.plan.name}: nothing in it could be learned from ({self.tally.reason})"
            )

    async def _validate(self) -> None:
        """Answer the validation prompts where the schedule wants that; it is a part of the last
        step's record.
        """
        if not is_validation_due(self._records, self.recipe):
            return
        reward = await self._mean_reward(self._likeliest)
        self._records[-1] = msgspec.structs.replace(self._records[-1], validated=reward)
        self._tell(self.tally.moved)
        await self.journal.keep(record_name(len(self._records) - 1), self._records[-1])
        log.info(
            "run_validated run=%s steps=%d mean_reward=%.3f",
            self.plan.name,
            len(self._records),
            reward,
        )

    async def _ready_to_step(self) -> None:
        """Raise TrainingError where a step is to come that must not begin now."""
        if next_step(self._records, self.recipe).phase is not Phase.CHOOSE:
            await self.may_step()

    async def _step(self, step: int, rate: float) -> None:
        """Answers to some prompts, their rewards, the advantages of each group, and a step along
        their gradient.
        """
        await self.may_step()
        chosen = choose_prompts(
            self._pool,
            self._records,
            self.recipe.prompts_per_step,
            self.plan.seed,
            self._urgency,
        )
        groups = await self._groups(step, self._turns_of(chosen), _PLAIN)
        scored = [one.drawn for one in groups]
        rewarded = group_advantages(
            [one if one.recorded and teaches(one) else one.drawn for one in groups]
        )
        self.tally.skipped += rewarded.skipped
        imitated, record = await self._better(step, scored, rewarded)
        if rewarded.data or imitated or self._shown(0.0):
            await self._move(step, rate, scored, rewarded.data, imitated, record)
        else:
            await self._record(step, record)
        await self.journal.forget_before(step + 1)
        log.info(
            "step_done run=%s step=%d phase=%s mean_reward=%s data=%d imitated=%d skipped=%d",
            self.plan.name,
            step,
            self.tally.phase,
            self.tally.mean_reward,
            len(rewarded.data),
            len(imitated),
            rewarded.skipped.total(),
        )

    async def _better(
        self, step: int, scored: Sequence[ScoredGroup], rewarded: TrainingData
    ) -> tuple[tuple[Datum, ...], StepRecord]:
        """Better answers to imitate, where comparing those that were drawn teaches little, and the
        record of the step.
        """
        known = best_answers(self._records)
        imitated, hinted, helped = await self._imitated(step, scored)
        explored, tried = await self._explored(
            step, scored, len({one.turn for one in rewarded.data})
        )
        again = imitate_best(scored, known | self._wanted) if self.recipe.hindsight else ()
        record = msgspec.structs.replace(
            _record(scored),
            hinted=hinted,
            helped=helped,
            found=better_answers([*scored, *tried], known),
        )
        unruled = habits(scored, lambda turn: self._turns[TurnId(turn)].unruled)
        return (*imitated, *explored, *again, *unruled), record

    async def _move(
        self,
        step: int,
        rate: float,
        scored: Sequence[ScoredGroup],
        rewarded: tuple[Datum, ...],
        imitated: tuple[Datum, ...],
        record: StepRecord,
    ) -> None:
        """Learn from a step's data and from what is rehearsed, and move the optimiser."""
        data = (*rewarded, *imitated)
        shown = self._shown(normaliser(data))
        size = step_size(data or tuple(shown), scored)
        old = self._old(step, size, scored)
        of_rewarded, of_imitated, of_old = [
            cut_pieces(some, self.recipe.tokens_a_piece, self._seed(step))
            for some in (rewarded, (*imitated, *shown), old)
        ]
        by_rewards = [(piece, _PPO) for piece in of_rewarded]
        stats = await self._accumulate(
            step, by_rewards + [(piece, _CROSS_ENTROPY) for piece in of_imitated + of_old]
        )
        seen = stats[: len(of_rewarded)]
        record = msgspec.structs.replace(
            record,
            moved=True,
            kl=weighted_mean([(one.kl, one.tokens) for one in seen]),
            ratio=weighted_mean([(one.ratio_mean, one.tokens) for one in seen]),
            forgotten=forgotten_nats(
                self._rehearsed, old, stats[len(of_rewarded) + len(of_imitated) :]
            ),
        )
        drift = find_drift([*self._records, record])
        if drift is not None:
            log.warning("run_drifted run=%s step=%d reason=%s", self.plan.name, step, drift)
            await self._record(step, msgspec.structs.replace(record, moved=False, drift=drift))
            return
        await self._record(step, record)
        adam = self.recipe.step_adam
        await self._may_go_on()
        moved = await self.backend.apply(
            replace(adam, learning_rate=rate * adam.learning_rate), size
        )
        self._tell(moved.step)
        self._done = 0

    async def _accumulate(
        self, step: int, pieces: Sequence[tuple[Sequence[Datum], Loss]]
    ) -> list[PieceStats]:
        """Add the gradient of all pieces that are not in it yet; what each of them looked like."""
        # A piece that was accumulated when the run was cut off may not have been told of.
        name = f"step-{step:05d}-stats"
        told = await self.journal.find(name, list[PieceStats]) or []
        stats = [*told[: self._done], *(PieceStats(0) for _ in range(self._done - len(told)))]
        for data, loss in pieces[self._done :]:
            await self._may_go_on()
            stats.append(await self.backend.accumulate(data, loss))
            await self.journal.keep(name, stats)
        return stats

    def _shown(self, weight: float) -> list[Datum]:
        """The demonstrations of the next step; with a weight of 0, of a step that has nothing else
        to learn from.
        """
        return (
            demonstrate(self._demonstrations, self._records, weight)
            if self.recipe.hindsight
            else []
        )

    def _old(self, step: int, size: float, scored: Sequence[ScoredGroup]) -> list[Datum]:
        """The rehearsal data of a step; they cost at most as much as what was drawn."""
        room = sum(
            len(group.prompt) + sum(len(one.tokens_T) for one in group.rollouts_G)
            for group in scored
        )
        weight = self.recipe.rehearsal * size
        return (
            rehearse(
                self._rehearsed, self.recipe.rehearsal_size.at_once, room, weight, self._seed(step)
            )
            if weight
            else []
        )

    async def _record(self, step: int, record: StepRecord) -> None:
        await self.journal.keep(record_name(step), record)
        self._records.append(record)
        self._tell(self.tally.moved)

    def _tell(self, moved: int) -> None:
        self.tally.steps, self.tally.moved = len(self._records), moved
        self.tally.mean_reward = self._records[-1].reward if self._records else None
        self.tally.validated = next(
            (
                record.validated
                for record in reversed(self._records)
                if record.validated is not None
            ),
            None,
        )

    async def _groups(
        self, step: int, turns: Sequence[TrainingTurn], manner: _Manner
    ) -> list[ScoredGroup]:
        """Answers to the prompts of some turns, piece by piece: from the journal, or drawn and
        scored now.
        """
        found: list[ScoredGroup] = []
        for number, piece in enumerate(self._cut(turns), manner.first):
            name = f"step-{step:05d}-piece-{number:05d}"
            kept = await self.journal.find(name, list[ScoredGroup])
            if kept is None or [group.turn for group in kept] != [turn.id for turn in piece]:
                await self._may_go_on()
                kept = await self._draw(step, number, piece, manner)
                await self.journal.keep(name, kept)
            found += kept
        return found

    async def _draw(
        self, step: int, number: int, turns: Sequence[TrainingTurn], manner: _Manner
    ) -> list[ScoredGroup]:
        recipe = self.recipe
        drawing = Drawing(
            recipe.group_size,
            self._cap(turns[0]),
            recipe.temperature * manner.heat,
            self._seed(step, number),
        )
        if manner is not _PLAIN:
            turns = [replace(one, recorded=(), following=None) for one in turns]
        if manner.is_hinted:
            # Every other step the untrained model answers, which has not settled on any manner of
            # answering.
            draw = self.backend.sample_base if step % 2 else self._sample
            drawn = await draw([turn.hinted or turn.prompt for turn in turns], drawing)
        else:
            drawn = await self._sample([turn.prompt for turn in turns], drawing)
        self.tally.drawn += sum(map(len, drawn))
        answers = [
            await with_recorded(group, turn.prompt, turn.recorded, self.backend)
            for group, turn in zip(drawn, turns, strict=True)
        ]
        rewards = await gather_all(
            [self._score(turn, some) for turn, some in zip(turns, answers, strict=True)]
        )
        for at, turn in enumerate(turns):
            if turn.following is not None:
                rewards[at] = await self._score_task(turn, answers[at], rewards[at], drawing)
            for place, one in enumerate(turn.recorded, len(drawn[at])):
                rewards[at][place] = rewards[at][place] if one.reward is None else one.reward
        return [
            ScoredGroup(
                turn.id, turn.prompt, tuple(some), tuple(worth), turn.key, len(turn.recorded)
            )
            for turn, some, worth in zip(turns, answers, rewards, strict=True)
        ]

    async def _score(self, turn: TrainingTurn, answers: Sequence[Rollout]) -> list[float | None]:
        return await self.rewards.score(turn.step, answers)

    async def _score_task(
        self,
        turn: TrainingTurn,
        answers: Sequence[Rollout],
        own: Sequence[float | None],
        drawing: Drawing,
    ) -> list[float | None]:
        """What answers are worth with what they lead to (`recorded_tasks`)."""

        async def draw(following: TrainingTurn, count: int) -> Sequence[Rollout]:
            await self._may_go_on()
            seed = random.Random(f"{drawing.seed}/{turn.id}/{following.id}").getrandbits(61)
            asked = replace(drawing, count=count, max_tokens=self._cap(following), seed=seed)
            (group,) = await self._sample([following.prompt], asked)
            self.tally.drawn += count
            return group

        return await rewards_of_tasks(turn, answers, own, draw, self._score)

    async def _sample(
        self, prompts: Sequence[Sequence[int]], drawing: Drawing
    ) -> list[list[Rollout]]:
        """Rollouts of the weights as they are."""
        drawn = await self._sampler.sample(prompts, drawing, self.tally.moved)
        self.tally.notice = self._sampler.notice
        return drawn

    async def _imitated(
        self, step: int, scored: Sequence[ScoredGroup]
    ) -> tuple[tuple[Datum, ...], int, int]:
        """Better answers to prompts whose answers all earn the same and too little: those given
        with a hint. Beside them, how many prompts were tried and how many of these had a better
        answer."""
        if not (self.recipe.hindsight and may_help(self._records)):
            return (), 0, 0
        shown = {
            one.key for one in self._demonstrations if demonstration_share(self._records, one.key)
        }
        groups = [
            group
            for group in scored
            if self._turns[group.turn].hinted is not None
            and group.key not in shown
            and is_flat(group)
        ]
        data = distil(groups, await self._again(step, groups, _HINTED))
        return data, len(groups), len({one.turn for one in data})

    async def _explored(
        self, step: int, scored: Sequence[ScoredGroup], teaching: int
    ) -> tuple[tuple[Datum, ...], list[ScoredGroup]]:
        """Better answers to some prompts whose answers all earn the same part, and all answers
        among which they were looked for; more prompts are tried where few of the step's are
        `teaching` anything by themselves."""
        if not self.recipe.hindsight:
            return (), []
        share = 4 if 4 * teaching >= len(scored) else 2
        settled = [group for group in scored if is_settled(group)]
        groups = settled[: max(1, self.recipe.prompts_per_step // share)]
        explored = await self._again(step, groups, _HOTTER)
        return distil(groups, explored, weight=MAX_ADVANTAGE), explored

    async def _again(
        self, step: int, groups: Sequence[ScoredGroup], manner: _Manner
    ) -> list[ScoredGroup]:
        """Other answers to the prompts of some groups, in their order."""
        drawn = await self._groups(step, [self._turns[one.turn] for one in groups], manner)
        found = {group.turn: group for group in drawn}
        return [found[group.turn] for group in groups]

    def _turns_of(self, prompts: Sequence[TrainingPrompt]) -> list[TrainingTurn]:
        return [self._turns[TurnId(prompt.turn)] for prompt in prompts]

    def _cut(
        self, turns: Sequence[TrainingTurn], size: int | None = None
    ) -> list[list[TrainingTurn]]:
        size = size or self.recipe.prompts_a_piece
        by_cap = [list(some) for _, some in groupby(sorted(turns, key=self._cap), self._cap)]
        return [some[at : at + size] for some in by_cap for at in range(0, len(some), size)]

    def _cap(self, turn: TrainingTurn) -> int:
        """The longest answer to a prompt that is drawn now."""
        most = token_cap(
            self._records, self.recipe.max_tokens, longest_demonstration(self._demonstrations)
        )
        wanted = max((len(one.tokens) for one in self._wanted.values()), default=0)
        most = max(most, min(wanted, self.recipe.max_tokens))
        return most if turn.max_tokens is None else max(1, min(most, turn.max_tokens))

    async def _known_demonstrations(self) -> list[Demonstration]:
        """Right answers that are known: from the journal, or looked for now."""
        if not self.recipe.hindsight:
            return []
        pool = self._turns_of(self._pool)
        return await self.journal.once(
            "demonstrations", list[Demonstration], lambda: self.find_demonstrations(pool)
        )

    async def _wanted_answers(self) -> list[BestAnswer]:
        """The answers that people wanted to the prompts, as if they had been drawn: from the
        journal, or read now.
        """
        tokeniser = self.recipe.tokeniser
        if tokeniser is None or not self.recipe.hindsight:
            return []

        def read() -> list[BestAnswer]:
            turns = self._turns_of(self._pool)
            wanted = [(turn.id, self.rewards.reference(turn.step)) for turn in turns]
            return [
                BestAnswer(turn, [*tokeniser.encode(text), tokeniser.end], 1.0)
                for turn, text in wanted
                if text is not None
            ]

        return await self.journal.once("wanted", list[BestAnswer], partial(run_sync, read))

    async def _urgent_keys(self) -> dict[str, float]:
        """How often the rules of each key are broken, for keys with rules that are."""

        def read() -> dict[str, float]:
            rules = {turn.key: turn.step.stamp.skills for turn in self._turns.values()}
            shares = {
                key: max(map(self.broken_share, names), default=0.0) for key, names in rules.items()
            }
            return {key: share for key, share in shares.items() if share}

        return await run_sync(read)

    async def _rehearsal(self) -> list[Rehearsed]:
        """The untrained model's answers to ordinary questions: from the journal, or drawn now."""
        tokeniser, size = self.recipe.tokeniser, self.recipe.rehearsal_size
        if tokeniser is None or not self.recipe.rehearsal:
            return []
        excluded = [
            part.text
            for item in golden_items()
            for part in item.request.messages[-1].parts
            if isinstance(part, Text)
        ]
        asked = ordinary_questions(size.questions, self.plan.seed, excluded)
        at_once = max(1, self.recipe.prompts_a_piece * self.recipe.group_size // size.answers)
        found: list[Rehearsed] = []
        for number, at in enumerate(range(0, len(asked), at_once)):
            some = partial(self._answers, tokeniser, asked[at : at + at_once], number)
            found += await self.journal.once(f"rehearsal-{number:05d}", list[Rehearsed], some)
        return found

    async def _answers(
        self, tokeniser: Tokeniser, asked: Sequence[RehearsalQuestion], number: int
    ) -> list[Rehearsed]:
        prompts = await run_sync(lambda: [tokeniser.prompt(one.request) for one in asked])
        sure = [prompt for prompt, one in zip(prompts, asked, strict=True) if one.is_sure]
        drawing = Drawing(
            self.recipe.rehearsal_size.answers, REHEARSAL_TOKENS, 1.0, self._seed(0, number)
        )
        await self._may_go_on()
        drawn = list(zip(prompts, await self.backend.sample_base(prompts, drawing), strict=True))
        if sure:
            likeliest = await self.backend.sample_base(sure, Drawing(1, REHEARSAL_TOKENS, 0.0))
            drawn += SURE_ANSWER_COPIES * list(zip(sure, likeliest, strict=True))
        return [
            Rehearsed(list(prompt), list(one.tokens_T), sum(one.logprobs_T))
            for prompt, group in drawn
            for one in group
        ]

    async def _greedy_reward(self, weights: Weights) -> float:
        """The mean reward of the likeliest answers of kept weights to the validation prompts."""
        sampler = self._checkpoints.sampler
        return await self._mean_reward(
            lambda prompts, most: sampler.one_of_each(prompts, weights, most)
        )

    async def _likeliest(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[Rollout]:
        """The likeliest answers of the weights as they are."""
        await self._may_go_on()
        drawn = await self.backend.sample(prompts, Drawing(1, max_tokens, 0.0))
        return [group[0] for group in drawn]

    async def _mean_reward(
        self, draw: Callable[[Sequence[Sequence[int]], int], Awaitable[list[Rollout]]]
    ) -> float:
        """The mean reward of the likeliest answers to the validation prompts."""
        rewards: list[float | None] = []
        # A backend that can stand still in the middle draws all at once: other weights are put on
        # for every call.
        size = (
            len(self._validation) if self.backend.abilities.yields else self.recipe.prompts_a_piece
        )
        for piece in self._cut(self._turns_of(self._validation), size):
            drawn = await draw([turn.prompt for turn in piece], self._cap(piece[0]))
            scored = await gather_all(
                [self._score(turn, [one]) for turn, one in zip(piece, drawn, strict=True)]
            )
            rewards += [reward for (reward,) in scored]
        known = [reward for reward in rewards if reward is not None]
        return sum(known) / len(known) if known else 0.0

    async def _may_go_on(self) -> None:
        """Wait for a window; raise where there is no sense in going on."""
        if await run_sync(self.is_stale):
            raise StaleError(
                f"run {self.plan.name}: rules or skills have changed for all its turns, or it was"
                " dropped"
            )
        await self.windows.until_open()

    def _seed(self, step: int, piece: int = 0) -> int:
        return (self.plan.seed * 1_000_003 + step * 1_009 + piece) % (1 << 62)


def _record(scored: Sequence[ScoredGroup]) -> StepRecord:
    """What is remembered of a step's answers. Their mean surprise is the entropy of what was drawn
    at temperature 1.
    """
    rollouts = [rollout for group in scored for rollout in group.rollouts_G]
    tokens = sum(len(rollout.tokens_T) for rollout in rollouts)
    return StepRecord(
        groups=[group_record(group) for group in scored],
        reward=mean_reward(scored),
        moved=False,
        earned=earned_lengths(scored),
        length=tokens / len(rollouts),
        entropy=-sum(sum(rollout.logprobs_T) for rollout in rollouts) / tokens,
        gap=engine_gap(rollouts),
    )
