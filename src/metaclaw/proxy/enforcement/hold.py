"""Serve one answer whose tool calls are held back until the rules have been checked, or which may
call tools of our own.

    first answer                 ┌──────────── ask the same provider again ◄───┐ (also if only
                                                                                 tools of ours
                                                                                 are called)
         │                       ▼                                             │ yes
         └─────────────────► received ──► judged ── a rule is broken ──► may it be asked again?
                                            │                                  │ no, or it fails
              the calls comply: first time? │                                  ▼
                     ┌────── yes ───────────┴───── no ─────┐       do all broken rules only warn?
                     ▼                                     ▼           │ yes             │ no
                 released                              complied        ▼                 ▼
                                                                     warned           stopped

- released: the answer as it is, in the provider's own bytes if they are in the client's wire;
- complied: the texts of all attempts, then the calls of the last one;
- warned: the same, with a warning before the calls;
- stopped: the texts of all attempts, then a text in place of the calls.

Text is sent as it arrives (`replies`). What was tried, and how it is recorded, is in `attempts`;
`CallJudge` finds the rules that calls break."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from metaclaw.domain.chat import ChatRequest, Completion, End, Finish
from metaclaw.domain.check import Conversation, ProgramCheck
from metaclaw.domain.turn import HoldEnd, apply_splices
from metaclaw.errors import UpstreamError, WireError
from metaclaw.proxy.dispatch import Opener
from metaclaw.proxy.enforcement.attempts import (
    Attempt,
    Attempts,
    calls_of,
    parts_without,
    silence_text,
    stop_text,
    text_of,
    warning_text,
)
from metaclaw.proxy.enforcement.call_judge import CallJudge, Ruling
from metaclaw.proxy.enforcement.replies import Reply, first_answer, receive
from metaclaw.proxy.http.body import parse_object
from metaclaw.proxy.http.client import Client
from metaclaw.proxy.response import (
    GeneratedAnswer,
    OpenedAnswer,
    RelayedAnswer,
    Translation,
    TurnBuilder,
    send,
)
from metaclaw.wires import HeldCall, wire_format

log = logging.getLogger(__name__)


class Hold:
    """Serves one answer under held rules."""

    def __init__(
        self,
        builder: TurnBuilder,
        client: Client,
        opener: Opener,
        judge: CallJudge,
    ) -> None:
        self._builder = builder
        self._client = client
        self._opener = opener
        self._checks = judge
        self._rules = builder.held
        self._attempts = Attempts(builder)

    async def answer(self, opened: OpenedAnswer) -> bytes:
        """Send the answer except its tail, and return the tail."""
        builder = self._builder
        first = first_answer(builder, opened, self._client)
        if first is None:
            return await send(builder, opened, self._client)
        try:
            calls = await first.receive()
            own = self._look_up(calls)
            ruling = await self._judge(calls, own, first.completion)
            if not ruling.held and not own:
                return await first.release()
            sent = builder.translated
            if sent is None:
                sent = apply_splices(builder.incoming.body, builder.splices)
            began = builder.incoming.began
            self._add(opened, sent, first.completion(), calls, own, ruling, began)
            first.resume(self._request())
            return await self._retry(first.reply)
        finally:
            first.reply.close()

    async def _retry(self, reply: Reply) -> bytes:
        """Ask the provider again until its calls comply or the attempts are used up."""
        attempts, builder = self._attempts, self._builder
        while attempts.last.ruling.held or attempts.last.is_lookup:
            body = attempts.next_body()
            if body is None:
                break
            builder.enforced = attempts.names  # before the head is sent with the next text
            try:
                await self._ask_again(body, reply)
            except (UpstreamError, WireError) as error:
                if not builder.enforced:
                    raise
                return await self._finish(reply, HoldEnd.STOPPED, str(error))
        held = attempts.last.ruling.held
        if not held:
            return await self._finish(reply, HoldEnd.COMPLIED)
        may_pass = all(one.rule.warns for one in held)
        return await self._finish(reply, HoldEnd.WARNED if may_pass else HoldEnd.STOPPED)

    async def _ask_again(self, body: bytes, reply: Reply) -> None:
        began = time.perf_counter()
        self._builder.drop_provider_bytes()
        opened = await self._opener.again(self._builder, body)
        try:
            completion = await receive(self._builder, opened, reply)
        finally:
            await opened.aclose()
        calls = calls_of(completion)
        own = self._look_up(calls)
        ruling = await self._judge(calls, own, lambda: completion)
        self._add(opened, body, completion, calls, own, ruling, began)

    def _look_up(self, calls: Sequence[HeldCall]) -> dict[int, str]:
        """Our results of the calls of our own tools, by index."""
        tools, found = self._builder.skill_tools, dict[int, str]()
        for place, call in enumerate(calls):
            if call.name in tools.names:
                found[place], skill = tools.answer(call)
                if skill is not None:
                    self._builder.skills_read += (skill,)
        return found

    async def _judge(
        self,
        calls: Sequence[HeldCall],
        own: Mapping[int, str],
        completion: Callable[[], Completion],
    ) -> Ruling:
        """Find the rules that the client's calls break. Only checks that are programs need more
        than the calls.
        """
        places = [place for place in range(len(calls)) if place not in own]
        if not places or not self._rules:
            return Ruling()
        builder, text, conversation = self._builder, "", Conversation()
        if any(isinstance(rule.check, ProgramCheck) for rule in self._rules):
            text = text_of(completion())
            conversation = Conversation(self._request().messages, builder.origin.task)
        made = [calls[place] for place in places]
        ruling = await self._checks.judge(self._rules, made, text, conversation)
        if own:
            held = [
                one._replace(calls=frozenset(places[index] for index in one.calls))
                for one in ruling.held
            ]
            ruling = ruling._replace(held=tuple(held))
        unchecked = [(one.rule, one.reason) for one in ruling.held if not one.is_checked]
        for rule, reason in (*ruling.passed, *unchecked):
            log.warning("check_failed rule=%s turn=%s reason=%s", rule.name, builder.id, reason)
        builder.failed_checks += ruling.passed
        return ruling

    def _add(
        self,
        opened: OpenedAnswer,
        sent: bytes,
        completion: Completion,
        calls: Sequence[HeldCall],
        own: Mapping[int, str],
        ruling: Ruling,
        began: float,
    ) -> None:
        """Keep an attempt. A model in this process sends no bytes: its answer is kept as rendered in
        the client's wire."""
        wire = wire_format(self._builder.provider_wire)
        said, is_stream = self._builder.provider_bytes, False
        match opened:
            case GeneratedAnswer(translation=None):
                said = wire.render_answer(completion, opened.request)
            case GeneratedAnswer(translation=Translation(is_stream=is_stream)):
                pass
            case RelayedAnswer():
                is_stream = opened.opening is not None
            case _:
                pass
        messages = wire.read_attempt(said, is_stream)
        self._attempts.made.append(
            Attempt(
                sent,
                said,
                is_stream,
                completion,
                calls,
                own,
                parts_without(completion, own),
                ruling,
                began,
                messages,
            )
        )

    async def _finish(self, reply: Reply, end: HoldEnd, trouble: str = "") -> bytes:
        """End the answer and record the rules that held: for the ledger, for later requests, and
        for the response's header fields. `trouble` says why the provider could not be asked again.
        """
        attempts, builder = self._attempts, self._builder
        first, last = attempts.made[0], attempts.last.completion
        text = self._text(end, trouble)
        builder.enforced = attempts.names
        builder.enforcement = attempts.enforcement(builder.turn(), end, text, trouble)
        finish = last.finish or Finish.STOP
        is_silent = not attempts.last.shown_calls and finish is Finish.TOOL_CALLS
        if end is HoldEnd.STOPPED or is_silent:
            final = End(Finish.STOP, attempts.usage())
        else:
            final = End(finish, attempts.usage(), last.stop_sequence)
        tail = await reply.finish(attempts.made, text, final, has_calls=end is not HoldEnd.STOPPED)
        builder.drop_provider_bytes()
        builder.add_provider_bytes(first.said)
        if attempts.names:
            # The prompt may train, with what was refused at it.
            builder.tokens = first.completion.tokens
        builder.answer_id = builder.answer_id or first.completion.id
        builder.model = first.completion.model or builder.model
        return tail

    def _text(self, end: HoldEnd, trouble: str) -> str:
        """The text that we add to the answer."""
        attempts, turn = self._attempts, self._builder.id
        match end:
            case HoldEnd.STOPPED:
                asked_again = len(attempts.made) - 1
                return stop_text(attempts.held_rules(), turn, asked_again, trouble)
            case HoldEnd.WARNED:
                return warning_text(attempts.last.ruling.held)
            case HoldEnd.COMPLIED:
                return silence_text(attempts.held_rules(), turn) if attempts.is_empty() else ""

    def _request(self) -> ChatRequest:
        """The parsed request; if it cannot be parsed, only the fields that a writer needs."""
        incoming = self._builder.incoming
        try:
            return wire_format(incoming.wire).parse_request(parse_object(incoming.body))
        except WireError:
            options = incoming.json.get("stream_options")
            wants = isinstance(options, dict) and options.get("include_usage") is True
            return ChatRequest(
                incoming.wire, incoming.model, (), stream=incoming.stream, include_usage=wants
            )
