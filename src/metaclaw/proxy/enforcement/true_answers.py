"""True answers: what a provider really said, put back into requests in place of the messages that only their clients know.

A client whose calls were held keeps a message that no provider made. Providers refuse changed reasoning for good, so every later
request gets the true sequence in its place, also after a restart and when enforcement is off. Such a message is known again by the
ids of its calls, within its session, or, where a conversation comes from a session unknown to us, among the speaker's own.
"""

import logging
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

import anyio.to_thread
import msgspec

from metaclaw.domain.chat import Json, Wire
from metaclaw.domain.ids import SessionId, TurnId
from metaclaw.domain.turn import Origin, TrueAnswer
from metaclaw.errors import StoreError, WireError
from metaclaw.proxy.http.body import JsonDocument, UnsafeBytesError, item_spans, parse_object, raw_items, skip_blanks_back
from metaclaw.proxy.http.client import Incoming
from metaclaw.wires import TURN_MARK, encode_json, plain_id, wire_format

log = logging.getLogger(__name__)

_KEPT: Final = 256
_MOST_SESSIONS: Final = 10_000
_ID: Final = re.compile(rb'"(?:id|call_id|tool_call_id|tool_use_id|previous_response_id)"\s*:\s*"([^"\\]{1,200})"')
_MARK: Final = re.compile(rb"\bt_[0-9A-Za-z_-]{6,64}")
_decode = msgspec.json.Decoder().decode


class Stored(Protocol):
    """A true answer in the ledger, and whose it is."""

    @property
    def turn(self) -> TurnId: ...
    @property
    def session(self) -> SessionId: ...
    @property
    def user(self) -> str | None: ...
    @property
    def answer(self) -> TrueAnswer: ...


class AnswerStore(Protocol):
    """Where true answers are kept. Blocks; raises StoreError."""

    def newest(self) -> Iterable[Stored]: ...
    def read(self, turn: TurnId) -> TrueAnswer | None: ...


class TrueAnswers:
    """The true answers that later requests may need: their ids at hand, their messages read when one comes."""

    def __init__(self, store: AnswerStore | None = None) -> None:
        self._store = store
        self._of_session: dict[SessionId, list[TurnId]] = {}
        self._of_id: dict[tuple[str | None, str], TurnId] = {}
        self._needles: dict[TurnId, tuple[bytes, ...]] = {}
        self._kept: OrderedDict[TurnId, TrueAnswer] = OrderedDict()

    def load(self) -> None:
        """Learn the ids of what is in the ledger. Blocks; raises StoreError."""
        if self._store is not None:
            for stored in reversed(list(self._store.newest())):
                self._index(stored.turn, stored.session, stored.user, stored.answer)

    def add(self, turn: TurnId, session: SessionId, user: str | None, answer: TrueAnswer) -> None:
        """A client has been shown this."""
        self._index(turn, session, user, answer)
        self._keep(turn, answer)

    def _keep(self, turn: TurnId, answer: TrueAnswer) -> None:
        self._kept[turn] = answer
        while len(self._kept) > _KEPT and self._store is not None:
            self._kept.popitem(last=False)

    def forget(self, sessions: Iterable[SessionId]) -> None:
        """These sessions were forgotten."""
        gone = {turn for session in sessions for turn in self._of_session.pop(session, ())}
        self._of_id = {key: turn for key, turn in self._of_id.items() if turn not in gone} if gone else self._of_id
        for turn in gone:
            self._needles.pop(turn, None)
            self._kept.pop(turn, None)

    def _index(self, turn: TurnId, session: SessionId, user: str | None, answer: TrueAnswer) -> None:
        self._of_session.setdefault(session, []).append(turn)
        ids = [call.id for call in answer.calls] or ([answer.mark] if answer.mark.startswith(TURN_MARK) else [])
        known = [one for one in (*ids, answer.answer_id) if one]
        if ids:
            self._needles[turn] = tuple({needle.encode() for one in known for needle in (one, plain_id(one))})
        else:
            # Known by its text alone, which cannot be searched for in bytes: it is tried with every request of its session.
            self._needles[turn] = (b"",)
            self._of_id[user, turn] = turn
        self._of_id |= {(user, plain_id(one)): turn for one in known}

    def concerns(self, incoming: Incoming, origin: Origin) -> list[TurnId]:
        """The turns whose answers this request's history seems to hold."""
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
        """The speaker's own true answers whose ids stand in a history that comes for the first time."""
        if len(self._of_session) > _MOST_SESSIONS:
            self._of_session = {session: turns for session, turns in self._of_session.items() if turns}
        ids = (one.decode("latin-1") for pattern in (_ID, _MARK) for one in pattern.findall(body))
        found = (self._of_id.get((user, plain_id(one))) for one in ids)
        return list(dict.fromkeys(turn for turn in found if turn is not None))

    async def read(self, turns: Sequence[TurnId]) -> tuple[TrueAnswer, ...]:
        """The true answers of these turns; one that cannot be read is left out, loudly."""
        found = []
        for turn in turns:
            answer = self._kept.get(turn)
            if answer is None and self._store is not None:
                try:
                    answer = await anyio.to_thread.run_sync(self._store.read, turn)
                except StoreError as error:
                    log.warning("true_answer_unread turn=%s error=%s", turn, error)
                if answer is not None:
                    self._keep(turn, answer)
            if answer is not None:
                found.append(answer)
        return tuple(found)


