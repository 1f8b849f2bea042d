"""Wishes that every wire has in other words: the shape of the answer, how hard to think, how long to speak."""

import re
from collections.abc import Mapping

from metaclaw.domain.chat import Json

JSON_OBJECT: Mapping[str, Json] = {"schema": {"type": "object"}}
"""`ChatRequest.json_schema` of a caller who wants any JSON object. Other callers' have `schema`, and `name`, `strict` and
`description` where given."""

SCHEMA_NAME = "answer"
"""OpenAI's wires want a schema to have a name; Anthropic's gives none."""

DEFAULT_MAX_TOKENS = 32_000
"""Anthropic's wire must be told how long an answer may be. This is the most that every model since Claude 4 accepts."""

_COMPLETION_TOKENS = re.compile(r"(?:.*/)?(?:o\d|gpt-(?:[5-9]|\d\d))")


def max_tokens_field(model: str) -> str:
    """OpenAI's reasoning models refuse `max_tokens`; most other chat servers know nothing else."""
    return "max_completion_tokens" if _COMPLETION_TOKENS.match(model) else "max_tokens"


def anthropic_effort(effort: str) -> str | None:
    """Effort in Anthropic's words; None where the caller wants no thinking, which there is the default."""
    return {"none": None, "minimal": "low"}.get(effort, effort)
