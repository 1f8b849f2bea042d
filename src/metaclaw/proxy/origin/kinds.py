"""Main or side: whether a request is the agent at work, or its housekeeping.

What a known client does is written in its own file; here are signs that hold for unknown ones. They are meant to miss rather
than to be wrong: a request without tools is not housekeeping for that reason alone.
"""

import re
from typing import Final

from metaclaw.domain.chat import Wire
from metaclaw.domain.turn import HIRED, TurnKind
from metaclaw.proxy.origin.clients import Client
from metaclaw.proxy.origin.clients.autoresearchclaw import is_session_end
from metaclaw.proxy.origin.glue import is_heartbeat
from metaclaw.proxy.origin.request import Request

_MAIN_TURN: Final = (TurnKind.MAIN, "main")
_HIRED_TURN: Final = (TurnKind.MAIN, HIRED)
_KINDS: Final = {kind.value: kind for kind in TurnKind}
_HEAD_CHARS: Final = 500
_PROBE_CHARS: Final = 64
_TALK: Final = r"\b(?:conversation|chat|thread|session|dialogue|discussion|exchange|transcript|context)s?\b"
_YOU_ARE: Final = r"\A\s*you are (?:an? )?(?:[\w-]+ ){0,4}?"
_DO: Final = r"\A\s*(?:your (?:task|job) is to |you will |please )?"
_MAKE: Final = r"(?:generate|write|create|come up with|give|provide|output|produce|make|suggest)"
# Only instructions that begin with it: an assistant that can also summarise is at work.
_TITLE: Final = re.compile(rf"{_YOU_ARE}title (?:generator|writer)|{_DO}{_MAKE}\b.{{0,60}}\btitle\b.{{0,160}}{_TALK}", re.DOTALL)
_SUMMARY: Final = re.compile(
    rf"(?:{_YOU_ARE}(?:assistant tasked with )?summari[sz](?:ation|ing|er)|{_DO}\W*(?:briefly\W+)?summari[sz]e\b).{{0,160}}{_TALK}",
    re.DOTALL,
)
_HIRED: Final = re.compile(r"\A\s*you are (?:now )?(?:acting as )?(?:an? |the )?(?:[\w-]+ ){0,6}?sub-?agent\b", re.IGNORECASE)
_HIRED_CHARS: Final = 160
_CHAT_TASK: Final = re.compile(r"\A\s*### task:.{0,400}?\b(titles?|tags|follow-up|questions|search queries|autocomplet)", re.DOTALL)
# Beginnings of the last user text by which agents have their own history summarised, tools or not.
_COMPACTIONS: Final = (
    "You are performing a CONTEXT CHECKPOINT COMPACTION",
    "CRITICAL: Respond with TEXT ONLY",
    "Your task is to create a detailed summary of the conversation",
    "Provide a detailed prompt for continuing our conversation above",
    "The messages above are a conversation to summarize",
    "You are a summarization agent creating a context checkpoint",
)


def classify(request: Request, client: Client, path: str) -> tuple[TurnKind, str]:
    """The kind of a request and a short code that says why. What the caller says (X-Turn-Type) outranks what we see."""
    if is_session_end(request):
        return TurnKind.SIDE, "session-end"
    said = request.headers.get("x-turn-type")
    if said is not None and (kind := _KINDS.get(said.strip().lower())):
        return kind, "header"
    reason = _counting(request, path) or client.side(request) or _generic(request)
    if reason:
        return TurnKind.SIDE, reason
    return _HIRED_TURN if client.is_hired(request) or _is_subagent(request.system) else _MAIN_TURN


def _is_subagent(system: str) -> bool:
    head = system[:_HIRED_CHARS]
    return "agent" in head and ("ubagent" in head or "ub-agent" in head) and _HIRED.match(head) is not None


def _counting(request: Request, path: str) -> str | None:
    """Counting tokens sends a request's body to another path, and leaves out the limit that every real request must have."""
    if path:
        return "count-tokens" if "count_tokens" in path and path.rstrip("/").endswith("count_tokens") else None
    unlimited = request.wire is Wire.MESSAGES and "max_tokens" not in request.body and "stream" not in request.body
    return "count-tokens" if unlimited else None


def _generic(request: Request) -> str | None:
    prompt = request.prompt
    if is_heartbeat(prompt):
        return "heartbeat"
    if prompt.startswith("Pre-compaction memory flush"):
        return "memory-flush"
    last = prompt if request.last_parts else ""
    if last.startswith(_COMPACTIONS):
        return "summary"
    if request.has_tools:
        return None
    return _probe(request, last) or _by_instructions(request.system) or _by_chat_task(last)


def _probe(request: Request, last: str) -> str | None:
    """A single short word and room for one token: somebody looks whether we are there."""
    if len(last) > _PROBE_CHARS or len(request.conversation.digests) != 1:
        return None
    limit = request.answer_limit
    return "probe" if limit is not None and limit <= 1 and not request.body.get("logprobs") else None


def _by_instructions(system: str) -> str | None:
    system = system[:_HEAD_CHARS]
    if "itle" not in system and "ummari" not in system and not system.startswith("[SUGG"):
        return None
    system = system.lower()
    if "title" in system and _TITLE.match(system):
        return "title"
    if "summari" in system and _SUMMARY.match(system):
        return "summary"
    return "suggestion" if system.startswith("[suggestion mode") else None


def _by_chat_task(last: str) -> str | None:
    """Chat front ends ask with a task heading and the whole chat in one message."""
    if last.startswith("[SUGGESTION MODE"):
        return "suggestion"
    head = last[:_HEAD_CHARS]
    if "###" not in head:
        return None
    found = _CHAT_TASK.match(head.lower())
    if not found:
        return None
    return "title" if found[1].startswith("title") else "suggestion"
