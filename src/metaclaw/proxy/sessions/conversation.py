"""A request's history as a chain of digests, one for every prefix. Requests of one conversation
share their prefixes' digests.

The digests ignore what clients rewrite between two requests of one conversation: whether text is a
string or one block, cache_control, floating reminders, system messages in the middle, the
punctuation of tool-call ids, reasoning, the output of old tool calls (many clients clear it), and
pictures. The chain begins with the digest of the system text; tools are not part of it.

Additions to the user's words that several clients make are removed here; those of a single client
in its `AgentClient`."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from typing import ClassVar, Final, NamedTuple

import msgspec

from metaclaw.domain.chat import Json, Wire
from metaclaw.proxy.http.body import Body, count_parts
from metaclaw.wires import wire_format

_REMINDER: Final = "<system-reminder>"
_FLOATING: Final = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>"
# Gemini CLI writes it anew when a conversation is resumed.
_SETUP: Final = "<session_context>"
_EPHEMERAL_SPAN: Final = re.compile(
    r"<system-reminder>.*?(?:</system-reminder>\s*|\Z)|<session_context>.*?(?:</session_context>\s*|\Z)|<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>.*?(?:<<<END_OPENCLAW_INTERNAL_CONTEXT>>>\s*|\Z)",
    re.DOTALL,
)
# aider moves its files and its repository map to the end of the history, each with a fixed reply,
# and adds a reminder to the newest prompt only.
AIDER_FILES: Final = (
    "I have *added these files to the chat*",
    "Here are summaries of some files present in my git repository",
    "Here are some READ ONLY files",
    "I am not sharing any files that you can edit yet",
)
_CANNED_REPLIES: Final = frozenset(
    (
        "Ok, any changes I propose will be to those files.",
        "Ok, I won't try and edit those files without asking first.",
        "Ok, I will use these files as references.",
    )
)
_REMINDERS: Final = re.compile(
    r"\n\n(?:To suggest changes to a file you MUST|# \*SEARCH/REPLACE block\* Rules|# File editing"
    r" rules).*",
    re.DOTALL,
)
_HEARTBEATS: Final = (
    *("Read HEARTBEAT.md", "[HEARTBEAT", "Heartbeat poll", "[Heartbeat poll"),
    *("HEARTBEAT ", "HEARTBEAT:", "HEARTBEAT\n"),
)


def lasting(role: str, text: str) -> str:
    """The part of a message's text that its client sends again unchanged in the next request."""
    if role != "user":
        return "" if len(text) < 60 and text in _CANNED_REPLIES else text
    if "<" in text:
        text = without_ephemeral(text)
    if text.startswith(AIDER_FILES):
        return ""
    return without_reminder(text) if "\n\n" in text else text


def without_ephemeral(text: str) -> str:
    """Remove reminders and floating context; an unclosed span reaches to the end."""
    if "<" in text and (_REMINDER in text or _FLOATING in text or _SETUP in text):
        return _EPHEMERAL_SPAN.sub("", text).strip()
    return text


def without_reminder(text: str) -> str:
    """Remove the rules for editing files that aider adds to a prompt."""
    return _REMINDERS.sub("", text) if "\n\nTo sug" in text or "\n\n# " in text else text


def is_heartbeat(text: str) -> bool:
    """Whether a prompt only asks an unattended agent whether there is anything to do."""
    return (
        text.startswith(_HEARTBEATS)
        or text == "HEARTBEAT"
        or (text.endswith("reply HEARTBEAT_OK.") and len(text) < 2000)
    )


DIGEST_BYTES: Final = 32
# Lone surrogates, numbers beyond 64 bits, absurd nesting.
_UNENCODABLE: Final = (ValueError, TypeError, OverflowError, RecursionError)
_encode = msgspec.msgpack.Encoder().encode
# Tuples, not sets: the values looked up in them come from requests and may not be hashable.
_TEXT_TYPES: Final = ("text", "input_text", "output_text", None)
_SYSTEM_ROLES: Final = ("system", "developer")
_UNSEEN_BLOCKS: Final = ("thinking", "redacted_thinking", "reasoning")
_UNSEEN_ITEMS: Final = ("reasoning", "additional_tools", "item_reference", "compaction", None)


