"""Read from a request: the client program, its session identifier, main or side turn, the user's
own words, and the project.

Peculiarities of single clients are in `coding_agents` and `assistants`; the rules here apply to
unknown clients as well. They prefer to miss a side turn over misjudging a main turn: a request
without tools is not a side turn for that reason alone."""

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Final

from metaclaw.domain.turn import (
    SUBAGENT,
    TRIAL_QUESTION,
    Anchor,
    Scope,
    TurnKind,
    channel_name,
)
from metaclaw.proxy.sessions.assistants import AutoResearchClaw, CoPaw, Hermes, OpenClaw
from metaclaw.proxy.sessions.coding_agents import (
    Aider,
    ClaudeCode,
    Codex,
    GeminiCli,
    MiniSweAgent,
    OpenCode,
    QwenCode,
    session_in_user_id,
)
from metaclaw.proxy.sessions.conversation import (
    AgentClient,
    MessageChain,
    Request,
    is_heartbeat,
    without_ephemeral,
)
from metaclaw.proxy.sessions.registry import Key, looks_unique
from metaclaw.text import keep_ends
from metaclaw.wires import wire_format

# The first match counts. SDKs come last, because many programs are built on them.
CLIENTS: Final = (
    ClaudeCode(
        "claude-code", ({"x-claude-code-session-id": ("",)}, {"user-agent": ("claude-cli/",)})
    ),
    Codex(
        "codex",
        (
            {"x-codex-turn-metadata": ("",)},
            {"originator": ("codex",)},
            {"user-agent": ("codex_", "codex-", "codex/")},
        ),
    ),
    OpenCode("opencode", ({"x-session-affinity": ("",)}, {"user-agent": ("opencode",)})),
    QwenCode("qwen-code", ({"user-agent": ("QwenCode/",)},)),
    GeminiCli("gemini", ({"user-agent": ("GeminiCLI",)},)),
    # Python's urllib with a browser's user agent: no browser sends this accept-encoding.
    AutoResearchClaw(
        "autoresearchclaw",
        (
            {"user-agent": ("Mozilla/5.0 (Macintosh",), "accept-encoding": ("identity",)},
            {"x-session-id": ("arc-",)},
        ),
    ),
    OpenClaw("openclaw"),
    Hermes("hermes"),
    Aider("aider"),
    MiniSweAgent("mini-swe-agent"),
    CoPaw("copaw"),
    AgentClient("litellm", ({"user-agent": ("litellm",)},)),
    AgentClient("openai-sdk", ({"user-agent": ("OpenAI/", "AsyncOpenAI/")},)),
    AgentClient("google-sdk", ({"x-goog-api-client": ("google-genai-sdk",)},)),
    AgentClient("anthropic-sdk", ({"user-agent": ("Anthropic/", "AsyncAnthropic/")},)),
)
_UNKNOWN: Final = AgentClient("unknown")
_MAX_KNOWN: Final = 1024
_TRIAL_CHARS: Final = 500


class Recogniser:
    """Finds the client that sent a request. Caches what a system text shows, by its digest."""

    def __init__(self) -> None:
        self._by_system: dict[bytes, int] = {}

    def recognise(self, request: Request) -> AgentClient:
        """The first of `CLIENTS` that the headers or the system text match."""
        root = request.conversation.root
        place = self._by_system.get(root)
        if place is None:
            if len(self._by_system) >= _MAX_KNOWN:
                self._by_system.clear()
            places = (
                at for at, client in enumerate(CLIENTS) if client.is_system_text(request.system)
            )
            place = self._by_system[root] = next(places, len(CLIENTS))
        place = min(place, _place_by_headers(request.headers))
        return CLIENTS[place] if place < len(CLIENTS) else _UNKNOWN


