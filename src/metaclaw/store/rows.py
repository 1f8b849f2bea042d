"""Turns as rows, in the column order of `schema`."""

from collections.abc import Iterable

from metaclaw.domain.chat import SampledTokens, Usage
from metaclaw.domain.turn import Draw, Exchange, Turn, TurnKind
from metaclaw.store.packing import Row, pack_ids, pack_instant, pack_logprobs, pack_names, pack_texts
from metaclaw.store.patches import Link

_MAIN = TurnKind.MAIN  # to look an enum's member up takes longer than to compare it
_NO_USAGE: Row = (None, None, None, None, None)


def turn_row(turn: Turn, placements: bytes | None) -> Row:
    """The facts of a turn."""
    # `_value_` is an enum's `value` without the price of a property.
    stamp, usage, times = turn.stamp, turn.usage, turn.times
    return pack_texts(
        (
            turn.id,
            turn.session,
            turn.kind._value_,
            turn.kind_reason,
            turn.scope.user,
            turn.scope.workspace,
            stamp.generation,
            stamp.policy_version,
            stamp.library_hash,
            pack_names(stamp.skills) if stamp.skills else "[]",
            turn.agent,
            turn.wire._value_,
            turn.path,
            turn.stream,
            turn.model,
            turn.provider,
            turn.provider_wire._value_,
            turn.status,
            turn.end._value_,
            turn.error,
            None if turn.finish is None else turn.finish._value_,
            *(_NO_USAGE if usage is None else _usage(usage)),
            pack_instant(times.received_at),
            times.first_byte_s,
            times.duration_s,
            turn.segment,
            turn.retry_of,
            turn.parent,
            turn.key,
            turn.head,
            placements,
        )
    )


def _usage(usage: Usage) -> Row:
    return (usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.cache_write_tokens, usage.reasoning_tokens)


def payload_row(seq: int, link: Link, splices: bytes | None, exchange: Exchange) -> Row:
    """The bytes of a turn."""
    return (seq, *link, splices, exchange.said, exchange.seen)


def body_row(seq: int, link: Link) -> Row:
    """One body, whole or as a patch."""
    return (seq, *link)


def tokens_row(seq: int, tokens: SampledTokens) -> Row:
    """What was sampled, exactly."""
    return (seq, pack_ids(tokens.prompt_ids), pack_ids(tokens.sampled_ids), pack_logprobs(tokens.logprobs))


def draw_rows(seq: int, draws: Iterable[Draw]) -> list[Row]:
    """What was left to chance, in its order."""
    return [pack_texts((seq, place, draw.skill, draw.placed, draw.propensity)) for place, draw in enumerate(draws)]


class _Tally:
    """What some turns add to their session."""

    __slots__ = ("began_us", "first", "last_us", "main_turns", "turns")

    def __init__(self, first: Turn, received_us: int) -> None:
        self.first = first
        self.began_us = self.last_us = received_us
        self.turns = 1
        self.main_turns = 1 if first.kind is _MAIN else 0

    def count(self, turn: Turn, received_us: int) -> None:
        self.began_us = min(self.began_us, received_us)
        self.last_us = max(self.last_us, received_us)
        self.turns += 1
        self.main_turns += turn.kind is _MAIN

    def row(self) -> Row:
        turn, scope = self.first, self.first.scope
        who = (turn.session, turn.key, turn.agent, scope.user, scope.workspace, turn.parent)
        return pack_texts((*who, self.began_us, self.last_us, None, None, self.turns, self.main_turns))


def session_rows(turns: Iterable[Turn]) -> list[Row]:
    """What these turns add to their sessions: one row a session, always in the same order, so that two writers cannot deadlock."""
    tallies: dict[str, _Tally] = {}
    for turn in turns:
        received_us = pack_instant(turn.times.received_at)
        tally = tallies.get(turn.session)
        if tally is None:
            tallies[turn.session] = _Tally(turn, received_us)
        else:
            tally.count(turn, received_us)
    return [tallies[session].row() for session in sorted(tallies)]