_Known = tuple[bytes | None, bool, int]
# From here on a chain is worth being cached, and up to there it may be: that bounds the memory.
_CACHED_CHAINS: Final = range(16, 4_096)
_MOST_CHAINS: Final = 64
_BEGINNING: Final = 4


class _Chained(NamedTuple):
    """The fingerprints and the lists of a `MessageChain`, and the number of its parts."""

    marks: list[int]
    digests: list[bytes]
    indices: list[int]
    users: list[int]
    parts: int


class DigestCache:
    """Caches the digests of recent entries, by a fingerprint that is much cheaper to compute, and
    the chains of the last long conversations, which most requests continue.

    A conversation repeats its whole history with every request. The fingerprint is Python's hash of
    the entry's bytes, which differs from process to process; the digest does not depend on it."""

    def __init__(self, limit: int = 16_384) -> None:
        self._limit = limit
        self._known: dict[int, _Known] = {}
        self._chains: dict[tuple[object, ...], _Chained] = {}

    def begun(self, start: tuple[bytes, int], marks: list[int]) -> _Chained | None:
        """The cached chain with which the one of these fingerprints begins. `start` is what is
        before both.
        """
        if len(marks) in _CACHED_CHAINS:
            found = self._chains.get((*start, *marks[:_BEGINNING]))
            if found is not None and marks[: len(found.marks)] == found.marks:
                return found
        return None

    def keep(self, start: tuple[bytes, int], chain: _Chained) -> None:
        """Cache a chain instead of the one that began like it."""
        if len(chain.marks) in _CACHED_CHAINS:
            key = (*start, *chain.marks[:_BEGINNING])
            self._chains.pop(key, None)
            if len(self._chains) >= _MOST_CHAINS:
                del self._chains[next(iter(self._chains))]
            self._chains[key] = chain

    def root(self, texts: list[str]) -> bytes:
        """The digest of the system text, which begins a chain."""
        mark = hash(tuple(texts))
        found = self._known.get(mark)
        if found is None:
            found = (sha256(_bytes(texts)).digest(), False, 0)
            self._keep(mark, found)
        return found[0] or b""

    @property
    def recall(self) -> "Callable[[int], _Known | None]":
        """A look-up of the result of `learn` by fingerprint; None if it is not cached."""
        return self._known.get

    def learn(self, mark: int, item: Json, parts: int) -> "_Known":
        """The entry's digest (None if the chain ignores it), whether it holds words of a user, and
        `parts`, the number of its parts.
        """
        payload = _payload(item)
        found: _Known
        if payload is None:
            found = (None, False, parts)
        else:
            has_words = payload[0] == "user" and str in map(type, payload[1:])
            try:
                found = (sha256(_encode(payload)).digest(), has_words, parts)
            except _UNENCODABLE:
                return (
                    os.urandom(DIGEST_BYTES),
                    has_words,
                    parts,
                )  # equals no other digest: a new conversation
        self._keep(mark, found)
        return found

    def _keep(self, mark: int, found: "_Known") -> None:
        if len(self._known) >= self._limit:
            self._known.clear()
        self._known[mark] = found