_Begins = tuple[str, ...]
_BY_HEADER: Final[dict[str, list[tuple[_Begins, dict[str, _Begins], int]]]] = {}
"""The first header of each alternative: what it begins with, the other headers, and the place of
the client."""
for _place, _client in enumerate(CLIENTS):
    for _others in map(dict, _client.headers):
        _name = next(iter(_others))
        _BY_HEADER.setdefault(_name, []).append((_others.pop(_name), _others, _place))


def _place_by_headers(headers: Mapping[str, str]) -> int:
    found = len(CLIENTS)
    for name in _BY_HEADER.keys() & headers.keys():
        value = headers[name]
        for begins, others, place in _BY_HEADER[name]:
            if value.startswith(begins) and all(
                key in headers and headers[key].startswith(rest) for key, rest in others.items()
            ):
                found = min(found, place)
    return found


_MAX_CHARS: Final = 200
_OTHER_HEADERS: Final = {
    "session-id",
    "session_id",
    "thread-id",
    "x-session-affinity",
    "x-conversation-id",
    "x-litellm-session-id",
    "helicone-session-id",
}
_BODY_PATHS: Final = (
    ("client_metadata", "session_id"),
    ("session_id",),
    ("conversation",),
    ("conversation", "id"),
    ("conversation_id",),
)


_BODY_KEYS: Final = frozenset(("metadata", *(path[0] for path in _BODY_PATHS)))


def find_key(request: Request, client: AgentClient) -> Key | None:
    """The session identifier of a request, or None where the client sends none."""
    key = _base_key(request, client)
    if key is None:
        return None
    helper = client.helper(request)
    if helper is not None:
        parent = f"{key.value}/{helper.of}" if helper.of else key.value
        return Key(_short(f"{key.value}/{helper.id}"), key.named, parent=_short(parent))
    parent = request.header("x-parent-session-id")
    return (
        Key(key.value, key.named, key.shared, _short(parent))
        if parent and parent != key.value
        else key
    )


def _base_key(request: Request, client: AgentClient) -> Key | None:
    headers = request.headers
    named = headers.get("x-session-id")
    if named and (named := named.strip()):
        return Key(_short(named), named=True)
    sent = client.key(request)
    if not sent and not _OTHER_HEADERS.isdisjoint(headers):
        sent = next(
            (value for name in sorted(_OTHER_HEADERS) if (value := headers.get(name))), None
        )
    if sent:
        return Key(_short(sent))
    cache_key = request.body.get("prompt_cache_key")
    if isinstance(cache_key, str) and cache_key:
        # A program may use one constant for all its conversations: only a value that looks unique
        # identifies a session.
        return Key(_short(cache_key), shared=not looks_unique(cache_key))
    written = _in_body(request) or client.text_key(request)
    return Key(_short(written)) if written else None


def _in_body(request: Request) -> str | None:
    body = request.body
    if _BODY_KEYS.isdisjoint(body):
        return None
    if "metadata" in body:
        user_id = request.text("metadata", "user_id")
        session = (session_in_user_id(user_id) if user_id else None) or request.text(
            "metadata", "session_id"
        )
        if session:
            return session
    for path in _BODY_PATHS:
        if path[0] in body and (value := request.text(*path)):
            return value
    return None


def scope_of(headers: Mapping[str, str]) -> Scope:
    """User, workspace and channel from the headers."""
    user, workspace = headers.get("x-user-id"), headers.get("x-workspace-id")
    channel = headers.get("x-channel-id")
    if not user and not workspace and not channel:
        return NO_SCOPE
    return Scope(_said(user), _said(workspace), channel_name(channel or ""))


def credential_of(headers: Mapping[str, str]) -> int | None:
    """A fingerprint of the caller's credential, valid in this process only; None if there is no
    credential.
    """
    sent = headers.get("x-metaclaw-key"), headers.get("authorization"), headers.get("x-api-key")
    return hash(sent) if sent != _NOTHING_SENT else None


_NOTHING_SENT: Final = (None, None, None)
NO_SCOPE: Final = Scope()


def _said(value: str | None) -> str | None:
    return _short(value.strip()) or None if value else None


