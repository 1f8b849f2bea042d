"""Sessions, turns and skills as JSON, the same for the API and the command line."""

import json
from datetime import datetime

from metaclaw.domain.chat import Json, Usage
from metaclaw.domain.skill import Skill
from metaclaw.domain.turn import Turn
from metaclaw.store import SessionRow, TurnRow


def session_view(row: SessionRow) -> dict[str, Json]:
    """A session as people and tools see it."""
    return {
        "id": row.id,
        "agent": row.agent,
        "scope": {"user": row.scope.user, "workspace": row.scope.workspace},
        "parent": row.parent,
        "began_at": _time(row.began_at),
        "last_at": _time(row.last_at),
        "ended_at": _time(row.ended_at),
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
        "role": None,
        "verdict": None,
        "segment": turn.segment,
        "retry_of": turn.retry_of,
        "usage": _usage(turn.usage),
        "times": {
            "received_at": _time(turn.times.received_at),
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
        "provider_wire": turn.provider_wire.value,
        "request": _readable(exchange.request),
        "sent": _readable(exchange.sent),
        "said": _readable(exchange.said),
        "answer": _readable(exchange.shown),
        "tokens": None
        if tokens is None
        else {"prompt_ids": list(tokens.prompt_ids), "sampled_ids": list(tokens.sampled_ids), "logprobs": list(tokens.logprobs)},
    }


def skill_view(skill: Skill) -> dict[str, Json]:
    """A skill without its body."""
    return {
        "name": skill.name,
        "description": skill.trigger,
        "category": skill.category,
        "scope": skill.scope,
        "hash": skill.content_hash,
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


def _time(value: datetime | None) -> str | None:
    return None if value is None else value.isoformat()
