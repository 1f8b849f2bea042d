"""Enforcement: the tool calls of an answer are held until all are known, and released or refused together.

If one breaks a held rule, the same provider is asked again, at most twice, with its own answer and a result for each call that says
why it was not run. The client gets one message: the text as it came, then the calls that comply. If none do, it gets a text that
names the rule, or, where the rule says so, the calls with a warning. Nothing is ever run by us.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from metaclaw.domain.chat import (
    Begin,
    ChatRequest,
    Completion,
    Delta,
    End,
    Failed,
    Finish,
    Json,
    Message,
    OpaqueDelta,
    Part,
    ReasoningDelta,
    SampledTokens,
    Text,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    Usage,
    Wire,
)
from metaclaw.domain.check import Conversation, ProgramCheck
from metaclaw.domain.enforcement import ATTEMPT, EnforcedRule, HoldEnd, ShownCall, TrueAnswer
from metaclaw.domain.ids import SkillName, new_turn_id
from metaclaw.domain.session import Origin
from metaclaw.domain.turn import Enforcement, Exchange, Stamp, Turn, TurnEnd, TurnKind, apply_splices
from metaclaw.errors import UpstreamError, WireError
from metaclaw.proxy.dispatch import Generated, Limits, Opened, Opener, Relayed, Translated, check_size
from metaclaw.proxy.held_rules import CallJudge, HeldRule, HeldRules, Ruling
from metaclaw.proxy.http.body import list_key, parse_object
from metaclaw.proxy.http.client import Client, Incoming, RawHeaders
from metaclaw.proxy.response import (
    BLANK_LINES,
    JSON_HEADERS,
    SSE_HEADERS,
    each,
    linger,
    provider_deltas,
    raw_headers,
    relay,
    settle_relayed,
    translate,
)
from metaclaw.proxy.true_answers import TrueAnswers, append_items
from metaclaw.proxy.turn_builder import TurnBuilder
from metaclaw.upstream import pour
from metaclaw.wires import (
    CallHold,
    Facts,
    HeldCall,
    StreamWriter,
    TailHold,
    collect,
    deltas_of,
    encode_json,
    has_call_mark,
    streamed_facts,
    whole_calls,
    wire_format,
)
from metaclaw.wires.attempt import plain_text

log = logging.getLogger(__name__)

MOST_RETRIES: Final = 2
OPT_OUT: Final = "x-metaclaw-enforce"
_HEAD_PATIENCE_S: Final = 5.0
"""How long the head of a stream waits for its first words, so that it can name rules that held."""
_BREAK: Final = "\n\n"
_MOST_RULE_CHARS: Final = 300
_CHAT = Wire.CHAT
_KEPT_ELSEWHERE: Final = "the provider keeps the conversation, or answers in the background"
_SIBLING = "Not run, because another call of the same answer was refused. Send this call again if it is still needed."


class Enforcer:
    """Knows which rules hold, whether enforcement is on, and what became of answers that were held."""

    def __init__(
        self,
        rules: HeldRules,
        answers: TrueAnswers | None = None,
        *,
        judge: CallJudge | None = None,
        may_opt_out: bool = False,
        announce: Callable[[str, dict[str, Json]], Awaitable[bool]] | None = None,
    ) -> None:
        self.answers = answers or TrueAnswers()
        self.judge = judge or CallJudge()
        self.is_on = True
        self._rules = rules
        self._may_opt_out = may_opt_out
        self._announce = announce

    def rules_for(self, incoming: Incoming, origin: Origin, stamp: Stamp) -> tuple[HeldRule, ...]:
        """The rules that hold this request's calls."""
        if not self.is_on:
            return ()
        rules = self._rules.for_speaker(origin.scope, stamp.skills)
        if not rules:
            return rules
        if self._may_opt_out and incoming.headers.get(OPT_OUT, "").lower() == "off":
            return ()
        return rules

    @staticmethod
    def can_hold(incoming: Incoming) -> bool:
        """Whether this request's calls can be refused: not where the provider keeps the conversation, or answers later."""
        return incoming.wire is not Wire.RESPONSES or not (
            incoming.json.get("conversation") or incoming.json.get("background") is True
        )

    async def histories(self, incoming: Incoming, origin: Origin) -> tuple[TrueAnswer, ...]:
        """What must be put back into this request's history."""
        turns = self.answers.concerns(incoming, origin)
        return await self.answers.read(turns) if turns else ()

    async def recorded(self, turn: Turn, failed: Sequence[tuple[HeldRule, str]], not_held: Sequence[HeldRule] = ()) -> None:
        """Tell of what was held, and of rules that could not hold, once the turn is recorded."""
        found = turn.enforcement
        if not_held:
            names: list[Json] = [rule.name for rule in not_held]
            log.warning("rules_not_held turn=%s rules=%s reason=%s", turn.id, ",".join(map(str, names)), _KEPT_ELSEWHERE)
            about: dict[str, Json] = {"turn": turn.id, "session": turn.session, "agent": turn.agent}
            await self._tell("rules_not_held", {"rules": names, **about, "reason": _KEPT_ELSEWHERE})
        for rule, reason in failed:
            await self._tell("check_failed", {"rule": rule.name, "turn": turn.id, "session": turn.session, "reason": reason})
        for one in () if found is None else found.rules:
            told: dict[str, Json] = {
                "rule": one.rule,
                "turn": turn.id,
                "session": turn.session,
                "agent": turn.agent,
                "attempts": one.attempts,
                "end": one.end.value,
            }
            await self._tell("rule_held", told)

    def remember(self, turn: Turn) -> None:
        """From now on the true answer takes the place of what the client was shown."""
        if turn.enforcement is not None and turn.enforcement.answer is not None:
            self.answers.add(turn.id, turn.session, turn.scope.user, turn.enforcement.answer)

    async def _tell(self, kind: str, data: dict[str, Json]) -> None:
        if self._announce is not None:
            await self._announce(kind, data)