def _short(value: str) -> str:
    if len(value) <= _MAX_CHARS:
        return value
    return f"{value[: _MAX_CHARS - 17]}.{sha256(value.encode('utf-8', 'replace')).hexdigest()[:16]}"


_MAIN_TURN: Final = (TurnKind.MAIN, "main")
_SUBAGENT_TURN: Final = (TurnKind.MAIN, SUBAGENT)
_KINDS: Final = {kind.value: kind for kind in TurnKind}
_HEAD_CHARS: Final = 500
_PROBE_CHARS: Final = 64
_TALK: Final = (
    r"\b(?:conversation|chat|thread|session|dialogue|discussion|exchange|transcript|context)s?\b"
)
_YOU_ARE: Final = r"\A\s*you are (?:an? )?(?:[\w-]+ ){0,4}?"
_DO: Final = r"\A\s*(?:your (?:task|job) is to |you will |please )?"
_MAKE: Final = r"(?:generate|write|create|come up with|give|provide|output|produce|make|suggest)"
# Matched at the beginning only: an assistant that can also summarise does main turns.
_TITLE: Final = re.compile(
    rf"{_YOU_ARE}title (?:generator|writer)|{_DO}{_MAKE}\b.{{0,60}}\btitle\b.{{0,160}}{_TALK}",
    re.DOTALL,
)
_SUMMARY: Final = re.compile(
    rf"(?:{_YOU_ARE}(?:assistant tasked with"
    rf" )?summari[sz](?:ation|ing|er)|{_DO}\W*(?:briefly\W+)?summari[sz]e\b).{{0,160}}{_TALK}",
    re.DOTALL,
)
_SUBAGENT: Final = re.compile(
    r"\A\s*you are (?:now )?(?:acting as )?(?:an? |the )?(?:[\w-]+ ){0,6}?sub-?agent\b",
    re.IGNORECASE,
)
_SUBAGENT_CHARS: Final = 160
_CHAT_TASK: Final = re.compile(
    r"\A\s*### task:.{0,400}?\b(titles?|tags|follow-up|questions|search queries|autocomplet)",
    re.DOTALL,
)
# Beginnings of the last user text with which agents ask for a summary of their history, with or
# without tools.
_COMPACTIONS: Final = (
    "You are performing a CONTEXT CHECKPOINT COMPACTION",
    "CRITICAL: Respond with TEXT ONLY",
    "Your task is to create a detailed summary of the conversation",
    "Provide a detailed prompt for continuing our conversation above",
    "The messages above are a conversation to summarize",
    "You are a summarization agent creating a context checkpoint",
)


def classify(request: Request, client: AgentClient, path: str) -> tuple[TurnKind, str]:
    """The kind of a request and its reason code. The header X-Turn-Type outranks recognition."""
    if _is_session_end(request):
        return TurnKind.SIDE, "session-end"
    said = request.headers.get("x-turn-type")
    if said is not None and (kind := _KINDS.get(said.strip().lower())):
        return kind, "header"
    reason = _counting(request, path) or client.side(request) or _generic(request)
    if reason:
        return TurnKind.SIDE, reason
    return (
        _SUBAGENT_TURN
        if client.is_subagent(request) or _is_subagent(request.system)
        else _MAIN_TURN
    )


def _is_session_end(request: Request) -> bool:
    """Whether the request only says that a run of AutoResearchClaw is over; its client needs no
    real answer.
    """
    return (
        request.body.get("model") == "session-end"
        and request.prompt.strip().lower() == "session complete"
    )


def _is_subagent(system: str) -> bool:
    head = system[:_SUBAGENT_CHARS]
    return (
        "agent" in head
        and ("ubagent" in head or "ub-agent" in head)
        and _SUBAGENT.match(head) is not None
    )


