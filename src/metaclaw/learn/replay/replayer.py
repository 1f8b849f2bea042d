"""Replays of recorded turns with a skill (ports.Replayer): the serving model is asked again, tools are played from the cassette.

Only the model that served the turn is asked, so that no words reach a provider that has not seen them. A replay ends with an answer
that calls no tool. Its outcome is unknown where a call was not recorded, the model cannot be asked, or it takes too many steps.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol

from anyio import to_thread

from metaclaw.domain.candidate import Probe, ProbeKind, ReplayCost, ReplayResult
from metaclaw.domain.chat import ChatRequest, Completion, Part, ToolCall, ToolResult
from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.skill import Skill, SkillGeneration
from metaclaw.domain.turn import Step, Turn, TurnKind
from metaclaw.domain.verdict import Outcome
from metaclaw.errors import BudgetError, JudgeError, StoreError, UpstreamError
from metaclaw.learn.replay.cassette import Cassette, Miss, Nearest, Recording
from metaclaw.learn.replay.prompt import ReplayPrompt, UnplayableError, askable, carried_on
from metaclaw.learn.steps import StepBuilder
from metaclaw.ports import Model, Purpose
from metaclaw.skills import Budgets
from metaclaw.skills import estimate_tokens as estimate_text
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


@dataclass(frozen=True, slots=True)
class PlayedTurn:
    """A replayed turn: the step as it was recorded, what it was recorded as, and the replay's answer and calls. The step's
    `said_after` is the person's next word, however many turns later it came."""

    step: Step
    kind: ProbeKind
    answer: tuple[Part, ...]
    calls: tuple[PlayedCall, ...]


@dataclass(frozen=True, slots=True)
class ReplayScore:
    """The outcome of a replay, and the tokens that judging it took."""

    outcome: Outcome
    tokens: int = 0
    note: str = ""


class ReplayJudge(Protocol):
    """Tells the outcome of a replay."""

    async def score(self, skill: Skill, played: "PlayedTurn") -> "ReplayScore":
        """Raises JudgeError or UpstreamError where there is no outcome."""

    def estimate(self, skill: Skill, step: Step) -> int | None:
        """The tokens that judging one replay of this step takes; None where there is no judge."""


@dataclass(frozen=True, slots=True)
class PlacementRecord:
    """Placement of skills by the proxy; `generation` gives the skills in force then (GenerationStore.at; may block)."""

    generation: Callable[[int], SkillGeneration | None]
    budgets: Budgets = field(default_factory=Budgets)


@dataclass(frozen=True, slots=True)
class ReplayLimits:
    """Limits of a replay."""

    max_answers: int = 24
    max_later_turns: int = 64
    accept_nearest: bool = True


