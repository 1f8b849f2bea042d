"""Sessions and turns as JSON."""

import json
from datetime import datetime

from metaclaw.domain.chat import Json, Usage
from metaclaw.domain.training import RoleKind, TurnStanding
from metaclaw.domain.turn import EnforcedRule, Turn, TurnKind
from metaclaw.domain.verdict import Verdict
from metaclaw.store import SessionRow, TurnRow


def time_view(value: datetime | None) -> str | None:
    """A point in time in ISO format."""
    return None if value is None else value.isoformat()


def session_view(row: SessionRow, title: str | None) -> dict[str, Json]:
    """A session as people and tools see it."""
    return {
        "id": row.id,
        "title": title or "",
        "agent": row.agent,
        "scope": {"user": row.scope.user, "workspace": row.scope.workspace},
        "parent": row.parent,
        "began_at": time_view(row.began_at),
        "last_at": time_view(row.last_at),
        "ended_at": time_view(row.ended_at),
        "end_reason": row.end_reason,
        "turn_count": row.turns,
        "main_turn_count": row.main_turns,
    }


def turn_row_view(turn: TurnRow | Turn) -> dict[str, Json]:
    """A turn's facts, without its bytes."""
    return {
        "id": turn.id,
        "session": turn.session,
        "kind": turn.kind.value,
        "kind_reason": turn.kind_reason,
        "generation": turn.stamp.generation,
        "policy_version": turn.stamp.policy_version,
        "library_hash": turn.stamp.library_hash,
        "skills": list(turn.stamp.skills),
        "wire": turn.wire.value,
        "stream": turn.stream,
        "model": turn.model,
        "provider": turn.provider,
        "status": turn.status,
        "end": turn.end.value,
        "error": turn.error,
        "finish": None if turn.finish is None else turn.finish.value,
        "segment": turn.segment,
        "retry_of": turn.retry_of,
        "usage": _usage(turn.usage),
        "times": {
            "received_at": time_view(turn.times.received_at),
            "first_byte_s": turn.times.first_byte_s,
            "duration_s": turn.times.duration_s,
        },
    }


def turn_view(turn: Turn) -> dict[str, Json]:
    """Everything of a turn: also the request as the client sent it, the answer as it saw it, and the exact tokens."""
    exchange, tokens = turn.exchange, turn.tokens
    return {
        **turn_row_view(turn),
        "scope": {"user": turn.scope.user, "workspace": turn.scope.workspace},
        "agent": turn.agent,
        "listed": list(turn.listed),
        "draws": [{"skill": draw.skill, "placed": draw.placed, "propensity": draw.propensity} for draw in turn.draws],
        "enforced": [enforced_view(one) for one in (() if turn.enforcement is None else turn.enforcement.rules)],
        "attempts": [one.id for one in (() if turn.enforcement is None else turn.enforcement.attempts)],
        "provider_wire": turn.provider_wire.value,
        "request": _readable(exchange.request),
        "sent": _readable(exchange.sent),
        "said": _readable(exchange.said),
        "answer": _readable(exchange.shown),
        "tokens": None
        if tokens is None
        else {"prompt_ids": list(tokens.prompt_ids), "sampled_ids": list(tokens.sampled_ids), "logprobs": list(tokens.logprobs)},
    }


def enforced_view(one: EnforcedRule) -> dict[str, Json]:
    """A rule that held calls back: in how many attempts it was broken, and what the client got."""
    return {"rule": one.rule, "attempts": one.attempts, "end": one.end.value, "reason": one.reason}


def role_view(turn: TurnRow | Turn, standing: TurnStanding) -> Json:
    """Support once it fed a skill; query once it trained weights, or while its speaker has the rules and skills of its prompt."""
    if standing.role is not None:
        return standing.role.kind.value
    is_query = turn.kind is TurnKind.MAIN and not standing.is_aged
    return RoleKind.QUERY.value if is_query else None


def verdict_view(verdict: Verdict | None) -> Json:
    """The verdict on a turn; null if it has not been judged."""
    if verdict is None:
        return None
    votes = verdict.votes
    return {
        "outcome": verdict.outcome.value,
        "score": verdict.score,
        "p_fail": verdict.p_fail,
        "source": verdict.source.value,
        "fault": None if verdict.fault is None else verdict.fault.value,
        "comment": verdict.comment,
        "signals": [{"detector": one.detector, "evidence": one.evidence, "fault": one.fault.value} for one in verdict.signals],
        "votes": None
        if votes is None
        else {"pass": votes.passed, "fail": votes.failed, "unknown": votes.unknown, "model": votes.model},
    }


def _usage(usage: Usage | None) -> Json:
    if usage is None:
        return None
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cached_tokens": usage.cached_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
    }


def _readable(body: bytes) -> Json:
    """JSON where it is JSON, else text: a stream of events is shown as it came."""
    text = body.decode("utf-8", "replace")
    try:
        value: Json = json.loads(text)
    except (ValueError, RecursionError):
        return text
    # A lone surrogate cannot be sent as UTF-8; such a body is shown as the text that escapes it.
    return value if "\\ud" not in text.lower() else text