def _counting(request: Request, path: str) -> str | None:
    """The reason code of a request to count tokens, or None. It has its own path, or lacks a field
    that others must have.
    """
    if path:
        return (
            "count-tokens"
            if "count_tokens" in path and path.rstrip("/").endswith("count_tokens")
            else None
        )
    required = wire_format(request.wire).required_key
    return (
        "count-tokens"
        if required and required not in request.body and "stream" not in request.body
        else None
    )


def _generic(request: Request) -> str | None:
    prompt = request.prompt
    if is_heartbeat(prompt):
        return "heartbeat"
    # Some agents put the time before the question, others a long reminder behind it.
    for part in request.prompt_parts:
        if TRIAL_QUESTION in part[:_TRIAL_CHARS]:
            return "trial"
    if prompt.startswith("Pre-compaction memory flush"):
        return "memory-flush"
    last = prompt if request.last_parts else ""
    if last.startswith(_COMPACTIONS):
        return "summary"
    if request.has_tools:
        return None
    return _probe(request, last) or _by_instructions(request.system) or _by_chat_task(last)


def _probe(request: Request, last: str) -> str | None:
    """Recognise a health check: one short message, and a limit of one token."""
    if len(last) > _PROBE_CHARS or len(request.conversation.digests) != 1:
        return None
    limits = [
        request.body.get(name)
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens")
    ]
    limit = next(
        (value for value in limits if isinstance(value, int) and not isinstance(value, bool)), None
    )
    return (
        "probe" if limit is not None and limit <= 1 and not request.body.get("logprobs") else None
    )


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
    """Recognise side turns of chat front ends: one message with a task heading and the whole
    chat.
    """
    if last.startswith("[SUGGESTION MODE"):
        return "suggestion"
    head = last[:_HEAD_CHARS]
    if "###" not in head:
        return None
    found = _CHAT_TASK.match(head.lower())
    if not found:
        return None
    return "title" if found[1].startswith("title") else "suggestion"


_MACHINE_TAGS: Final = (
    r"environment_context|user_instructions|turn_aborted|subagent_notification|"
    r"task-notification|local-command-caveat|local-command-stdout|local-command-stderr|"
    r"command-name|command-message|bash-input|bash-stdout|bash-stderr|ide_opened_file|"
    r"ide_selection|user-prompt-submit-hook"
)
_MACHINE_SPAN: Final = re.compile(rf"<({_MACHINE_TAGS})\b[^>]{{0,200}}>.*?(?:</\1>|\Z)", re.DOTALL)
_NOT_A_PERSON: Final = (
    "[SYSTEM NOTIFICATION",
    "[Request interrupted by user",
    "Another language model started to solve this problem",
    "This session is being continued from a previous conversation",
    "[CONTEXT COMPACTION",
    "[System note:",
    "[SYSTEM]",
    "[System:",
    "[Runtime note:",
    "Caveat: The messages below were generated by the user while running local commands",
)
MAX_TASK_CHARS: Final = 16_000
_MAX_READ_CHARS: Final = 64_000


def words(client: AgentClient, text: str) -> str:
    """The user's own words in a message, of a long one its beginning and its end, together
    MAX_TASK_CHARS; empty if a program wrote all of it.
    """
    if len(text) > _MAX_READ_CHARS:
        text = text[: _MAX_READ_CHARS - MAX_TASK_CHARS] + text[-MAX_TASK_CHARS:]
    text = client.words(text.strip()).strip()
    if "<" in text:
        text = without_machine_tags(text)
    if is_machine_text(text) or is_heartbeat(text):
        return ""
    if len(text) <= MAX_TASK_CHARS:
        return text
    half = MAX_TASK_CHARS // 2
    return f"{text[: half - 1]}\n{text[-half:]}"


def without_machine_tags(text: str) -> str:
    """Remove the parts that clients mark as machine-written."""
    return _MACHINE_SPAN.sub("", text).strip() if "<" in text else text


def is_machine_text(text: str) -> bool:
    """Whether a program wrote this user message."""
    return text.startswith(_NOT_A_PERSON)


