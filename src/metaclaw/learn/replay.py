"""Replays of recorded turns with a skill (ports.Replayer): the model answers again, and tool
results come from the cassette.

Only the model that served the turn is asked, so that no provider sees words that it has not seen
before. A replay ends with an answer that calls no tool. Its outcome is unknown if a call was not
recorded, the model cannot be asked, or it takes too many steps.

The prompt is the recorded one, except for the skill on trial. The skill is placed where the proxy
places it: at the end of the system text for a session's first task, after the person's own words
for a later task."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol

from anyio import to_thread

from metaclaw.domain.candidate import Probe, ProbeKind, ReplayCost, ReplayResult
from metaclaw.domain.chat import (
    ChatRequest,
    Completion,
    Message,
    Part,
    Reasoning,
    Role,
    Text,
    ToolCall,
    ToolMode,
    ToolResult,
)
from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.skill import Skill, SkillGeneration
from metaclaw.domain.turn import Placement, Step, Turn, TurnKind
from metaclaw.domain.verdict import Outcome
from metaclaw.errors import (
    BudgetError,
    JudgeError,
    MetaClawError,
    StoreError,
    UpstreamError,
    WireError,
)
from metaclaw.learn.cassette import Cassette, Miss, Recording, SimilarResult
from metaclaw.learn.steps import StepBuilder, read_request
from metaclaw.ports import Model, Purpose
from metaclaw.skills import Budgets, render_block
from metaclaw.skills import estimate_tokens as estimate_text
from metaclaw.store import LedgerReader, RecordedTurn
from metaclaw.wires import estimate_tokens, wire_format

log = logging.getLogger(__name__)

_PAGE: Final = 100
_CACHED_TURNS: Final = 16
_BLANK_LINE: Final = "\n\n"


class UnplayableError(MetaClawError):
    """A recorded turn cannot be replayed; the message says why."""


@dataclass(frozen=True, slots=True)
class Arms:
    """The two prompts of a trial."""

    without: ChatRequest
    with_skill: ChatRequest


class ReplayPrompt:
    """The prompt of a recorded turn, into which a skill can be placed. `own_words` returns a
    person's own words in a message.
    """

    def __init__(
        self,
        turn: Turn,
        known: Mapping[SkillName, Skill],
        own_words: Callable[[Message], str],
        budgets: Budgets,
    ) -> None:
        """`known` are the skills that were in the prompt, as they were then. Raises
        UnplayableError.
        """
        self.request = sent_request(turn)
        """The request that the provider got."""
        self._placements = tuple(placement for placement in turn.placements if placement.is_lasting)
        self._known = known
        self._own_words = own_words
        self._budgets = budgets

    def arms(self, skill: Skill, replaces: Collection[SkillName]) -> Arms:
        """The prompt without and with the skill; the skills it replaces are in neither. Raises
        UnplayableError.
        """
        gone = {skill.name, *replaces}
        without = self.request
        host: tuple[Placement, int] | None = None
        for placement in self._placements:
            if not gone.isdisjoint((*placement.skills, *placement.listed)):
                without = _swap(without, placement.text, self._text(placement, gone))
                at = next((at for at, name in enumerate(placement.skills) if name in gone), None)
                if host is None and at is not None:
                    host = placement, at
        if host is None:
            return Arms(without, self._with_new(without, skill, gone))
        return Arms(without, self._with_host(skill, gone, *host))

    def _with_host(
        self, skill: Skill, gone: Collection[SkillName], host: Placement, at: int
    ) -> ChatRequest:
        """The prompt in which the skill takes the place of the first skill that it replaces."""
        request = _swap(self.request, host.text, self._text(host, gone, skill, at))
        for placement in self._placements:
            if placement is not host and not set(gone).isdisjoint(
                (*placement.skills, *placement.listed)
            ):
                request = _swap(request, placement.text, self._text(placement, gone))
        return request

    def _with_new(
        self, request: ChatRequest, skill: Skill, gone: Collection[SkillName]
    ) -> ChatRequest:
        """The prompt with the skill, added to `request`, which is the prompt without the skills in
        `gone`.
        """
        tasks = [at for at, message in enumerate(request.messages) if self._own_words(message)]
        spot = tasks[-1] if len(tasks) > 1 else None
        texts = (
            (placement, self._text_in(request, placement, gone)) for placement in self._placements
        )
        beside = next(
            (
                (placement, text)
                for placement, text in texts
                if _is_placed_at(placement, text, request, spot)
            ),
            None,
        )
        if beside is None:
            block = self._text(Placement(b"", (), ""), gone, skill)
            return _in_system(request, block) if spot is None else _behind(request, spot, block)
        placement, text = beside
        return _swap(request, text, self._text(placement, gone, skill))

    def _text_in(
        self, request: ChatRequest, placement: Placement, gone: Collection[SkillName]
    ) -> str:
        """The text of a block in the prompt without the skills in `gone`."""
        is_touched = not set(gone).isdisjoint((*placement.skills, *placement.listed))
        return self._text(placement, gone) if is_touched else placement.text

    def _skill(self, name: SkillName) -> Skill:
        found = self._known.get(name)
        if found is None:
            raise UnplayableError(f"the skill {name} that was in the prompt is no longer known")
        return found

    def _text(
        self,
        placement: Placement,
        gone: Collection[SkillName],
        new: Skill | None = None,
        at: int | None = None,
    ) -> str:
        """A block without the skills in `gone` and with the new skill, which is last unless `at`
        gives its place.
        """
        before = placement.skills if at is None else placement.skills[:at]
        behind = () if at is None else placement.skills[at:]
        placed = [self._skill(name) for name in before if name not in gone]
        if new is not None and new.is_skill and at is None:
            # At most `max_placed` skills are placed in full: drop the last to make room.
            full = [skill for skill in placed if skill.is_skill and not skill.applies_always]
            dropped = {skill.name for skill in full[max(0, self._budgets.max_placed - 1) :]}
            placed = [skill for skill in placed if skill.name not in dropped]
        if new is not None:
            placed.append(new)
        placed += [self._skill(name) for name in behind if name not in gone]
        listed = [self._skill(name) for name in placement.listed if name not in gone]
        block = render_block(
            placed,
            self._budgets.skills_tokens,
            listed=listed,
            rules_budget_tokens=self._budgets.rules_tokens,
        )
        if new is not None and new.name not in block.skills:
            tokens = self._budgets.skills_tokens if new.is_skill else self._budgets.rules_tokens
            raise UnplayableError(
                f"the skill {new.name} does not fit into the prompt's budget of {tokens} tokens"
            )
        return block.text.removeprefix(_BLANK_LINE)


def sent_request(turn: Turn) -> ChatRequest:
    """The request that the provider got for a turn, with its skills. Raises UnplayableError."""
    wire = turn.wire if turn.exchange.translated is None else turn.provider_wire
    try:
        request = read_request(wire, turn.exchange.sent)
    except (WireError, ValueError) as error:
        raise UnplayableError(f"the request to the provider cannot be read: {error}") from error
    if any(request.extra.get(name) for name in wire_format(wire).kept_history_keys):
        raise UnplayableError("a part of the prompt is stored at the provider and was not recorded")
    return request


def _is_placed_at(placement: Placement, text: str, request: ChatRequest, spot: int | None) -> bool:
    """Whether the block is in the message `spot`; None: in the system text."""
    if not text:
        return False
    if spot is None:
        return not placement.anchor
    return any(
        isinstance(part, Text) and text in part.text for part in request.messages[spot].parts
    )


def _swap(request: ChatRequest, old: str, new: str) -> ChatRequest:
    """The request with the block `new` in the place of `old`, or without `old` if `new` is
    empty.
    """
    messages = list(request.messages)
    for at, message in enumerate(messages):
        for number, part in enumerate(message.parts):
            if not isinstance(part, Text) or old not in part.text:
                continue
            text = _swapped(part.text, old, new)
            changed: tuple[Part, ...] = (replace(part, text=text),) if text else ()
            parts = (*message.parts[:number], *changed, *message.parts[number + 1 :])
            messages[at : at + 1] = [replace(message, parts=parts)] if parts else []
            return replace(request, messages=tuple(messages))
    raise UnplayableError("the placed skills are not found in the request to the provider")


def _swapped(text: str, old: str, new: str) -> str:
    before, _, behind = text.partition(old)
    if new:
        return before + new + behind
    # Remove the blank line before or after the block, too.
    return before.removesuffix(_BLANK_LINE) + behind if before else behind.removeprefix(_BLANK_LINE)


def _in_system(request: ChatRequest, block: str) -> ChatRequest:
    """The request with the block at the end of the system text, in the form of its wire."""
    messages = request.messages
    leading = next(
        (at for at, message in enumerate(messages) if message.role is not Role.SYSTEM),
        len(messages),
    )
    wire = wire_format(request.wire)
    if leading and not wire.has_system_field:
        return _behind(request, leading - 1, block)
    if leading and not messages[0].extra:
        return _behind(request, 0, block)
    at = leading if wire.later_system else 0
    added = Message(Role.SYSTEM, (Text(block),), extra=dict(wire.later_system))
    return replace(request, messages=(*messages[:at], added, *messages[at:]))


def _behind(request: ChatRequest, at: int, block: str) -> ChatRequest:
    """The request with the block at the end of one message: in its text if it has no other parts,
    else as a separate part.
    """
    message = request.messages[at]
    apart = wire_format(request.wire).appends_parts and message.role is not Role.SYSTEM
    match message.parts:
        case (Text(text, extra),) if not extra and not apart:
            parts: tuple[Part, ...] = (Text(f"{text}{_BLANK_LINE}{block}" if text else block),)
        case _:
            parts = (*message.parts, Text(block))
    messages = (*request.messages[:at], replace(message, parts=parts), *request.messages[at + 1 :])
    return replace(request, messages=messages)


def replay_request(prompt: ChatRequest, seed: int) -> ChatRequest:
    """The prompt as a request for one answer, not streamed and not stored by the provider."""
    sampling = replace(prompt.sampling, seed=seed, n=1, logprobs=False, top_logprobs=None)
    dropped = ("stream_options", "background")
    extra = {name: value for name, value in prompt.extra.items() if name not in dropped} | dict(
        wire_format(prompt.wire).unkept
    )
    return replace(prompt, stream=False, include_usage=False, sampling=sampling, extra=extra)


def next_request(
    request: ChatRequest, answer: Sequence[Part], results: Sequence[ToolResult]
) -> ChatRequest:
    """The next request of the same conversation, as a client would make it."""
    parts = tuple(said for part in answer if (said := _said_again(request, part)) is not None)
    if wire_format(request.wire).joins_results:
        answers: tuple[Message, ...] = (Message(Role.USER, tuple(results)),)
    else:
        answers = tuple(Message(Role.TOOL, (result,)) for result in results)
    choice = request.tool_choice
    # A model that must call a tool each time would never end.
    free = None if choice is not None and choice.mode is ToolMode.REQUIRED else choice
    return replace(
        request,
        messages=(*request.messages, Message(Role.ASSISTANT, parts), *answers),
        tool_choice=free,
    )


def _said_again(request: ChatRequest, part: Part) -> Part | None:
    """A part of an answer as the next request repeats it; None if it is left out."""
    match part:
        case Text():
            return Text(part.text)
        case Reasoning() if not wire_format(request.wire).needs_signed_reasoning:
            # Some servers need the reasoning back, others refuse it: do as the recorded client did.
            thoughts = (
                isinstance(said, Reasoning)
                for message in request.messages
                for said in message.parts
            )
            return part if any(thoughts) else None
        case Reasoning():
            return part if part.signature is not None else None
        case ToolCall():
            # The provider's id refers to an item that the replay told it not to store.
            return replace(
                part,
                extra={
                    name: value
                    for name, value in part.extra.items()
                    if name not in ("id", "status")
                },
            )
        case _:
            return part


@dataclass(frozen=True, slots=True)
class ReplayedTurn:
    """A replayed turn: the recorded step, the kind of the probe, and the replay's answer and calls.
    The step's `said_after` is the person's next message, even if it came several turns later."""

    step: Step
    kind: ProbeKind
    answer: tuple[Part, ...]
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class ReplayScore:
    """The outcome of a replay, and the tokens that the judge used."""

    outcome: Outcome
    tokens: int = 0
    note: str = ""


class ReplayJudge(Protocol):
    """Decides the outcome of a replay."""

    async def score(self, skill: Skill, played: "ReplayedTurn") -> "ReplayScore":
        """Raises JudgeError or UpstreamError if the outcome cannot be decided."""

    def estimate(self, skill: Skill, step: Step) -> int | None:
        """The tokens for judging one replay of this step; None if there is no judge."""


@dataclass(frozen=True, slots=True)
class ReplayLimits:
    max_answers: int = 24
    max_later_turns: int = 64
    accept_nearest: bool = True


@dataclass(eq=False)
class CassetteReplayer:
    """Replays recorded turns with a skill. `model_for` returns the model of a provider by name, or
    None if the program cannot ask it; `generation` returns a generation by its number (may block).
    `budgets` are those of the proxy's prompts."""

    reader: LedgerReader
    builder: StepBuilder
    model_for: Callable[[str, str], Model | None]
    scorer: ReplayJudge
    generation: Callable[[int], SkillGeneration | None]
    budgets: Budgets = field(default_factory=Budgets)
    limits: ReplayLimits = field(default_factory=ReplayLimits)

    def __post_init__(self) -> None:
        self._scenes: OrderedDict[TurnId, _Scene] = OrderedDict()

    async def estimate(self, probe: Probe, skill: Skill) -> ReplayCost:
        """The tokens of one replay; 0 if the turn cannot be replayed."""
        try:
            scene = await self._scene(probe.turn)
        except (UnplayableError, StoreError):
            return ReplayCost(0)
        judging = self.scorer.estimate(skill, scene.step)
        if judging is None or self.model_for(scene.turn.provider, scene.turn.model) is None:
            return ReplayCost(0)
        return ReplayCost(scene.tokens, estimate_text(f"{skill.trigger}{skill.body}") + judging)

    async def replay(
        self, probe: Probe, skill: Skill, replaces: Sequence[SkillName], seed: int, limit: int
    ) -> ReplayResult:
        """Replay the turn with the skill, for at most `limit` tokens. Never raises for a turn that
        cannot be replayed or judged.
        """
        unknown = partial(ReplayResult, probe, Outcome.UNKNOWN)
        try:
            scene = await self._scene(probe.turn)
            prompt = scene.prompt.arms(skill, replaces).with_skill
        except (UnplayableError, StoreError) as error:
            return unknown(note=str(error))
        model = self.model_for(scene.turn.provider, scene.turn.model)
        if model is None:
            return unknown(
                note=(
                    f"the model {scene.turn.model} of provider {scene.turn.provider} cannot be"
                    " asked by the program"
                )
            )
        if self.scorer.estimate(skill, scene.step) is None:
            return unknown(note="it has no check, and no judge is configured")
        run = await self._play(model, prompt, scene.recording, seed, limit)
        if run.answer is None:
            return unknown(
                run.tokens, run.note, is_unavailable=run.is_unavailable and not run.tokens
            )
        try:
            score = await self.scorer.score(
                skill, ReplayedTurn(scene.step, probe.kind, run.answer, tuple(run.calls))
            )
        except (JudgeError, UpstreamError) as error:
            log.info("replay_not_scored turn=%s error=%s", probe.turn, error)
            return unknown(
                run.tokens,
                f"it could not be judged: {error}",
                is_unavailable=isinstance(error, BudgetError),
            )
        return ReplayResult(
            probe,
            score.outcome,
            run.tokens + score.tokens,
            "; ".join(filter(None, (run.note, score.note))),
        )

    def forget(self) -> None:
        """Drop the cached turns, because a session is to be forgotten."""
        self._scenes.clear()

    async def _scene(self, turn: TurnId) -> "_Scene":
        """The turn, prepared for replays and cached; read again if its session has changed or been
        deleted since.
        """
        scene = self._scenes.get(turn)
        if scene is not None:
            session = await to_thread.run_sync(
                self.reader.session, scene.turn.session, abandon_on_cancel=True
            )
            scene = scene if session is not None and session.turns == scene.turns else None
        if scene is None:
            scene = await to_thread.run_sync(self._read, turn, abandon_on_cancel=True)
            self._scenes[turn] = scene
            while len(self._scenes) > _CACHED_TURNS:
                self._scenes.popitem(last=False)
        return scene

    def _read(self, turn: TurnId) -> "_Scene":
        """Read everything that a replay of this turn needs. Blocks. Raises UnplayableError or
        StoreError.
        """
        recorded = self.reader.turn(turn)
        if recorded is None:
            raise UnplayableError("the turn is not recorded any more")
        session = self.reader.session(recorded.turn.session)
        steps = self.builder.chain(
            [recorded, *self._later(recorded)],
            is_ended=session is not None and session.ended_at is not None,
        )
        if not steps:
            raise UnplayableError("the turn is not a main turn, or its request cannot be read")
        known = self._placed_skills(recorded.turn)
        own_words = partial(self.builder.own_words, recorded.turn.agent)
        prompt = ReplayPrompt(recorded.turn, known, own_words, self.budgets)
        said_after = next((step.said_after for step in steps if step.said_after is not None), None)
        step = replace(steps[0], said_after=said_after)
        answers = next(
            (number for number, one in enumerate(steps, 1) if one.said_after is not None),
            len(steps),
        )
        return _Scene(
            recorded.turn,
            0 if session is None else session.turns,
            step,
            Recording.of(steps),
            prompt,
            answers,
        )

    def _later(self, recorded: RecordedTurn) -> list[RecordedTurn]:
        """The main turns of the session after this one, at most `max_later_turns`."""
        found: list[RecordedTurn] = []
        after = recorded.seq
        while rows := self.reader.turns_of(recorded.turn.session, _PAGE, after):
            for row in rows:
                if row.kind is TurnKind.MAIN and (later := self.reader.turn(row.id)) is not None:
                    found.append(later)
                if len(found) == self.limits.max_later_turns:
                    return found
            after = rows[-1].seq
        return found

    def _placed_skills(self, turn: Turn) -> dict[SkillName, Skill]:
        if not turn.placements:
            return {}
        generation = self.generation(turn.stamp.generation)
        return {skill.name: skill for skill in generation.skills} if generation is not None else {}

    async def _play(
        self, model: Model, prompt: ChatRequest, recording: Recording, seed: int, limit: int
    ) -> "_Run":
        """Run one replay until its last answer, or until it cannot continue."""
        request, run = (
            replay_request(prompt, seed),
            _Run(Cassette(recording), self.limits.accept_nearest),
        )
        for _ in range(self.limits.max_answers):
            try:
                answer = await model.ask(request, Purpose.REPLAY)
            except UpstreamError as error:
                return run.stop(f"{model.name} cannot be asked: {error}", is_unavailable=True)
            run.tokens += _tokens(request, answer)
            results = run.answer_calls(answer)
            match results:
                case str():
                    return run.stop(results)
                case []:
                    return run.end(answer.parts)
                case _ if run.tokens >= limit:
                    return run.stop(f"still at work after {run.tokens} tokens")
                case _:
                    request = next_request(request, answer.parts, results)
        return run.stop(f"still at work after {self.limits.max_answers} answers")


