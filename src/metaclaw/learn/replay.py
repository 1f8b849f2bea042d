"""Trials of skills on recorded turns (ports.Replayer): the serving model is asked again, its tools are played from the cassette.

Nothing but the model is asked, and that is the one that served the turn, so no words reach anybody who has not seen them. A replay
ends with an answer that calls no tool, or is undecided: a call that was not recorded, a model that cannot be asked, too many steps.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol

from anyio import to_thread

from metaclaw.domain.candidate import Probe, Trial
from metaclaw.domain.chat import ChatRequest, Completion, Part, ToolCall, ToolResult
from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.skill import Skill, SkillGeneration
from metaclaw.domain.step import Step
from metaclaw.domain.turn import Turn, TurnKind
from metaclaw.domain.verdict import Outcome
from metaclaw.errors import JudgeError, StoreError, UpstreamError
from metaclaw.learn.cassette import Cassette, Miss, Nearest, Recording
from metaclaw.learn.prompt import Stage, UnplayableError, askable, carried_on
from metaclaw.learn.remembered import Remembered
from metaclaw.learn.steps import StepBuilder
from metaclaw.ports import Model, Purpose
from metaclaw.skills import Budgets
from metaclaw.store import LedgerReader, RecordedTurn
from metaclaw.wires import estimate_tokens

log = logging.getLogger(__name__)

_PAGE: Final = 100
_KEPT_PROBES: Final = 16


@dataclass(frozen=True, slots=True)
class PlayedCall:
    """A call the model made in a replay, and what the cassette gave for it."""

    call: ToolCall
    result: ToolResult


class Scorer(Protocol):
    """Says what the end of a replay came to."""

    async def score(self, skill: Skill, step: Step, answer: tuple[Part, ...], calls: Sequence[PlayedCall]) -> Outcome:
        """`step` is the probe as it was recorded; its `said_after` is the person's next word, however many turns later it came.
        `answer` and `calls` are the replay's. Raises JudgeError or UpstreamError where nobody can say."""


@dataclass(frozen=True, slots=True)
class Placing:
    """How the proxy places skills; `generation` gives the skills that were in force then (GenerationStore.at; it may block)."""

    generation: Callable[[int], SkillGeneration | None]
    budgets: Budgets = field(default_factory=Budgets)


@dataclass(frozen=True, slots=True)
class ReplayLimits:
    """How far a replay goes, and how many baseline runs are remembered."""

    max_answers: int = 24
    max_later_turns: int = 64
    max_runs: int = 512
    accept_nearest: bool = True