class MessageChain:
    """The chain of one request.

    `digests[i]` covers the root and the first `i + 1` entries that are not ignored; `indices[i]` is
    the index of entry `i` in the client's list (-1 for a history that is not in the request).
    `users` are the positions of entries with words of a user."""

    __slots__ = ("_first", "_texts", "digests", "indices", "items", "root", "system", "users")

    def __init__(
        self, wire: Wire, body: Mapping[str, Json], cache: DigestCache, earlier: bytes | None = None
    ) -> None:
        """`earlier` is the digest of a history that the provider stores (previous_response_id)."""
        self.items, raws = _items(wire, body)
        self.system = _plain_texts(wire_format(wire).system_texts(body))
        self._first = _leading_system(self.items, self.system)
        self.root = cache.root(self.system)
        self.digests: list[bytes] = [] if earlier is None else [earlier]
        self.indices: list[int] = [] if earlier is None else [-1]
        self.users: list[int] = []
        self._texts: dict[int, list[str]] = {}
        read = body if isinstance(body, Body) else None
        self._walk(raws, earlier or self.root, cache, read)

    def _walk(
        self, raws: list[bytes], before: bytes, cache: DigestCache, read: Body | None
    ) -> None:
        """Chain the entries behind the leading system messages. Raises WireError 413 if the body
        has too many parts.
        """
        items, first, recall = self.items, self._first, cache.recall
        led = sum(map(count_parts, islice(items, first))) if first else 0
        digests, indices, users = self.digests, self.indices, self.users
        start, marks = (before, first), list(map(hash, raws[first:]))
        begun, begin, parts = cache.begun(start, marks), 0, led
        if begun is not None:
            digests[:], indices[:], users[:] = begun.digests, begun.indices, begun.users
            begin, before, parts = len(begun.marks), self.head, led + begun.parts
        for index, mark in enumerate(marks[begin:], first + begin):
            known = recall(mark)
            if known is None:
                item = items[index]
                count = count_parts(item)
                if read is not None:
                    # Before `learn`, which takes long for too many parts.
                    read.take_parts(parts + count)
                known = cache.learn(mark, item, count)
            digest, has_words, count = known
            parts += count
            if digest is not None:
                if has_words:
                    users.append(len(digests))
                before = sha256(before + digest).digest()
                digests.append(before)
                indices.append(index)
        if read is not None:
            read.take_parts(parts)
        if all(map(recall, marks[begin:])):  # not if a digest is one that must not occur again
            cache.keep(start, _Chained(marks, digests, indices, users, parts - led))

    @property
    def head(self) -> bytes:
        return self.digests[-1] if self.digests else self.root

    def system_messages(self, most: int) -> list[str]:
        """The texts of system messages between other messages, among the first `most` entries."""
        found: list[str] = []
        for item in islice(self.items, self._first, most):
            if isinstance(item, dict) and item.get("role") in _SYSTEM_ROLES:
                found += _plain_texts(item.get("content"))
        return found

    def first_user_texts(self, most: int) -> Iterator[list[str]]:
        """The texts of each of the first `most` user messages, with their ephemeral parts."""
        count = 0
        for item in islice(self.items, self._first, None):  # a slice would decode all of them
            if isinstance(item, dict) and item.get("role") == "user":
                yield _plain_texts(item.get("content"))
                count += 1
                if count == most:
                    return

    def texts_at(self, position: int) -> list[str]:
        """The texts of the entry at this position, without ephemeral parts. Cached, because the
        newest are needed often.
        """
        texts = self._texts.get(position)
        if texts is None:
            texts = self._texts[position] = item_texts(self.items[self.indices[position]])
        return texts

    def text_at(self, position: int) -> str:
        """The texts of the entry at this position, joined."""
        texts = self.texts_at(position)
        return texts[0] if len(texts) == 1 else "\n".join(texts)

    def answer_after(self, position: int) -> tuple[set[str], str] | None:
        """The tool-call ids and the words of the answer right behind this position, or None."""
        calls: set[str] = set()
        words: list[str] = []
        answered = False
        for index in self.indices[position + 1 :]:
            item = self.items[index]
            if not isinstance(item, dict) or not _is_answer(item):
                break
            answered = True
            calls |= _call_ids(item)
            words += item_texts(item)
        return (calls, "".join(words)) if answered else None

    def has_answers_after(self, position: int, more_than: int) -> bool:
        """Whether the history has more answers than that behind this position."""
        is_answer = False
        for index in self.indices[position + 1 :]:
            item = self.items[index]
            was_answer, is_answer = is_answer, isinstance(item, dict) and _is_answer(item)
            more_than -= is_answer and not was_answer
            if more_than < 0:
                return True
        return False

    def tail_at(self, position: int) -> int:
        """A cheap fingerprint of the tool outputs at this position, which the chain ignores; 0 if
        there are none.
        """
        index = self.indices[position] if position < len(self.indices) else -1
        item = self.items[index] if index >= 0 else None
        if not isinstance(item, dict):
            return 0
        content, blocks = item.get("output"), item.get("content")
        if item.get("role") == "tool":
            content = blocks
        elif isinstance(blocks, list):
            content = [
                block.get("content")
                for block in blocks
                if isinstance(block, dict) and block.get("type") == "tool_result"
            ]
        return hash(_bytes(_flat_texts(content))) if content else 0


