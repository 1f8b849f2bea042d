"""Find the rules that hold a request's tool calls, and put true answers back into its history.

A client whose calls were held keeps a message that no provider wrote. Providers reject histories
with changed reasoning, so every later request gets the true sequence in place of that message, also
after a restart and when enforcement is off. The message is recognised by the ids of its calls,
among the answers of its session; if the session is unknown, among the answers of the speaker."""

import logging
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import date
from typing import Final, Protocol, TypeAlias

import anyio
import anyio.to_thread
import msgspec

from metaclaw.clock import local_today
from metaclaw.domain.chat import Json, Wire
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.status import KEEP_RULES
from metaclaw.domain.turn import Origin, Scope, TrueAnswer, Turn
from metaclaw.errors import StoreError, WireError
from metaclaw.proxy.enforcement.call_judge import CallJudge
from metaclaw.proxy.enforcement.held_rules import HeldRule, held_rule, keep_rules
from metaclaw.proxy.http.body import (
    JsonDocument,
    UnsafeBytesError,
    item_spans,
    parse_object,
    raw_items,
)
from metaclaw.proxy.http.client import Incoming
from metaclaw.proxy.response import TurnBuilder
from metaclaw.skills import LibraryView, Teams
from metaclaw.wires import TURN_MARK, encode_json, plain_id, wire_format

log = logging.getLogger(__name__)

_KEPT: Final = 256
_MOST_SESSIONS: Final = 10_000
_ID: Final = re.compile(
    rb'"(?:id|call_id|tool_call_id|tool_use_id|previous_response_id)"\s*:\s*"([^"\\]{1,200})"'
)
_MARK: Final = re.compile(rb"\bt_[0-9A-Za-z_-]{6,64}")
_decode = msgspec.json.Decoder().decode


class HeldRules:
    """Finds the rules that hold for a speaker."""

    def __init__(
        self,
        view: Callable[[], LibraryView],
        teams: Teams | None = None,
        today: Callable[[], date] = local_today,
        *,
        port: int,
    ) -> None:
        """`port` is the one this program listens on."""
        self._view = view
        self._port = port
        self._teams = teams
        self._today = today
        self._seen: LibraryView | None = None
        self._held: dict[SkillName, HeldRule] = {}

    def for_speaker(self, scope: Scope, placed: Sequence[SkillName]) -> tuple[HeldRule, ...]:
        """The held rules for this speaker: the rules for every task, and those of the others that
        are placed in the prompt.
        """
        view = self._view()
        if view is not self._seen:
            self._seen = view
            self._held = {
                rule.name: rule for skill in view.skills if (rule := held_rule(skill)) is not None
            }
        if not self._held:
            return ()
        speaker = view.in_scope(scope, self._teams, self._today())
        held = [self._held.get(skill.name) for skill in (*speaker.rules, *speaker.always)]
        found = {rule.name: rule for rule in held if rule is not None and rule.is_always}
        found |= {name: self._held[name] for name in placed if name in self._held}
        if not found:
            return ()
        holds_on_error = any(rule.holds_on_error for rule in found.values())
        return (*found.values(), keep_rules(self._port, holds_on_error=holds_on_error))


Stored: TypeAlias = tuple[TurnId, SessionId, str | None, TrueAnswer]
"""A true answer in the ledger, with its turn, session and user."""
StoredAnswers: TypeAlias = Sequence[Stored]


class AnswerStore(Protocol):
    """The store of true answers. Blocks; raises StoreError."""

    def newest(self, session: SessionId | None = None) -> Iterable[Stored]: ...
    def read(self, turn: TurnId) -> TrueAnswer | None: ...


