"""Rows as turns: the way back from `rows`."""

from sqlalchemy import Row

from metaclaw.domain.chat import Finish, SampledTokens, Usage, Wire
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.turn import Draw, Exchange, Placement, Scope, Stamp, Times, Turn, TurnEnd, TurnKind
from metaclaw.domain.verdict import Outcome
from metaclaw.store.packing import (
    unpack_ids,
    unpack_instant,
    unpack_logprobs,
    unpack_names,
    unpack_optional,
    unpack_placed,
    unpack_text,
)
from metaclaw.store.records import DrawnTurn, SessionRow, TurnRow


def session_of(row: Row[*tuple[object, ...]]) -> SessionRow:
    """A row of `sessions`."""
    return SessionRow(
        id=SessionId(unpack_text(row.id)),
        key=unpack_optional(row.key),
        agent=unpack_text(row.agent),
        scope=scope_of(row),
        parent=_session_id(row.parent),
        began_at=unpack_instant(row.began_us),
        last_at=unpack_instant(row.last_us),
        ended_at=None if row.ended_us is None else unpack_instant(row.ended_us),
        end_reason=unpack_optional(row.end_reason),
        turns=row.turns,
        main_turns=row.main_turns,
    )


def turn_row_of(row: Row[*tuple[object, ...]]) -> TurnRow:
    """A row of `turns`, as a list shows it."""
    return TurnRow(
        seq=row.seq,
        id=TurnId(unpack_text(row.id)),
        session=SessionId(unpack_text(row.session)),
        kind=TurnKind(row.kind),
        kind_reason=unpack_text(row.kind_reason),
        stamp=_stamp(row),
        wire=Wire(row.wire),
        path=unpack_text(row.path),
        stream=bool(row.stream),
        model=unpack_text(row.model),
        provider=unpack_text(row.provider),
        status=row.status,
        end=TurnEnd(row.outcome),
        error=unpack_optional(row.error),
        finish=None if row.finish is None else Finish(row.finish),
        usage=_usage(row),
        times=Times(unpack_instant(row.received_us), row.first_byte_s, row.duration_s),
        segment=row.segment,
        retry_of=None if row.retry_of is None else TurnId(unpack_text(row.retry_of)),
    )


def turn_of(
    row: Row[*tuple[object, ...]],
    exchange: Exchange,
    tokens: SampledTokens | None,
    placements: tuple[Placement, ...],
    draws: tuple[Draw, ...],
) -> Turn:
    """A row of `turns` together with what lies in other tables."""
    facts = turn_row_of(row)
    return Turn(
        id=facts.id,
        session=facts.session,
        kind=facts.kind,
        kind_reason=facts.kind_reason,
        scope=scope_of(row),
        stamp=facts.stamp,
        agent=unpack_text(row.agent),
        wire=facts.wire,
        path=facts.path,
        stream=facts.stream,
        model=facts.model,
        provider=facts.provider,
        provider_wire=Wire(row.provider_wire),
        status=facts.status,
        end=facts.end,
        error=facts.error,
        exchange=exchange,
        finish=facts.finish,
        usage=facts.usage,
        tokens=tokens,
        times=facts.times,
        segment=facts.segment,
        retry_of=facts.retry_of,
        parent=_session_id(row.parent),
        key=unpack_optional(row.key),
        head=row.head,
        placements=placements,
        draws=draws,
    )


def tokens_of(row: Row[*tuple[object, ...]]) -> SampledTokens:
    """A row of `tokens`."""
    return SampledTokens(unpack_ids(row.prompt_ids), unpack_ids(row.sampled_ids), unpack_logprobs(row.logprobs))


def placement_of(row: Row[*tuple[object, ...]]) -> Placement:
    """A row of `placements` with the body of its snippet."""
    placed, listed = (tuple(map(SkillName, names)) for names in unpack_placed(row.skills))
    return Placement(row.anchor, placed, row.body.decode("utf-8", "surrogatepass"), listed)


def draw_of(row: Row[*tuple[object, ...]]) -> Draw:
    """A row of `draws`."""
    return Draw(SkillName(unpack_text(row.skill)), bool(row.placed), row.propensity)


def drawn_turn_of(row: Row[*tuple[object, ...]]) -> DrawnTurn:
    """A draw with its turn's place and the outcome that stands."""
    return DrawnTurn(
        turn=TurnId(unpack_text(row.id)),
        session=SessionId(unpack_text(row.session)),
        segment=row.segment,
        placed=bool(row.placed),
        propensity=row.propensity,
        outcome=None if row.outcome is None else Outcome(row.outcome),
        generation=row.generation,
        model=unpack_text(row.model),
    )


def scope_of(row: Row[*tuple[object, ...]]) -> Scope:
    """Whose row it is."""
    return Scope(unpack_optional(row.user_id), unpack_optional(row.workspace_id))


def _stamp(row: Row[*tuple[object, ...]]) -> Stamp:
    return Stamp(row.generation, row.policy_version, unpack_text(row.library_hash), _skills(row.skills))


def _usage(row: Row[*tuple[object, ...]]) -> Usage | None:
    if row.input_tokens is None:
        return None
    return Usage(row.input_tokens, row.output_tokens, row.cached_tokens, row.cache_write_tokens, row.reasoning_tokens)


def _skills(stored: str) -> tuple[SkillName, ...]:
    return tuple(SkillName(name) for name in unpack_names(stored))


def _session_id(stored: str | None) -> SessionId | None:
    return None if stored is None else SessionId(unpack_text(stored))