def item_texts(item: Json) -> list[str]:
    """The texts of one entry, without ephemeral parts."""
    content = item.get("content") if isinstance(item, dict) else item
    if isinstance(content, str):
        kept = without_ephemeral(content) if "<" in content else content
        return [kept] if kept else []
    return [kept for text in _plain_texts(content) if (kept := without_ephemeral(text))]


def bare_id(value: Json) -> str:
    """A tool-call id without punctuation, which some clients strip."""
    if not isinstance(value, str):
        return ""
    bare = value.replace("_", "").replace("-", "")
    return bare if bare.isalnum() else "".join(filter(str.isalnum, bare))


def _is_answer(item: dict[str, Json]) -> bool:
    role = item.get("role")
    return (
        role == "assistant"
        if isinstance(role, str)
        else not str(item.get("type")).endswith("_output")
    )


def _call_ids(item: dict[str, Json]) -> set[str]:
    if isinstance(item.get("call_id"), str):
        return {bare_id(item["call_id"])}
    calls = (*_list(item.get("tool_calls")), *_list(item.get("content")))
    return {
        bare_id(call.get("id"))
        for call in calls
        if isinstance(call, dict) and call.get("id") and call.get("type") != "text"
    }


def _items(wire: Wire, body: Mapping[str, Json]) -> tuple[Sequence[Json], list[bytes]]:
    """The entries, and their bytes, from which fingerprints are made: as received if available,
    else encoded again.
    """
    if isinstance(body, Body) and body.listed is not None:
        return body.listed.items, body.listed.raws
    items = body.get(wire_format(wire).list_key)
    if isinstance(items, str):
        items = [items]
    if not isinstance(items, list):
        return (), []
    try:
        return items, list(map(_encode, items))
    except _UNENCODABLE:
        return items, [_bytes(item) for item in items]


def _leading_system(items: Sequence[Json], texts: list[str]) -> int:
    """Append the leading system messages to `texts`; return the index of the first other entry."""
    index = 0
    for item in items:
        if not isinstance(item, dict) or item.get("role") not in _SYSTEM_ROLES:
            break
        texts += _plain_texts(item.get("content"))
        index += 1
    return index


def _payload(item: Json) -> list[Json] | None:
    """The part of an entry that its digest covers: its role, then its texts, calls and results;
    None if there is none.
    """
    if isinstance(item, str):
        return ["user", item]
    if not isinstance(item, dict):
        return None
    role = item.get("role")
    if not isinstance(role, str):
        return _typed_item(item)
    if role in _SYSTEM_ROLES:
        return None
    if role == "tool":
        return ["tool", bare_id(item.get("tool_call_id"))]
    content = item.get("content")
    payload: list[Json] = [role]
    if isinstance(content, str):
        if text := lasting(role, content):
            payload.append(text)
    elif isinstance(content, list):
        for block in content:
            _add_block(payload, role, block)
    calls = item.get("tool_calls")
    if isinstance(calls, list):
        for call in calls:
            _add_call(payload, call)
    return payload if len(payload) > 1 or not content else None