class TrueAnswers:
    """The true answers for later requests. Their ids are in memory; their messages are read from
    the store when needed.
    """

    def __init__(self, store: AnswerStore) -> None:
        self._store = store
        self._of_session: dict[SessionId, list[TurnId]] = {}
        self._of_id: dict[tuple[str | None, str], TurnId] = {}
        self._needles: dict[TurnId, tuple[bytes, ...]] = {}
        self._kept: OrderedDict[TurnId, TrueAnswer] = OrderedDict()

    def stored(self, session: SessionId | None = None) -> StoredAnswers:
        """The true answers in the ledger, of this session if given, oldest first. Blocks; raises
        StoreError.
        """
        return list(self._store.newest(session))[::-1]

    def restore(self, stored: StoredAnswers) -> None:
        """Index true answers of the ledger."""
        for turn, session, user, answer in stored:
            if turn not in self._needles:
                self._index(turn, session, user, answer)

    def add(self, turn: TurnId, session: SessionId, user: str | None, answer: TrueAnswer) -> None:
        """Keep the true answer of a turn whose client was shown a different one."""
        self._index(turn, session, user, answer)
        self._keep(turn, answer)

    def _keep(self, turn: TurnId, answer: TrueAnswer) -> None:
        self._kept[turn] = answer
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)

    def forget(self, sessions: Iterable[SessionId]) -> None:
        """Forget what belongs to these sessions."""
        gone = {turn for session in sessions for turn in self._of_session.pop(session, ())}
        if gone:
            self._of_id = {key: turn for key, turn in self._of_id.items() if turn not in gone}
        for turn in gone:
            self._needles.pop(turn, None)
            self._kept.pop(turn, None)

    def _index(
        self, turn: TurnId, session: SessionId, user: str | None, answer: TrueAnswer
    ) -> None:
        self._of_session.setdefault(session, []).append(turn)
        ids = [call.id for call in answer.calls] or (
            [answer.mark] if answer.mark.startswith(TURN_MARK) else []
        )
        known = [one for one in (*ids, answer.answer_id) if one]
        if ids:
            self._needles[turn] = tuple(
                {needle.encode() for one in known for needle in (one, plain_id(one))}
            )
        else:
            # It has only its text, which cannot be searched for in bytes: try it with every request
            # of its session.
            self._needles[turn] = (b"",)
            self._of_id[user, turn] = turn
        self._of_id |= {(user, plain_id(one)): turn for one in known}

    def concerns(self, incoming: Incoming, origin: Origin) -> list[TurnId]:
        """The turns whose answers may be in this request's history."""
        if not self._of_id:
            return []
        body, user = incoming.body, origin.scope.user
        previous = incoming.json.get(wire_format(incoming.wire).previous_key)
        kept = self._of_id.get((user, plain_id(previous))) if isinstance(previous, str) else None
        if origin.session not in self._of_session:
            self._of_session[origin.session] = self._look_through(body, user)
        turns = [
            turn
            for turn in self._of_session[origin.session]
            if turn != kept and any(needle in body for needle in self._needles.get(turn, ()))
        ]
        return turns if kept is None else [*turns, kept]

    def _look_through(self, body: bytes, user: str | None) -> list[TurnId]:
        """The speaker's true answers whose ids are in the history of a session that is new to
        us.
        """
        if len(self._of_session) > _MOST_SESSIONS:
            self._of_session = {
                session: turns for session, turns in self._of_session.items() if turns
            }
        ids = (one.decode("latin-1") for pattern in (_ID, _MARK) for one in pattern.findall(body))
        found = (self._of_id.get((user, plain_id(one))) for one in ids)
        return list(dict.fromkeys(turn for turn in found if turn is not None))

    async def read(self, turns: Sequence[TurnId]) -> tuple[TrueAnswer, ...]:
        """The true answers of these turns. An answer that cannot be read is left out and logged."""
        found = []
        for turn in turns:
            answer = self._kept.get(turn)
            if answer is None:
                try:
                    answer = await anyio.to_thread.run_sync(self._store.read, turn)
                except StoreError as error:
                    log.warning("true_answer_unread turn=%s error=%s", turn, error)
                if answer is not None:
                    self._keep(turn, answer)
            if answer is not None:
                found.append(answer)
        return tuple(found)


OPT_OUT: Final = "x-metaclaw-enforce"


