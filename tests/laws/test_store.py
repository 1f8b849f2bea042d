"""Laws of the store: what goes in comes out, bit for bit, whatever it is and in whatever order."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaclaw.domain.chat import Finish, SampledTokens, Usage, Wire
from metaclaw.domain.ids import SessionId, SkillName, TurnId, new_turn_id
from metaclaw.domain.turn import (
    Exchange,
    Placement,
    Scope,
    Splice,
    Stamp,
    Times,
    Turn,
    TurnEnd,
    TurnKind,
)
from metaclaw.domain.verdict import Fault, Signal, Votes
from metaclaw.store import Database, LedgerReader, SqlForgetting, open_database
from metaclaw.store.deduplication import RequestLines, apply_patch, make_patch
from metaclaw.store.rows import (
    pack_document,
    pack_instant,
    pack_text,
    unpack_document,
    unpack_instant,
    unpack_text,
)
from metaclaw.store.schema import MAX_LINKS
from metaclaw.store.turn_writer import Announcement, SessionEnd, TurnWriter
from metaclaw.store.writer_thread import QueuedItem, WriteQueue
from tests.support.depth import tries

anything = st.text(st.characters(exclude_categories=()), max_size=12)
perhaps = st.none() | anything
counts = st.integers(0, 2**63 - 1)
small = st.integers(0, 2**31 - 1)
bodies = st.binary(max_size=40) | st.builds(
    lambda piece, times: piece * times, st.binary(max_size=30), st.integers(0, 40)
)
zones = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
instants = st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29), timezones=zones)
seconds = st.floats(allow_nan=False)
skill_names = st.lists(anything.map(SkillName), max_size=3).map(tuple)
# A skill's name is never empty: an empty string separates what is placed from what is listed.
placed = st.lists(anything.filter(bool).map(SkillName), max_size=3).map(tuple)

MOMENT = datetime(2026, 3, 4, tzinfo=UTC)
SESSIONS = [SessionId(f"s_{number}") for number in range(4)]


@st.composite
def sampled_tokens(draw: st.DrawFn) -> SampledTokens:
    ids = st.integers(-(2**31), 2**31 - 1)
    drawn = draw(
        st.lists(st.tuples(ids, st.floats(max_value=0.0, allow_infinity=False)), max_size=6)
    )
    return SampledTokens(
        tuple(draw(st.lists(ids, max_size=6))),
        tuple(i for i, _ in drawn),
        tuple(p for _, p in drawn),
    )


exchanges = st.builds(
    Exchange,
    request=bodies,
    splices=st.lists(
        st.builds(Splice, offset=counts, inserted=st.binary(max_size=9)), max_size=3
    ).map(tuple),
    translated=st.none() | bodies,
    said=st.binary(max_size=20),
    seen=st.none() | st.binary(max_size=20),
)
turns = st.builds(
    Turn,
    id=anything.map(lambda text: TurnId(text + new_turn_id())),
    session=st.sampled_from(["s_1", "s_2", "s \x00\ud800"]).map(SessionId),
    kind=st.sampled_from(TurnKind),
    kind_reason=anything,
    scope=st.builds(Scope, perhaps, perhaps),
    stamp=st.builds(Stamp, small, small, anything, skill_names),
    agent=anything,
    wire=st.sampled_from(Wire),
    path=anything,
    stream=st.booleans(),
    model=anything,
    provider=anything,
    provider_wire=st.sampled_from(Wire),
    status=small,
    end=st.sampled_from(TurnEnd),
    error=perhaps,
    exchange=exchanges,
    finish=st.none() | st.sampled_from(Finish),
    usage=st.none() | st.builds(Usage, counts, counts, counts, counts, counts),
    tokens=st.none() | sampled_tokens(),
    times=st.builds(Times, instants, st.none() | seconds, seconds),
    segment=small,
    retry_of=st.none() | anything.map(TurnId),
    parent=st.none() | anything.map(SessionId),
    key=perhaps,
    head=st.binary(max_size=20),
    placements=st.lists(
        st.builds(Placement, st.binary(max_size=9), placed, anything, placed), max_size=3
    ).map(tuple),
)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    path: Path = tmp_path_factory.mktemp("laws") / "ledger.db"
    opened = open_database(f"sqlite:///{path}")
    yield opened
    opened.close()


@settings(
    max_examples=tries(15, nightly=150),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(batches=st.lists(st.lists(turns, min_size=1, max_size=5), min_size=1, max_size=3))
def test_any_turns_in_any_batches_are_read_back_as_they_were(
    database: Database, batches: list[list[Turn]]
) -> None:
    turn_writer = TurnWriter(database, max_request_line_bytes=2000)
    try:
        for batch in batches:
            turn_writer.write(batch)
    finally:
        turn_writer.close()
    reader = LedgerReader(database)
    for turn in (turn for batch in batches for turn in batch):
        recorded = reader.turn(turn.id)
        assert recorded is not None
        assert recorded.turn == turn
        if turn.tokens is not None:
            # Equality takes -0.0 for 0.0; the record does not.
            assert recorded.turn.tokens is not None
            assert [value.hex() for value in recorded.turn.tokens.logprobs] == [
                value.hex() for value in turn.tokens.logprobs
            ]


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(
    requests=st.lists(
        st.tuples(st.sampled_from(SESSIONS[:2]), st.booleans(), bodies), min_size=1, max_size=40
    ),
    is_old=st.lists(st.booleans(), min_size=40, max_size=40),
)
def test_whichever_turns_are_forgotten_the_others_are_as_they_were(
    database: Database, requests: list[tuple[SessionId, bool, bytes]], is_old: list[bool]
) -> None:
    SqlForgetting(database).forget_before(datetime.max.replace(tzinfo=UTC))
    made: list[Turn] = []
    for (session, is_translated, body), old in zip(requests, is_old, strict=False):
        at = MOMENT if old else MOMENT + timedelta(days=1)
        exchange = Exchange(
            b"a common beginning " * 10 + body,
            (Splice(0, body),),
            body * 3 if is_translated else None,
        )
        made.append(replace(_plain_turn(session), times=Times(at, None, 0.0), exchange=exchange))
    turn_writer = TurnWriter(database, max_request_line_bytes=1 << 20)
    for turn in made:
        turn_writer.write([turn])
    turn_writer.close()
    reader = LedgerReader(database)
    gone = [turn for turn in made if turn.times.received_at == MOMENT]
    assert SqlForgetting(database).forget_before(MOMENT + timedelta(seconds=1)) == len(gone)
    found = {turn.id: reader.turn(turn.id) for turn in made}
    for turn in made:
        recorded = found[turn.id]
        assert (None if recorded is None else recorded.turn) == (None if turn in gone else turn)
    assert reader.counts().turns == len(made) - len(gone)


@given(base=bodies, body=bodies, shared=st.binary(max_size=600))
def test_a_patch_on_its_base_is_the_body(base: bytes, body: bytes, shared: bytes) -> None:
    for before, after in (
        (base, body),
        (shared + base, shared + body),
        (base + shared, body + shared),
        (shared, shared + body + shared),
    ):
        patch = make_patch(before, after)
        assert apply_patch(before, *patch) == after
        assert patch.prefix + patch.suffix + len(patch.middle) == len(after)
        assert patch.prefix + patch.suffix <= len(before)


@given(
    shared=st.binary(min_size=1, max_size=3000),
    added=st.binary(max_size=50),
    at=st.integers(0, 3000),
)
def test_what_is_inserted_into_a_body_is_all_that_its_patch_holds(
    shared: bytes, added: bytes, at: int
) -> None:
    assert len(make_patch(shared, shared[:at] + added + shared[at:]).middle) == len(added)


@given(
    sequence=st.lists(st.tuples(st.sampled_from(["a", "b"]), st.booleans(), bodies), max_size=80),
    max_bytes=st.integers(0, 3000),
)
def test_any_sequence_of_bodies_is_rebuilt_from_few_links_in_bounded_memory(
    sequence: list[tuple[str, bool, bytes]], max_bytes: int
) -> None:
    lineages = RequestLines(max_bytes)
    rebuilt: dict[int, bytes] = {}
    last: dict[str, bytes] = {}
    for turn, (line, goes_on, piece) in enumerate(sequence):
        body = last.get(line, b"") + piece if goes_on else piece
        last[line] = body
        link = lineages.follow((line,), turn, body)
        rebuilt[turn] = apply_patch(
            b"" if link.base is None else rebuilt[link.base], link.prefix, link.suffix, link.middle
        )
        assert rebuilt[turn] == body
        assert 0 <= link.link < MAX_LINKS
        assert (link.base is None) == (link.link == 0)
        assert lineages.held_bytes <= max_bytes


@given(
    text=st.text(st.characters(exclude_categories=()) | st.sampled_from("\x00\x1a\ud800\udfff0af"))
)
def test_any_text_is_made_storable_and_comes_back(text: str) -> None:
    stored = pack_text(text)
    assert "\x00" not in stored
    assert stored.encode("utf-8") is not None
    assert unpack_text(stored) == text


finite = st.floats(allow_nan=False, allow_infinity=False)
texts = st.lists(anything, max_size=3).map(tuple)
evidence = st.one_of(
    st.builds(Votes, small, small, small, anything, texts),
    st.builds(Signal, anything, finite, anything, st.sampled_from(Fault)),
)


@given(value=evidence)
def test_any_evidence_is_made_storable_and_comes_back(
    value: Votes | Signal,
) -> None:
    stored = pack_document(value)
    assert "\x00" not in stored
    assert stored.encode("utf-8") is not None
    assert unpack_document(stored, type(value)) == value


@given(one=anything, other=anything)
def test_different_texts_are_stored_differently(one: str, other: str) -> None:
    assert (pack_text(one) == pack_text(other)) == (one == other)


@given(instant=instants)
def test_an_instant_is_kept_to_the_microsecond(instant: datetime) -> None:
    assert unpack_instant(pack_instant(instant)) == instant


short_turns = st.builds(
    lambda session, size: QueuedItem(_plain_turn(session), size),
    st.sampled_from(SESSIONS),
    st.sampled_from([1, 10, 60]),
)
ends = st.sampled_from(SESSIONS).map(
    lambda session: QueuedItem(SessionEnd(session, "silence", MOMENT), 1)
)
events = st.builds(lambda: QueuedItem(Announcement("noise", {}, MOMENT), 1))
moves = st.sampled_from(["take", "put back", "free"])


def _plain_turn(session: SessionId) -> Turn:
    stamp, times = Stamp(0, 0, "", ()), Times(MOMENT, None, 0.0)
    told = (
        TurnKind.MAIN,
        "",
        Scope(),
        stamp,
        "",
        Wire.CHAT,
        "",
        False,
        "",
        "",
        Wire.CHAT,
        200,
        TurnEnd.COMPLETED,
        None,
    )
    return Turn(new_turn_id(), session, *told, Exchange(b""), None, None, None, times)


@given(steps=st.lists(short_turns | ends | events | moves, max_size=120))
def test_on_a_broken_store_a_turn_is_lost_only_for_newer_turns_and_memory_stays_bounded(
    steps: list[QueuedItem | str],
) -> None:
    max_entries, max_bytes = 8, 100
    queue = WriteQueue(max_entries, max_bytes, 3, 1000)
    held: list[QueuedItem] = []  # the turns that must still be there, the oldest first
    in_hand: list[QueuedItem] = []
    for step in steps:
        dropped: list[QueuedItem] = []
        if isinstance(step, QueuedItem):
            held += [step] if step.is_turn else []
            dropped = queue.squeeze(step)
        elif step == "take" and not in_hand and not queue.is_idle:
            in_hand = queue.take()
        elif step == "put back":
            dropped, in_hand = queue.put_back(in_hand), []
        elif step == "free":
            queue.free(in_hand)
            held, in_hand = [turn for turn in held if turn not in in_hand], []
        for lost in (entry for entry in dropped if entry.is_turn):
            assert len(held) > max_entries or sum(turn.weight_bytes for turn in held) > max_bytes
            assert lost is next(turn for turn in held if turn not in in_hand)
            held.remove(lost)
        assert queue.turns == len(held) <= max_entries
    lost_last = [entry for entry in queue.put_back(in_hand) if entry.is_turn]
    queue.close()
    left = [entry for batch in iter(queue.take, []) for entry in batch]
    assert [entry for entry in left if entry.is_turn] == held
    assert lost_last == []
    assert len(left) <= max_entries