def restore_body(wire: Wire, body: bytes, answers: Sequence[TrueAnswer]) -> bytes | None:
    """A request's body in this wire with the true messages in place of what its client was shown; None where nothing is changed."""
    try:
        fields = parse_object(body)
    except WireError:
        return None
    changed = restore_fields(wire, fields, answers)
    if changed is None:
        return None
    key, previous = wire_format(wire).list_key, wire_format(wire).previous_key
    items, before = changed.get(key), fields.get(key)
    if not isinstance(items, list) or not isinstance(before, list) or changed.get(previous) != fields.get(previous):
        return encode_json(changed)
    try:
        begin, end = JsonDocument(body).field(key)
        spans = item_spans(body, begin, raw_items(body, key))
        written = {id(item): body[start:stop] for item, (start, stop) in zip(before, spans, strict=True)}
        pieces = [written.get(id(item)) or encode_json(item) for item in items]
        return body[:begin] + b"[" + b",".join(pieces) + b"]" + body[end:]
    except (UnsafeBytesError, msgspec.MsgspecError, UnicodeError, IndexError, ValueError):
        return encode_json(changed)


def restore_fields(wire: Wire, fields: Mapping[str, Json], answers: Sequence[TrueAnswer]) -> dict[str, Json] | None:
    """The same for a body that has been read. Items that are not changed are the same objects."""
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
                own: list[Json] = [{"role": "user", "content": spoken}] if isinstance(spoken, str) else []
                restored[key] = [*rest, *(spoken if isinstance(spoken, list) else own)]
            is_changed = True
            continue
        items = restored.get(key)
        if isinstance(items, list):
            found = format_.restore(items, answer, _decode(answer.messages))
            if found is not None:
                restored[key], is_changed = found, True
    return restored if is_changed else None


def append_items(wire: Wire, body: bytes, items: Sequence[Json]) -> bytes:
    """A request's body with further messages; what stands before them stays as it is."""
    key, added = wire_format(wire).list_key, b",".join(map(encode_json, items))
    try:
        begin, end = JsonDocument(body).field(key)
    except (UnsafeBytesError, msgspec.MsgspecError, UnicodeError, IndexError):
        fields = parse_object(body)
        spoken = fields.get(key)
        before = list(spoken) if isinstance(spoken, list) else [{"role": "user", "content": spoken}]
        return encode_json({**fields, key: [*before, *items]})
    if body[begin : begin + 1] != b"[":
        return body[:begin] + b'[{"role":"user","content":' + body[begin:end] + b"}," + added + b"]" + body[end:]
    at = skip_blanks_back(body, end - 1)
    comma = b"" if body[at - 1 : at] == b"[" else b","
    return body[:at] + comma + added + body[at:]