def _add_block(payload: list[Json], role: str, block: Json) -> None:
    if isinstance(block, str):
        payload.append(block)
    if not isinstance(block, dict):
        return
    kind = block.get("type")
    text = block.get("text")
    if isinstance(text, str) and kind in _TEXT_TYPES:
        if kept := lasting(role, text):
            payload.append(kept)
    elif kind == "tool_result":
        payload.append(["result", bare_id(block.get("tool_use_id"))])
    elif kind == "tool_use":
        payload.append(["call", bare_id(block.get("id")), block.get("name"), block.get("input")])
    elif kind not in _UNSEEN_BLOCKS:
        payload.append([kind, bare_id(block.get("id"))])


def _add_call(payload: list[Json], call: Json) -> None:
    if not isinstance(call, dict):
        return
    function = call.get("function")
    if isinstance(function, dict):
        payload.append(
            ["call", bare_id(call.get("id")), function.get("name"), function.get("arguments")]
        )
    else:
        payload.append(["call", bare_id(call.get("id")), call.get("custom")])


def _typed_item(item: dict[str, Json]) -> list[Json] | None:
    """The payload of an item without a role in the responses wire: a call, its output, or another
    type of item.
    """
    kind = item.get("type")
    if kind in _UNSEEN_ITEMS:
        return None
    if isinstance(kind, str) and kind.endswith("_output"):
        return ["tool", bare_id(item.get("call_id"))]
    return [
        kind,
        bare_id(item.get("call_id")),
        item.get("name"),
        item.get("arguments"),
        item.get("input"),
        item.get("action"),
    ]


def _bytes(value: object) -> bytes:
    try:
        return _encode(value)
    except _UNENCODABLE:
        # Equals no other value: a new conversation.
        return os.urandom(DIGEST_BYTES)


def _block_text(block: Json) -> str | None:
    if isinstance(block, str):
        return block
    if isinstance(block, dict) and block.get("type") in _TEXT_TYPES:
        text = block.get("text")
        return text if isinstance(text, str) else None
    return None


def _plain_texts(content: Json) -> list[str]:
    if isinstance(content, str):
        return [content] if content else []
    if not isinstance(content, list):
        return []
    return [text for text in map(_block_text, content) if text]


def _flat_texts(value: Json, depth: int = 3) -> list[Json]:
    """The texts of a tool's output, which may be a string, a block, or nested lists of them."""
    if isinstance(value, str):
        return [value]
    text = _block_text(value)
    if text is not None:
        return [text]
    return [text for part in _list(value) for text in _flat_texts(part, depth - 1)] if depth else []


def _list(value: Json) -> Iterable[Json]:
    return value if isinstance(value, list) else ()


_SYSTEM_HEAD_CHARS: Final = 4000


class Request:
    """Headers (lower case), body and conversation of a request, with the values that most rules
    need.
    """

    __slots__ = ("body", "conversation", "has_tools", "headers", "prompt_parts", "system", "wire")

    def __init__(
        self,
        wire: Wire,
        headers: Mapping[str, str],
        body: Mapping[str, Json],
        cache: DigestCache,
        earlier: bytes | None = None,
    ) -> None:
        self.wire = wire
        self.headers = headers
        self.body = body
        self.conversation = MessageChain(wire, body, cache, earlier)
        self.has_tools = _has_tools(body, self.conversation.items)
        texts = self.conversation.system
        self.system = "\n".join(texts[:4])[:_SYSTEM_HEAD_CHARS]
        users = self.conversation.users
        self.prompt_parts = self.conversation.texts_at(users[-1]) if users else []

    @property
    def prompt(self) -> str:
        """The last user text, also if tool outputs or answers follow it."""
        parts = self.prompt_parts
        return parts[0] if len(parts) == 1 else "\n".join(parts)

    @property
    def last_parts(self) -> list[str]:
        """The texts of the last message; empty if it is not a user message."""
        spoken = self.conversation
        return (
            self.prompt_parts
            if spoken.users and spoken.users[-1] == len(spoken.digests) - 1
            else []
        )

    @property
    def last_text(self) -> str:
        """`last_parts`, joined."""
        return self.prompt if self.last_parts else ""

    def header(self, name: str) -> str:
        return self.headers.get(name, "")

    def text(self, *path: str) -> str:
        """A string in the body, or an empty string."""
        value: Json | Mapping[str, Json] = self.body
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        return value if isinstance(value, str) else ""