class CassetteReplayer:
    """Tries skills on recorded turns. `model_for` gives the model that served a turn, by provider and name, or None where the
    program cannot ask it."""

    def __init__(
        self,
        reader: LedgerReader,
        builder: StepBuilder,
        model_for: Callable[[str, str], Model | None],
        score: Scorer,
        place: Placing,
        limits: ReplayLimits | None = None,
    ) -> None:
        self._reader = reader
        self._builder = builder
        self._model_for = model_for
        self._scorer = score
        self._place = place
        self._limits = limits or ReplayLimits()
        self._scenes = Remembered[_Scene](_KEPT_PROBES)
        self._runs = Remembered[_Run](self._limits.max_runs)

    async def trial(self, probe: Probe, skill: Skill, replaces: Sequence[SkillName], seed: int) -> Trial:
        """Replay the probe without and with the skill. Never raises for a probe that cannot be decided."""
        undecided = partial(Trial, probe, seed, Outcome.UNKNOWN, Outcome.UNKNOWN)
        try:
            scene = await self._scene(probe.turn)
            arms = scene.stage.arms(skill, replaces)
        except (UnplayableError, StoreError) as error:
            return undecided(note=str(error))
        model = self._model_for(scene.turn.provider, scene.turn.model)
        if model is None:
            return undecided(note=f"the model {scene.turn.model} of provider {scene.turn.provider} cannot be asked by the program")
        run = partial(self._play, model, arms.without, scene.recording, seed)
        shared = frozenset((skill.name, *replaces)) & scene.placed
        without, is_new = await self._runs.get((probe.turn, scene.turns, seed, shared), run, keep=lambda run: run.is_settled)
        tokens = without.tokens if is_new else 0
        if without.answer is None:
            return undecided(tokens=tokens, note=f"without the skill: {without.note}")
        tried = await self._play(model, arms.with_skill, scene.recording, seed)
        tokens += tried.tokens
        if tried.answer is None:
            return undecided(tokens=tokens, note=f"with the skill: {tried.note}")
        before, after = [await self._score(skill, scene.step, run) for run in (without, tried)]
        return Trial(probe, seed, before, after, tokens, "; ".join(dict.fromkeys(filter(None, (without.note, tried.note)))))

    def forget(self) -> None:
        """Let go of everything remembered of sessions; for when one of them is to be forgotten."""
        self._scenes.clear()
        self._runs.clear()

    async def _scene(self, turn: TurnId) -> "_Scene":
        """The probe; read again where its session has gone on, or is gone, since it was read."""
        read = partial(to_thread.run_sync, self._read, turn, abandon_on_cancel=True)
        scene, is_new = await self._scenes.get(turn, read)
        if not is_new:
            session = await to_thread.run_sync(self._reader.session, scene.turn.session, abandon_on_cancel=True)
            if session is None or session.turns != scene.turns:
                self._scenes.drop(turn)
                scene, _ = await self._scenes.get(turn, read)
        return scene

    def _read(self, turn: TurnId) -> "_Scene":
        """Everything a trial of this turn needs. Blocks. Raises UnplayableError or StoreError."""
        recorded = self._reader.turn(turn)
        if recorded is None:
            raise UnplayableError("the turn is not recorded any more")
        session = self._reader.session(recorded.turn.session)
        steps = self._builder.chain(
            [recorded, *self._later(recorded)], is_ended=session is not None and session.ended_at is not None
        )
        if not steps:
            raise UnplayableError("the turn is no work of the agent's, or its request cannot be read")
        known = self._placed_skills(recorded.turn)
        own_words = partial(self._builder.own_words, recorded.turn.agent)
        stage = Stage(recorded.turn, known, own_words, self._place.budgets)
        said_after = next((step.said_after for step in steps if step.said_after is not None), None)
        step = replace(steps[0], said_after=said_after)
        return _Scene(recorded.turn, 0 if session is None else session.turns, step, Recording.of(steps), stage)

    def _later(self, recorded: RecordedTurn) -> list[RecordedTurn]:
        """The main turns of the session behind this one, as many as are looked at."""
        found: list[RecordedTurn] = []
        after = recorded.seq
        while rows := self._reader.turns_of(recorded.turn.session, _PAGE, after):
            for row in rows:
                if row.kind is TurnKind.MAIN and (later := self._reader.turn(row.id)) is not None:
                    found.append(later)
                if len(found) == self._limits.max_later_turns:
                    return found
            after = rows[-1].seq
        return found

    def _placed_skills(self, turn: Turn) -> dict[SkillName, Skill]:
        if not turn.placements:
            return {}
        generation = self._place.generation(turn.stamp.generation)
        return {skill.name: skill for skill in generation.skills} if generation is not None else {}

    async def _play(self, model: Model, prompt: ChatRequest, recording: Recording, seed: int) -> "_Run":
        """One run, to its end or to the point from which it cannot go on."""
        request, run = askable(prompt, seed), _Running(Cassette(recording), self._limits.accept_nearest)
        for _ in range(self._limits.max_answers):
            try:
                answer = await model.ask(request, Purpose.REPLAY)
            except UpstreamError as error:
                return run.stopped(f"{model.name} cannot be asked: {error}", is_settled=False)
            run.tokens += _tokens(request, answer)
            results = run.answer_calls(answer)
            match results:
                case str():
                    return run.stopped(results)
                case []:
                    return run.ended(answer.parts)
                case _:
                    request = carried_on(request, answer.parts, results)
        return run.stopped(f"still at work after {self._limits.max_answers} answers")

    async def _score(self, skill: Skill, step: Step, run: "_Run") -> Outcome:
        try:
            return await self._scorer.score(skill, step, run.answer or (), run.calls)
        except (JudgeError, UpstreamError) as error:
            log.info("replay_not_scored turn=%s error=%s", step.turn, error)
            return Outcome.UNKNOWN


@dataclass(frozen=True, slots=True)
class _Scene:
    """A probe, read and ready. `turns` is how many its session had then."""

    turn: Turn
    turns: int
    step: Step
    recording: Recording
    stage: Stage

    @property
    def placed(self) -> frozenset[SkillName]:
        return frozenset(name for placement in self.turn.placements for name in placement.skills)


@dataclass(frozen=True, slots=True)
class _Run:
    """How one replay went; `answer` is None where it could not go on. Settled means that it would go the same way again."""

    answer: tuple[Part, ...] | None
    calls: tuple[PlayedCall, ...]
    tokens: int
    note: str = ""
    is_settled: bool = True


class _Running:
    """A run under way."""

    def __init__(self, cassette: Cassette, accept_nearest: bool) -> None:
        self.tokens = 0
        self._cassette = cassette
        self._accept_nearest = accept_nearest
        self._calls: list[PlayedCall] = []
        self._near: list[str] = []

    def answer_calls(self, answer: Completion) -> list[ToolResult] | str:
        """What the tools give; nothing where the answer is the last one; why there is no going on."""
        results: list[ToolResult] = []
        for call in (part for part in answer.parts if isinstance(part, ToolCall)):
            played = self._cassette.play(call)
            if isinstance(played, Miss):
                return [] if self._cassette.closes(call) else played.why
            if isinstance(played, Nearest):
                if not self._accept_nearest:
                    return f"{call.name} was recorded with a difference: {played.differs}"
                self._near.append(f"{call.name}: {played.differs}")
            results.append(played.result)
            self._calls.append(PlayedCall(call, played.result))
        return results

    def ended(self, answer: tuple[Part, ...]) -> _Run:
        """It came to an end."""
        near = self._near
        note = f"{len(near)} results were of a call that differs: {', '.join(dict.fromkeys(near))}" if near else ""
        return _Run(answer, tuple(self._calls), self.tokens, note)

    def stopped(self, why: str, *, is_settled: bool = True) -> _Run:
        """It cannot go on."""
        return _Run(None, tuple(self._calls), self.tokens, why, is_settled)


def _tokens(request: ChatRequest, answer: Completion) -> int:
    """What an answer cost: as the provider counts, or else as the request is estimated."""
    if answer.usage is None:
        return estimate_tokens(request)
    return answer.usage.input_tokens + answer.usage.output_tokens