@dataclass(frozen=True, slots=True)
class _Scene:
    """A turn prepared for replays. `turns` is the number of turns of its session when it was read,
    `answers` the number of answers that the task took from this turn on."""

    turn: Turn
    turns: int
    step: Step
    recording: Recording
    prompt: ReplayPrompt
    answers: int

    @property
    def tokens(self) -> int:
        """Tokens of the recorded task from this turn on: as the provider counted, or estimated from
        the request.
        """
        usage = self.turn.usage
        return self.answers * (
            estimate_tokens(self.prompt.request)
            if usage is None
            else usage.input_tokens + usage.output_tokens
        )


@dataclass(slots=True)
class _Run:
    """The state of one replay. `answer` stays None if the replay cannot continue, and `note` says
    why.
    """

    cassette: Cassette
    accept_nearest: bool
    tokens: int = 0
    calls: list[ToolCall] = field(default_factory=list)
    near: list[str] = field(default_factory=list)
    answer: tuple[Part, ...] | None = None
    note: str = ""
    is_unavailable: bool = False

    def answer_calls(self, answer: Completion) -> list[ToolResult] | str:
        """The results of an answer's calls, empty for the last answer; or the reason why the replay
        cannot continue.
        """
        results: list[ToolResult] = []
        for call in (part for part in answer.parts if isinstance(part, ToolCall)):
            played = self.cassette.play(call)
            if isinstance(played, Miss):
                return [] if self.cassette.closes(call) else played.why
            if isinstance(played, SimilarResult):
                if not self.accept_nearest:
                    return f"{call.name} was recorded with a difference: {played.differs}"
                self.near.append(f"{call.name}: {played.differs}")
            results.append(played.result)
            self.calls.append(call)
        return results

    def end(self, answer: tuple[Part, ...]) -> "_Run":
        """End with the last answer."""
        self.answer, near = answer, self.near
        self.note = (
            f"{len(near)} results were of a call that differs: {', '.join(dict.fromkeys(near))}"
            if near
            else ""
        )
        return self

    def stop(self, why: str, *, is_unavailable: bool = False) -> "_Run":
        """End without an answer."""
        self.note, self.is_unavailable = why, is_unavailable
        return self


def _tokens(request: ChatRequest, answer: Completion) -> int:
    """Tokens of an answer: as the provider counted, or estimated from the request."""
    if answer.usage is None:
        return estimate_tokens(request)
    return answer.usage.input_tokens + answer.usage.output_tokens