class Enforcer:
    """Decides which rules hold a request, restores true answers in histories, and announces held
    calls.
    """

    def __init__(
        self,
        rules: HeldRules,
        answers: TrueAnswers,
        judge: CallJudge,
        announce: Callable[[str, dict[str, Json]], Awaitable[bool]],
        *,
        may_opt_out: bool = False,
    ) -> None:
        self.answers = answers
        self.judge = judge
        self.is_on = True
        self._rules = rules
        self._announce = announce
        self._may_opt_out = may_opt_out

    def hold(self, builder: TurnBuilder) -> None:
        """Set the rules that hold the answer of a request. None can, if the provider stores the
        conversation or answers in the background.
        """
        if not self.is_on:
            return
        incoming = builder.incoming
        rules = self._rules.for_speaker(builder.origin.scope, builder.stamp.skills)
        if not rules or (self._may_opt_out and incoming.headers.get(OPT_OUT, "").lower() == "off"):
            return
        if wire_format(incoming.wire).is_kept_by_provider(incoming.json):
            builder.not_held = rules
        else:
            builder.held = rules
            builder.require_whole()

    async def recorded(
        self, turn: Turn, failed: Sequence[tuple[HeldRule, str]], not_held: Sequence[HeldRule] = ()
    ) -> None:
        """Announce held calls, failed checks and rules that could not hold. Called once the turn is
        recorded.
        """
        found = turn.enforcement
        about: dict[str, Json] = {"turn": turn.id, "session": turn.session}
        if not_held:
            names = [rule.name for rule in not_held if rule.name != KEEP_RULES]
            why = "the provider keeps the conversation, or answers in the background"
            log.warning("rules_not_held turn=%s rules=%s reason=%s", turn.id, ",".join(names), why)
            await self._announce(
                "rules_not_held", {"rules": [*names], **about, "agent": turn.agent, "reason": why}
            )
        for rule, reason in failed:
            is_held = found is not None
            await self._announce(
                "check_failed", {"rule": rule.name, **about, "reason": reason, "held": is_held}
            )
        if found is None:
            return
        calls = 0 if found.answer is None else len(found.answer.calls)
        for one in found.rules:
            told: dict[str, Json] = {
                "agent": turn.agent,
                "attempts": one.attempts,
                "checked": one.is_checked,
                "end": one.end.value,
                "calls": calls,
            }
            await self._announce("rule_held", {"rule": one.rule, **about, **told})

    def remember(self, turn: Turn) -> None:
        """Put the turn's true answer into later requests, in place of what the client was shown."""
        if turn.enforcement is not None and turn.enforcement.answer is not None:
            self.answers.add(turn.id, turn.session, turn.scope.user, turn.enforcement.answer)


def restore_body(wire: Wire, body: bytes, answers: Sequence[TrueAnswer]) -> bytes | None:
    """A request's body with true answers in place of what its client was shown; None if nothing
    changes.
    """
    try:
        fields = parse_object(body)
    except WireError:
        return None
    changed = restore_fields(wire, fields, answers)
    if changed is None:
        return None
    key, previous = wire_format(wire).list_key, wire_format(wire).previous_key
    items, before = changed.get(key), fields.get(key)
    if (
        not isinstance(items, list)
        or not isinstance(before, list)
        or changed.get(previous) != fields.get(previous)
    ):
        return encode_json(changed)
    try:
        begin, end = JsonDocument(body).field(key)
        spans = item_spans(body, begin, raw_items(body, key))
        written = {
            id(item): body[start:stop] for item, (start, stop) in zip(before, spans, strict=True)
        }
        pieces = [written.get(id(item)) or encode_json(item) for item in items]
        return body[:begin] + b"[" + b",".join(pieces) + b"]" + body[end:]
    except (UnsafeBytesError, msgspec.MsgspecError, UnicodeError, IndexError, ValueError):
        return encode_json(changed)


def restore_fields(
    wire: Wire, fields: Mapping[str, Json], answers: Sequence[TrueAnswer]
) -> dict[str, Json] | None:
    """The same for a decoded body. Unchanged items are the same objects as before."""
    format_, restored = wire_format(wire), dict(fields)
    key, previous = format_.list_key, format_.previous_key
    is_changed = False
    for answer in answers:
        if answer.wire is not wire:
            continue
        if previous and answer.answer_id and restored.get(previous) == answer.answer_id:
            restored[previous] = answer.last_id
            spoken = restored.get(key)
            rest = _decode(answer.rest)
            if rest:
                own: list[Json] = (
                    [{"role": "user", "content": spoken}] if isinstance(spoken, str) else []
                )
                restored[key] = [*rest, *(spoken if isinstance(spoken, list) else own)]
            is_changed = True
            continue
        items = restored.get(key)
        if isinstance(items, list):
            found = format_.restore(items, answer, _decode(answer.messages))
            if found is not None:
                restored[key], is_changed = found, True
    return restored if is_changed else None