def _has_tools(body: Mapping[str, Json], items: Sequence[Json]) -> bool:
    """Whether the request offers tools, in any of the places where clients put them."""
    if body.get("tools") or body.get("functions"):
        return True
    first = items[0] if items else None
    return isinstance(first, dict) and first.get("type") == "additional_tools"


@dataclass(frozen=True, slots=True)
class Helper:
    """A sub-agent with the session identifier of the agent that started it. `of` is the sub-agent
    that started it, if any.
    """

    id: str
    of: str | None = None


def line_with_path(*beginnings: str) -> re.Pattern[str]:
    """A pattern for a whole line that begins like this, goes on with an absolute path, its group,
    and has nothing behind it.
    """
    path = r"((?:/|~/|[A-Za-z]:[\\/])[^\n\r\"`<>|*?]{0,300}?)"
    return re.compile(
        rf"[ \t]*(?:{'|'.join(beginnings)}){path}(?:</cwd>|[`\"'.,;]{{1,2}}|\) Files)?[ \t]*\r?$",
        re.MULTILINE,
    )


def line_behind(text: str, beginning: str, *, is_last: bool = False) -> str | None:
    """What follows these words in the first or last line that begins with them; None if there is no
    such line.
    """
    text = f"\n{text}"
    at = (text.rfind if is_last else text.find)(f"\n{beginning}")
    return text[at + 1 + len(beginning) :].partition("\n")[0] if at >= 0 else None


_DIRECTORY: Final = r"(?:[- ](?:root|folder|directory|path)){0,2}"
_DIRECTORY_LINE: Final = line_with_path(
    r"(?i:(?:[-*•] )?\*{0,2}(?:your )?(?:current |primary )?"
    rf"(?:working[ _]directory|cwd|current directory|workspace{_DIRECTORY}|project"
    rf" root{_DIRECTORY})"
    r"(?: is)?\*{0,2}[:=]\*{0,2} {0,4}[`\"']?)",
    "<cwd>",
    r"#{0,4} ?Current (?:Working|Workspace) Directory \(",
    "I'm currently working in the directory: ",
)


@dataclass(frozen=True)
class AgentClient:
    """A kind of agent, recognised by `headers` or by its system text. Subclasses implement the
    peculiarities of one agent.

    `headers` are alternatives. An alternative matches if every header it names is present and
    begins with one of the given strings; an empty string matches any value."""

    name: str
    headers: tuple[Mapping[str, tuple[str, ...]], ...] = ()
    directory_line: ClassVar[re.Pattern[str]] = _DIRECTORY_LINE
    """The line that states the working directory; the shapes of many clients, where this client's
    own is not known.
    """

    def is_system_text(self, text: str) -> bool:
        """Whether only this client sends such a system text."""
        return False

    def key(self, request: Request) -> str | None:
        """The session identifier from a header that only this client uses."""
        return None

    def text_key(self, request: Request) -> str | None:
        """The session identifier from the text of the conversation."""
        return None

    def helper(self, request: Request) -> Helper | None:
        """The sub-agent that sent the request, if it has an identifier."""
        return None

    def is_subagent(self, request: Request) -> bool:
        """Whether a sub-agent without an identifier sent the request."""
        return False

    def channel(self, request: Request) -> str | None:
        """The channel on which the person is (see `Scope`), in the client's words. It comes from
        lines that the client wrote, never from what a person or a tool wrote.
        """
        return None

    def side(self, request: Request) -> str | None:
        """The reason code of a side turn; None for a main turn."""
        return None

    def words(self, text: str) -> str:
        """The user's own words: the text without this client's additions; empty if nothing is
        left.
        """
        return text


def reason_of(beginnings: Mapping[str, str], *texts: str) -> str | None:
    """The reason code of the first of the `beginnings` with which a text starts, or None."""
    return next(
        (
            reason
            for begins, reason in beginnings.items()
            if any(text.startswith(begins) for text in texts)
        ),
        None,
    )