class Tasks:
    """The tasks in one request.

    `known` are the digests of the tasks up to position `upto`, if an earlier request has found
    them; only later messages are read. `began` says whether one of the later messages is a task.
    `last` is the words of the newest task that was read."""

    __slots__ = ("anchors", "began", "last")

    def __init__(
        self, chain: MessageChain, client: AgentClient, known: frozenset[bytes] | None, upto: int
    ) -> None:
        anchors: list[Anchor] = []
        self.began = False
        self.last = ""
        for position in chain.users:
            digest = chain.digests[position]
            if known is not None and position <= upto:
                if digest not in known:
                    continue
            elif said := words(client, chain.text_at(position)):
                self.last = said
                self.began = self.began or position > upto
            else:
                continue
            anchors.append(Anchor(chain.indices[position], digest))
        self.anchors = tuple(anchors)


def known_anchors(chain: MessageChain, known: frozenset[bytes]) -> tuple[Anchor, ...]:
    """The known tasks of a session that are in a request."""
    return tuple(
        Anchor(chain.indices[at], chain.digests[at])
        for at in chain.users
        if chain.digests[at] in known
    )


_BY_NAME: Final = {client.name: client for client in CLIENTS}


def own_words(agent: str, text: str) -> str:
    """The user's own words in a text, without additions of the agent; empty if a program wrote all
    of it.
    """
    return words(_BY_NAME.get(agent, _UNKNOWN), without_ephemeral(text))


_MAX_PATH_CHARS: Final = 200
# Only the beginning and end of a long text are searched; agents describe the environment in one of
# them.
_ENDS_SEARCHED: Final = 48_000
_MOST_MESSAGES: Final = 3
# Every `AgentClient.directory_line` contains one of them. A plain search for these finds the few
# lines worth matching.
_NAMES: Final = (
    *("orking directory", "orking Directory", "orking in the ", "cwd", "urrent directory"),
    *("orkspace", "roject root", "orking_directory"),
)


class Workspaces:
    """Finds the working directory that a client states on a line of its own. Caches it for each
    client and system text.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, bytes], str | None] = {}

    def find(self, request: Request, client: AgentClient) -> str | None:
        """The working directory a request states, or None."""
        chain = request.conversation
        known = client.name, chain.root
        if known not in self._known:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[known] = _find_in(client, chain.system)
        if found := self._known[known]:
            return found
        # Claude Code describes the environment in a system message behind the first user message,
        # or in a reminder within it.
        later = chain.system_messages(_MOST_MESSAGES)
        return _find_in(client, (*later, *_texts_of_programs(chain, client)))


def _find_in(client: AgentClient, texts: Iterable[str]) -> str | None:
    for text in texts:
        if len(text) > 2 * _ENDS_SEARCHED:
            text = keep_ends(text, _ENDS_SEARCHED, _ENDS_SEARCHED)
        for name in _NAMES:
            at = text.find(name)
            while at >= 0:
                found = client.directory_line.match(text, text.rfind("\n", 0, at) + 1)
                if found and (path := _tidy(found[1])):
                    return path
                line_end = text.find("\n", at)
                at = text.find(name, line_end) if line_end >= 0 else -1
    return None


def _texts_of_programs(chain: MessageChain, client: AgentClient) -> list[str]:
    """What the client itself wrote into the first user messages, up to the person's first words."""
    found: list[str] = []
    for texts in chain.first_user_texts(_MOST_MESSAGES):
        is_spoken = False
        for text in texts:
            own = without_ephemeral(text)
            if not words(client, own):
                found.append(text)
                continue
            is_spoken = True
            if own is not text and (own_at := text.find(own)) > 0:
                found.append(text[:own_at])
        if is_spoken:
            break
    return found


def _tidy(path: str) -> str | None:
    path = path.strip().rstrip(".,;:")
    path = path.rstrip("/\\") or path[:1]
    return path if 0 < len(path) <= _MAX_PATH_CHARS else None