class CassetteReplayer:
    """Replays recorded turns with a skill. `model_for` gives the model that served a turn, by provider and name, or None where the
    program cannot ask it."""

    def __init__(
        self,
        reader: LedgerReader,
        builder: StepBuilder,
        model_for: Callable[[str, str], Model | None],
        score: ReplayJudge,
        place: PlacementRecord,
        limits: ReplayLimits | None = None,
    ) -> None:
        self._reader = reader
        self._builder = builder
        self._model_for = model_for
        self._scorer = score
        self._place = place
        self._limits = limits or ReplayLimits()
        self._scenes: OrderedDict[TurnId, _Scene] = OrderedDict()

    async def estimate(self, probe: Probe, skill: Skill) -> ReplayCost:
        """The tokens of one replay; 0 where it cannot be replayed, which costs nothing."""
        try:
            scene = await self._scene(probe.turn)
        except (UnplayableError, StoreError):
            return ReplayCost(0)
        judging = self._scorer.estimate(skill, scene.step)
        if judging is None or self._model_for(scene.turn.provider, scene.turn.model) is None:
            return ReplayCost(0)
        return ReplayCost(scene.tokens, estimate_text(f"{skill.trigger}{skill.body}") + judging)

    async def replay(self, probe: Probe, skill: Skill, replaces: Sequence[SkillName], seed: int, limit: int) -> ReplayResult:
        """Replay the turn with the skill, for at most `limit` tokens. Never raises for a turn that cannot be replayed or judged."""
        unknown = partial(ReplayResult, probe, Outcome.UNKNOWN)
        try:
            scene = await self._scene(probe.turn)
            prompt = scene.stage.arms(skill, replaces).with_skill
        except (UnplayableError, StoreError) as error:
            return unknown(note=str(error))
        model = self._model_for(scene.turn.provider, scene.turn.model)
        if model is None:
            return unknown(note=f"the model {scene.turn.model} of provider {scene.turn.provider} cannot be asked by the program")
        if self._scorer.estimate(skill, scene.step) is None:
            return unknown(note="it has no check, and no judge is configured")
        run = await self._play(model, prompt, scene.recording, seed, limit)
        if run.answer is None:
            return unknown(run.tokens, run.note, is_unavailable=run.is_unavailable and not run.tokens)
        try:
            score = await self._scorer.score(skill, PlayedTurn(scene.step, probe.kind, run.answer, run.calls))
        except (JudgeError, UpstreamError) as error:
            log.info("replay_not_scored turn=%s error=%s", probe.turn, error)
            return unknown(run.tokens, f"it could not be judged: {error}", is_unavailable=isinstance(error, BudgetError))
        return ReplayResult(probe, score.outcome, run.tokens + score.tokens, "; ".join(filter(None, (run.note, score.note))))

    def forget(self) -> None:
        """Drop what is remembered of sessions; for when one of them is to be forgotten."""
        self._scenes.clear()

    async def _scene(self, turn: TurnId) -> "_Scene":
        """The probe; read again where its session has gone on, or is gone, since it was read."""
        scene = self._scenes.get(turn)
        if scene is not None:
            session = await to_thread.run_sync(self._reader.session, scene.turn.session, abandon_on_cancel=True)
            scene = scene if session is not None and session.turns == scene.turns else None
        if scene is None:
            scene = await to_thread.run_sync(self._read, turn, abandon_on_cancel=True)
            self._scenes[turn] = scene
            while len(self._scenes) > _KEPT_PROBES:
                self._scenes.popitem(last=False)
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
        stage = ReplayPrompt(recorded.turn, known, own_words, self._place.budgets)
        said_after = next((step.said_after for step in steps if step.said_after is not None), None)
        step = replace(steps[0], said_after=said_after)
        answers = next((number for number, one in enumerate(steps, 1) if one.said_after is not None), len(steps))
        return _Scene(recorded.turn, 0 if session is None else session.turns, step, Recording.of(steps), stage, answers)

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

    async def _play(self, model: Model, prompt: ChatRequest, recording: Recording, seed: int, limit: int) -> "_Run":
        """One run, to its end or to the point from which it cannot go on."""
        request, run = askable(prompt, seed), _Running(Cassette(recording), self._limits.accept_nearest)
        for _ in range(self._limits.max_answers):
            try:
                answer = await model.ask(request, Purpose.REPLAY)
            except UpstreamError as error:
                return run.stopped(f"{model.name} cannot be asked: {error}", is_unavailable=True)
            run.tokens += _tokens(request, answer)
            results = run.answer_calls(answer)
            match results:
                case str():
                    return run.stopped(results)
                case []:
                    return run.ended(answer.parts)
                case _ if run.tokens >= limit:
                    return run.stopped(f"still at work after {run.tokens} tokens")
                case _:
                    request = carried_on(request, answer.parts, results)
        return run.stopped(f"still at work after {self._limits.max_answers} answers")


@dataclass(frozen=True, slots=True)
class _Scene:
    """A probe, read and ready. `turns` is how many its session had then; `answers` how many the task took from here."""

    turn: Turn
    turns: int
    step: Step
    recording: Recording
    stage: ReplayPrompt
    answers: int

    @property
    def tokens(self) -> int:
        """Tokens of the recorded task from here: as the provider counted, else as the request is estimated."""
        usage = self.turn.usage
        return self.answers * (estimate_tokens(self.stage.request) if usage is None else usage.input_tokens + usage.output_tokens)


@dataclass(frozen=True, slots=True)
class _Run:
    """Result of one replay; `answer` is None where it could not go on."""

    answer: tuple[Part, ...] | None
    calls: tuple[PlayedCall, ...]
    tokens: int
    note: str = ""
    is_unavailable: bool = False


class _Running:
    """A run under way."""

    def __init__(self, cassette: Cassette, accept_nearest: bool) -> None:
        self.tokens = 0
        self._cassette = cassette
        self._accept_nearest = accept_nearest
        self._calls: list[PlayedCall] = []
        self._near: list[str] = []

    def answer_calls(self, answer: Completion) -> list[ToolResult] | str:
        """The results of an answer's calls; empty for the last answer; a text says why the replay cannot go on."""
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
        """The replay is over."""
        near = self._near
        note = f"{len(near)} results were of a call that differs: {', '.join(dict.fromkeys(near))}" if near else ""
        return _Run(answer, tuple(self._calls), self.tokens, note)

    def stopped(self, why: str, *, is_unavailable: bool = False) -> _Run:
        """It cannot go on."""
        return _Run(None, tuple(self._calls), self.tokens, why, is_unavailable)


def _tokens(request: ChatRequest, answer: Completion) -> int:
    """Tokens of an answer: as the provider counts, else as the request is estimated."""
    if answer.usage is None:
        return estimate_tokens(request)
    return answer.usage.input_tokens + answer.usage.output_tokens