@dataclass(slots=True)
class _Made:
    """One attempt at an answer: what was sent, what came back, and which calls broke which rules."""

    sent: bytes
    said: bytes
    stream: bool
    completion: Completion
    calls: Sequence[HeldCall]
    ruling: Ruling
    began: float


@dataclass(slots=True)
class _Heard:
    """What has been heard of an attempt that arrives in deltas: calls wait, and in most wires all that follows them."""

    waiting: list[Delta] = field(default_factory=list)
    all: list[Delta] = field(default_factory=list)
    end: End | None = None


class Hold:
    """Serves one answer under held rules."""

    def __init__(
        self, draft: TurnBuilder, client: Client, limits: Limits, opener: Opener, enforcer: Enforcer, rules: tuple[HeldRule, ...]
    ) -> None:
        self._draft = draft
        self._client = client
        self._limits = limits
        self._opener = opener
        self._enforcer = enforcer
        self._rules = rules
        self._made: list[_Made] = []
        self._waiting: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._headers: RawHeaders = []
        self._status = 200
        self._has_text = False
        self.failed: list[tuple[HeldRule, str]] = []
        """Rules whose check could not be run, and why."""

    async def answer(self, opened: Opened) -> bytes:
        """Get the answer to the client, up to its tail."""
        draft = self._draft
        try:
            match opened:
                case Relayed() if opened.opening is not None:
                    return await self._relay_stream(opened, opened.opening)
                case Relayed() if opened.facts is not None:
                    return await self._relay_whole(opened)
                case Relayed():
                    return await relay(draft, opened, self._client, self._limits)
                case Translated() if opened.opening is None and opened.completion is None:
                    return await translate(draft, opened, self._client, self._limits)
                case Translated() | Generated():
                    return await self._render(opened)
        finally:
            if self._timer is not None:
                self._timer.cancel()

    # The provider speaks the client's wire: its bytes are the answer unless a rule is broken.

    async def _relay_stream(self, opened: Relayed, opening: bytes) -> bytes:
        draft, wire = self._draft, self._draft.incoming.wire
        hold, tail, footer = CallHold(wire), TailHold(wire), draft.footer
        draft.streamed = True
        draft.status = self._status = opened.status
        self._headers = raw_headers(opened.headers)
        passed: list[bytes] = []
        watch: TailHold | None = None
        is_whole = False

        def take(chunk: bytes) -> bool:
            draft.say(chunk)
            check_size(draft, self._limits)
            return pass_on(chunk)

        def pass_on(chunk: bytes) -> bool:
            nonlocal is_whole, watch
            data = hold.feed(chunk)
            went = release(data) if data else True
            if hold.has_calls:
                # The end waits among what is held, and the provider may leave the connection open behind it.
                if watch is None:
                    watch = TailHold(wire)
                    watch.feed(hold.held + hold.unfinished)
                else:
                    watch.feed(chunk)
                is_whole = watch.terminal and watch.held().endswith(BLANK_LINES)
            else:
                is_whole = tail.terminal and tail.held().endswith(BLANK_LINES)
            return went and not is_whole

        def release(data: bytes) -> bool:
            if not data:
                return True
            passed.append(data)
            if footer is not None:
                data = footer.feed(data)
                draft.show(data)
            released = tail.feed(data)
            draft.relayed_bytes += len(released)
            return self._send(released, now=hold.has_words)

        chunks = opened.reply.chunks()
        must_pause = not pass_on(opening)
        while must_pause or await pour(chunks, take):
            must_pause = False
            await self._client.drain()
            if is_whole:
                await linger(chunks)
                break
        release(hold.close())
        facts: Facts | None = None
        if hold.has_calls:
            self._has_text = hold.has_words
            facts = streamed_facts(wire, draft.said)
            if facts.error is not None or facts.finish is None:
                raise UpstreamError(facts.error or f"provider {draft.provider} ended its stream before the answer was whole")
            ended = await self._judge_relayed(hold, passed, tail)
            if ended is not None:
                return ended
            held = hold.held
            if footer is None and watch is not None and watch.terminal and not tail.held() and held.endswith(end := watch.held()):
                # Where the end begins is known already.
                tail, held = watch, held[: -len(end)]
                draft.relayed_bytes += len(held)
                self._send(held)
            else:
                release(held)
        if footer is not None:
            rest = footer.close()
            draft.show(rest)
            self._send(tail.feed(rest))
            if not footer.is_added:
                draft.show_as_said()
        settle_relayed(draft, terminal=tail.terminal, facts=facts)
        self._send(b"", now=True)
        return tail.held()

    async def _judge_relayed(self, hold: CallHold, passed: list[bytes], tail: TailHold) -> bytes | None:
        """Judge the calls of a stream; None if they comply, else the tail of the answer that is made instead."""
        draft, wire = self._draft, self._draft.incoming.wire
        calls = hold.calls
        ruling = await self._judge(calls, draft.said)
        if not ruling.broken:
            return None
        shown = b"".join(passed)
        if draft.footer is None:
            draft.show(shown)
        self._send(tail.held())
        completion = _read(wire, draft.said, stream=True)
        self._keep(self._sent(), draft.said, True, completion, calls, ruling)
        writer = wire_format(wire).resumed_writer(self._request(), shown)
        return await self._insist_streaming(writer)

    async def _relay_whole(self, opened: Relayed) -> bytes:
        draft, wire = self._draft, self._draft.incoming.wire
        body = draft.said
        calls = whole_calls(wire, body) if has_call_mark(wire, body) else []
        ruling = await self._judge(calls, body) if calls else Ruling()
        if not ruling.broken:
            return await relay(draft, opened, self._client, self._limits)
        draft.streamed = False
        self._headers = raw_headers(opened.headers)
        self._keep(self._sent(), body, False, wire_format(wire).parse_answer(body), calls, ruling)
        return await self._insist_whole(self._request())

    # The answer arrives in deltas, from a provider of another wire or from a model.

    async def _render(self, opened: Translated | Generated) -> bytes:
        draft, request = self._draft, opened.request
        began, sent = time.perf_counter(), self._sent()
        deltas = self._deltas(opened)
        draft.status = 200
        if not request.stream:
            completion = collect([delta async for delta in deltas])
            calls = _calls(completion)
            ruling = await self._judge(calls, None, _text(completion)) if calls else Ruling()
            if not ruling.broken:
                return self._finish_whole(completion, request)
            self._keep_rendered(opened, sent, completion, calls, ruling, began)
            return await self._insist_whole(request)
        self._headers = [*SSE_HEADERS]
        writer = wire_format(draft.incoming.wire).writer(request)
        heard = _Heard()
        await self._hear(deltas, writer, heard, is_first=True)
        if isinstance(opened, Translated):
            await linger(opened.reply.chunks())
        completion = collect(heard.all)
        calls = _calls(completion)
        ruling = await self._judge(calls, None, _text(completion)) if calls else Ruling()
        if not ruling.broken:
            return await self._finish_stream(writer, heard.waiting, _end(completion))
        self._keep_rendered(opened, sent, completion, calls, ruling, began)
        return await self._insist_streaming(writer)

    def _deltas(self, opened: Opened) -> AsyncIterator[Delta]:
        draft = self._draft
        match opened:
            case Generated():
                return opened.deltas
            case Translated() if opened.completion is not None:
                return each(deltas_of(opened.completion))
            case Relayed() if opened.facts is not None:
                return each(deltas_of(wire_format(draft.provider_wire).parse_answer(draft.said)))
            case Translated() | Relayed():
                return provider_deltas(draft, opened.opening or b"", opened.reply.chunks(), self._limits)

    async def _hear(self, deltas: AsyncIterator[Delta], writer: StreamWriter, heard: _Heard, *, is_first: bool) -> None:
        """Pass text on as it comes; what must wait is kept in its order. Raises UpstreamError for an answer that breaks off."""
        draft, is_unordered = self._draft, self._draft.incoming.wire is _CHAT
        has_broken = is_first
        async for delta in deltas:
            heard.all.append(delta)
            match delta:
                case Begin():
                    if is_first:
                        draft.answer_id, draft.model = delta.id, delta.model or draft.model
                        await self._say(writer, delta, now=False)
                case End():
                    heard.end = delta
                    return
                case Failed():
                    raise UpstreamError(delta.message, code=delta.code)
                case ToolCallDelta():
                    heard.waiting.append(delta)
                case TextDelta() | ReasoningDelta() | OpaqueDelta():
                    if heard.waiting and not (is_unordered and isinstance(delta, TextDelta)):
                        heard.waiting.append(delta)
                        continue
                    if isinstance(delta, TextDelta) and delta.text:
                        if not has_broken and self._has_text:
                            await self._say(writer, TextDelta(_BREAK))
                        has_broken = self._has_text = True
                    await self._say(writer, delta)
        raise UpstreamError(f"provider {draft.provider} ended its stream before the answer was whole")

    # Asking again.

    async def _insist_streaming(self, writer: StreamWriter) -> bytes:
        heard = _Heard()

        async def hear(deltas: AsyncIterator[Delta]) -> None:
            await self._hear(deltas, writer, heard, is_first=False)

        while (body := self._next_body()) is not None:
            heard = _Heard()
            try:
                await self._attempt(body, hear)
            except (UpstreamError, WireError) as error:
                return await self._stop_stream(writer, str(error))
            if not self._made[-1].ruling.broken:
                self._settle(HoldEnd.COMPLIED, _shown(self._made[-1].calls))
                if self._is_empty():
                    await self._say(writer, TextDelta(self._silence_text()))
                return await self._finish_stream(writer, heard.waiting, _end(self._made[-1].completion, self._usage()))
        if all(one.rule.warns for one in self._made[-1].ruling.broken):
            heard = heard if heard.waiting else _Heard(_call_deltas(self._made[-1].completion))
            self._settle(HoldEnd.WARNED, _shown(self._made[-1].calls))
            await self._say(writer, TextDelta((_BREAK if self._has_text else "") + self._warning() + _BREAK))
            return await self._finish_stream(writer, heard.waiting, _end(self._made[-1].completion, self._usage()))
        return await self._stop_stream(writer, "")

    async def _stop_stream(self, writer: StreamWriter, trouble: str) -> bytes:
        text = self._stop_text(trouble)
        self._settle(HoldEnd.STOPPED, (), text)
        await self._say(writer, TextDelta((_BREAK if self._has_text else "") + text))
        return await self._finish_stream(writer, [], End(Finish.STOP, self._usage()))

    async def _insist_whole(self, request: ChatRequest) -> bytes:
        while (body := self._next_body()) is not None:
            try:
                await self._attempt(body, _drain)
            except (UpstreamError, WireError) as error:
                return self._stop_whole(request, str(error))
            last = self._made[-1]
            if not last.ruling.broken:
                self._settle(HoldEnd.COMPLIED, _shown(last.calls))
                said = [Text(self._silence_text())] if self._is_empty() else last.completion.parts
                return self._finish_whole(self._merged(said, last.completion.finish), request)
        last = self._made[-1]
        if all(one.rule.warns for one in last.ruling.broken):
            self._settle(HoldEnd.WARNED, _shown(last.calls))
            words = [part for part in last.completion.parts if not isinstance(part, ToolCall)]
            calls = [part for part in last.completion.parts if isinstance(part, ToolCall)]
            return self._finish_whole(
                self._merged([*words, Text(self._warning()), *calls], last.completion.finish, is_last_said=True), request
            )
        return self._stop_whole(request, "")

    def _stop_whole(self, request: ChatRequest, trouble: str) -> bytes:
        text = self._stop_text(trouble)
        self._settle(HoldEnd.STOPPED, (), text)
        return self._finish_whole(self._merged([Text(text)], Finish.STOP, is_last_said=False), request)

    def _merged(self, last: Sequence[Part], finish: Finish | None, *, is_last_said: bool = True) -> Completion:
        """One answer: what all attempts said in words, then `last`, which stands for the last attempt if `is_last_said`."""
        first, earlier = self._made[0].completion, self._made[:-1] if is_last_said else self._made
        said = [part for made in earlier for part in made.completion.parts if not isinstance(part, ToolCall)]
        return Completion(first.id, first.model, (*said, *last), finish, self._usage())

    def _next_body(self) -> bytes | None:
        """What the provider is asked next; None if it is not asked again."""
        if len(self._made) > MOST_RETRIES or not all(self._is_exact(made) for made in self._made):
            return None
        return append_items(self._draft.provider_wire, self._made[0].sent, self._sequence(len(self._made)))

    def _is_exact(self, made: _Made) -> bool:
        attempt = wire_format(self._draft.provider_wire).read_attempt(made.said, stream=made.stream)
        if not attempt.is_exact or len(attempt.calls) != len(made.calls):
            return False
        try:
            items = parse_object(self._made[0].sent).get(list_key(self._draft.provider_wire))
        except WireError:
            return False
        last = items[-1] if isinstance(items, list) and items else None
        # An answer that goes on with a message of the client's cannot be told apart from it.
        return not (isinstance(last, dict) and last.get("role") == "assistant" and self._draft.provider_wire is not Wire.RESPONSES)

    def _sequence(self, refused: int) -> list[Json]:
        """The attempts as the provider made them, the first `refused` of them with the results that refuse their calls."""
        wire = wire_format(self._draft.provider_wire)
        found: list[Json] = []
        for place, made in enumerate(self._made):
            attempt = wire.read_attempt(made.said, stream=made.stream)
            found += attempt.messages
            if place < refused and attempt.calls:
                found += wire.call_results(attempt.calls, self._results(made))
        return found

    def _results(self, made: _Made) -> list[str]:
        texts = []
        for place in range(len(made.calls)):
            rules = [one.rule for one in made.ruling.broken if place in one.calls]
            texts.append(self._refusal(rules) if rules else _SIBLING)
        return texts

    def _refusal(self, rules: Sequence[HeldRule]) -> str:
        named = "; ".join(f"`{rule.name}`: {_short(rule.text)}" for rule in rules)
        what = "a rule" if len(rules) == 1 else "rules"
        return (
            f"Refused: this call breaks {what} of the person you work for and was not run. {named.rstrip('.')}. "
            "Send calls that follow the rule, or say in words why you cannot."
        )

    async def _attempt(self, body: bytes, hear: Callable[[AsyncIterator[Delta]], Awaitable[None]]) -> None:
        """Ask the same provider again and judge what it says. Raises UpstreamError."""
        draft, began = self._draft, time.perf_counter()
        draft.unsay()
        heard: list[Delta] = []

        async def kept(deltas: AsyncIterator[Delta]) -> AsyncIterator[Delta]:
            async for delta in deltas:
                heard.append(delta)
                yield delta

        opened = await self._opener.again(draft, body)
        try:
            await hear(kept(self._deltas(opened)))
            if isinstance(opened, Relayed | Translated) and opened.opening is not None:
                await linger(opened.reply.chunks())
        finally:
            await opened.aclose()
        completion = collect(heard)
        calls = _calls(completion)
        ruling = await self._judge(calls, None, _text(completion)) if calls else Ruling()
        if isinstance(opened, Generated):
            self._keep_rendered(opened, body, completion, calls, ruling, began)
        else:
            self._keep(body, draft.said, opened.opening is not None, completion, calls, ruling, began)

    # What is kept, and what is told.

    async def _judge(self, calls: Sequence[HeldCall], said: bytes | None, text: str = "") -> Ruling:
        programs = any(isinstance(rule.check, ProgramCheck) for rule in self._rules)
        if programs and said is not None:
            text = _text(_read(self._draft.incoming.wire, said, stream=self._draft.streamed))
        ruling = await self._enforcer.judge.judge(self._rules, calls, text, self._conversation() if programs else None)
        for rule, reason in ruling.failed:
            log.warning("check_failed rule=%s turn=%s reason=%s", rule.name, self._draft.id, reason)
        self.failed += ruling.failed
        return ruling

    def _conversation(self) -> Conversation:
        messages: tuple[Message, ...] = ()
        try:
            messages = wire_format(self._draft.incoming.wire).parse_request(parse_object(self._draft.incoming.body)).messages
        except WireError as error:
            log.debug("conversation_unread turn=%s error=%s", self._draft.id, error)
        return Conversation(messages, self._draft.origin.task)

    def _sent(self) -> bytes:
        draft = self._draft
        return draft.translated if draft.translated is not None else apply_splices(draft.incoming.body, draft.splices)

    def _request(self) -> ChatRequest:
        """The request as a writer needs it, also where all of it cannot be read."""
        incoming = self._draft.incoming
        try:
            return wire_format(incoming.wire).parse_request(parse_object(incoming.body))
        except WireError:
            options = incoming.json.get("stream_options")
            wants = isinstance(options, dict) and options.get("include_usage") is True
            return ChatRequest(incoming.wire, incoming.model, (), stream=incoming.stream, include_usage=wants)

    def _keep(
        self,
        sent: bytes,
        said: bytes,
        stream: bool,
        completion: Completion,
        calls: Sequence[HeldCall],
        ruling: Ruling,
        began: float | None = None,
    ) -> None:
        start = self._draft.incoming.began if began is None else began
        self._made.append(_Made(sent, said, stream, completion, calls, ruling, start))

    def _keep_rendered(
        self,
        opened: Translated | Generated,
        sent: bytes,
        completion: Completion,
        calls: Sequence[HeldCall],
        ruling: Ruling,
        began: float,
    ) -> None:
        if isinstance(opened, Translated):
            self._keep(sent, self._draft.said, opened.opening is not None, completion, calls, ruling, began)
            return
        # A model has no bytes of its own: the answer is told to it as the client's wire would.
        said = wire_format(self._draft.provider_wire).render_answer(completion, opened.request)
        self._keep(sent, said, False, completion, calls, ruling, began)

    def _usage(self) -> Usage | None:
        counts = [made.completion.usage for made in self._made if made.completion.usage is not None]
        if not counts:
            return None
        return Usage(
            sum(one.input_tokens for one in counts),
            sum(one.output_tokens for one in counts),
            sum(one.cached_tokens for one in counts),
            sum(one.cache_write_tokens for one in counts),
            sum(one.reasoning_tokens for one in counts),
        )

    def _rule_names(self) -> tuple[SkillName, ...]:
        return tuple(dict.fromkeys(one.rule.name for made in self._made for one in made.ruling.broken))

    def _settle(self, end: HoldEnd, shown: Sequence[ShownCall], text: str = "") -> None:
        """Write down what was done: for the ledger, for later requests, and for the response's head."""
        draft = self._draft
        names = self._rule_names()
        draft.enforced = names
        broken = {name: [one for made in self._made for one in made.ruling.broken if one.rule.name == name] for name in names}
        rules = tuple(EnforcedRule(name, len(found), end, found[-1].reason) for name, found in broken.items())
        draft.enforcement = Enforcement(rules, tuple(self._attempts()), self._true_answer(end, shown, text))

    def _attempts(self) -> Iterator[Turn]:
        draft = self._draft
        base = draft.turn()
        for made in self._made:
            completion = made.completion
            yield replace(
                base,
                id=new_turn_id(),
                kind=TurnKind.SIDE,
                kind_reason=ATTEMPT,
                wire=draft.provider_wire,
                stream=made.stream,
                status=200,
                end=TurnEnd.COMPLETED,
                error=None,
                exchange=Exchange(made.sent, said=made.said),
                finish=completion.finish,
                usage=completion.usage,
                tokens=completion.tokens,
                times=replace(base.times, duration_s=time.perf_counter() - made.began),
                retry_of=None,
                placements=(),
                draws=(),
                enforcement=None,
            )

    def _true_answer(self, end: HoldEnd, shown: Sequence[ShownCall], text: str) -> TrueAnswer | None:
        draft = self._draft
        if not all(self._is_exact(made) for made in self._made):
            return None
        wire = wire_format(draft.provider_wire)
        is_stopped = end is HoldEnd.STOPPED
        messages = self._sequence(len(self._made) if is_stopped else len(self._made) - 1)
        last = wire.read_attempt(self._made[-1].said, stream=self._made[-1].stream)
        rest: list[Json] = []
        if is_stopped:
            messages.append(wire.own_words(text))
            rest = [*wire.call_results(last.calls, self._results(self._made[-1])), wire.own_words(text)]
        return TrueAnswer(
            wire=draft.provider_wire,
            calls=tuple(shown),
            mark="" if shown else str(draft.id) if is_stopped else self._all_text(),
            answer_id=self._made[0].completion.id,
            last_id=last.id,
            messages=encode_json(messages),
            rest=encode_json(rest),
        )

    def _all_text(self) -> str:
        return plain_text("".join(_text(made.completion) for made in self._made))

    def _stop_text(self, trouble: str) -> str:
        names = self._rule_names()
        rules = {one.rule.name: one.rule for made in self._made for one in made.ruling.broken}
        named = "; ".join(f"`{name}` ({_short(rules[name].text)})" for name in names)
        times = len(self._made) - 1
        again = {0: "", 1: ", also after the model was asked again"}.get(times, ", also after the model was asked again twice")
        if trouble:
            again = f", and the model could not be asked again: {trouble}"
        return (
            f"MetaClaw stopped a tool call, because it breaks the rule {named}{again}. Nothing was run. "
            f"To lift the rule: `metaclaw rules edit {names[0]} --enforce remind`, or `metaclaw enforce off` for all rules. "
            f"What happened: `metaclaw why {self._draft.id}`."
        )

    def _is_empty(self) -> bool:
        """Whether nothing is left for the client: the last attempt calls nothing, and none said anything."""
        return not self._made[-1].calls and not self._all_text()

    def _silence_text(self) -> str:
        """What the client gets instead of an empty message, which providers refuse in later requests."""
        named = ", ".join(f"`{name}`" for name in self._rule_names())
        return (
            f"MetaClaw stopped a tool call, because it breaks the rule {named}, and the model had nothing else to say. "
            f"Nothing was run. What happened: `metaclaw why {self._draft.id}`."
        )

    def _warning(self) -> str:
        last = self._made[-1].ruling.broken
        named = "; ".join(f"`{one.rule.name}` ({_short(one.rule.text)})" for one in last)
        return f"MetaClaw warning: the next tool call breaks the rule {named}."

    # To the client.

    def _send(self, data: bytes, *, now: bool = False) -> bool:
        """Send events; until there are words, or it is known whether a rule held, they wait so that the head can tell."""
        if self._client.started:
            return self._client.send(data) if data else True
        if data:
            self._waiting.append(data)
        if now:
            self._start()
        elif self._timer is None and data:
            self._timer = asyncio.get_running_loop().call_later(_HEAD_PATIENCE_S, self._start)
        return True

    def _start(self) -> None:
        if not self._client.started:
            self._client.start(self._status, self._headers + self._draft.headers())
            if self._waiting:
                self._client.send(b"".join(self._waiting))

    async def _say(self, writer: StreamWriter, delta: Delta, *, now: bool = True) -> None:
        data = writer.write(delta)
        if self._draft.footer is not None:
            data = self._draft.footer.feed(data)
        self._draft.show(data)
        if not self._send(data, now=now and bool(data)):
            await self._client.drain()

    async def _finish_stream(self, writer: StreamWriter, waiting: Sequence[Delta], end: End) -> bytes:
        """Release what waited, and make the answer whole."""
        draft = self._draft
        for delta in waiting:
            await self._say(writer, delta)
        tail = writer.write(end)
        if draft.footer is not None:
            tail = draft.footer.feed(tail)
        draft.show(tail)
        self._end(end.finish, end.usage, end.tokens)
        self._send(b"", now=True)
        return tail

    def _finish_whole(self, completion: Completion, request: ChatRequest) -> bytes:
        draft = self._draft
        body = wire_format(draft.incoming.wire).render_answer(completion, request)
        if draft.footer is not None:
            body = draft.footer.whole(body)
        draft.show(body)
        draft.answer_id, draft.model = completion.id, completion.model or draft.model
        self._end(completion.finish, completion.usage, completion.tokens)
        headers = self._headers or [*JSON_HEADERS]
        self._client.defer(200, headers + draft.headers())
        return body

    def _end(self, finish: Finish | None, usage: Usage | None, tokens: SampledTokens | None) -> None:
        draft = self._draft
        draft.status = 200
        draft.finish, draft.usage = finish, usage
        draft.tokens = tokens if draft.enforcement is None else None
        draft.end = TurnEnd.COMPLETED
        if self._made:
            draft.unsay()
            draft.say(self._made[0].said)
            draft.answer_id = draft.answer_id or self._made[0].completion.id
            draft.model = self._made[0].completion.model or draft.model


async def _drain(deltas: AsyncIterator[Delta]) -> None:
    async for _ in deltas:
        pass


def _read(wire: Wire, said: bytes, *, stream: bool) -> Completion:
    format_ = wire_format(wire)
    if not stream:
        return format_.parse_answer(said)
    reader = format_.reader()
    return collect([*reader.feed(said), *reader.close()])


def _calls(completion: Completion) -> list[HeldCall]:
    return [HeldCall(part.id, part.name, part.arguments) for part in completion.parts if isinstance(part, ToolCall)]


def _shown(calls: Sequence[HeldCall]) -> tuple[ShownCall, ...]:
    return tuple(ShownCall(call.id, call.arguments) for call in calls)


def _text(completion: Completion) -> str:
    return "\n".join(part.text for part in completion.parts if isinstance(part, Text))


def _end(completion: Completion, usage: Usage | None = None) -> End:
    return End(completion.finish or Finish.STOP, usage or completion.usage, completion.stop_sequence, completion.tokens)


def _call_deltas(completion: Completion) -> list[Delta]:
    return [delta for delta in deltas_of(completion) if isinstance(delta, ToolCallDelta)]


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_RULE_CHARS else line[: _MOST_RULE_CHARS - 1] + "…"
