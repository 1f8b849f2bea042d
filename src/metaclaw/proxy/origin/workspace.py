"""Which project a session is about: the working directory that agents put into their prompts.

Only what the agent's own program wrote is searched: system texts, and the user messages before the person's own first words, where
some agents describe their environment. A directory that a person or a tool's output names is none.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from metaclaw.domain.turn import Scope
from metaclaw.proxy.origin.clients import Client
from metaclaw.proxy.origin.request import Request
from metaclaw.proxy.origin.tasks import words

_MAX_CHARS: Final = 200
# Of a long text only its beginning and end are searched; agents describe the environment in either.
_HEAD_CHARS, _TAIL_CHARS = 48_000, 48_000
_MOST_MESSAGES: Final = 3
_MAX_KNOWN: Final = 1024
# What agents call it, without the first letter, which some write large; what follows the name, and the path itself.
_NAMES: Final = (
    "orking directory",
    "orking Directory",
    "cwd",
    "urrent directory",
    "working in the directory",
    "orkspace",
    "roject root",
    "orking_directory",
)
_STATED: Final = re.compile(
    r"(?i:[ _](?:root|folder|directory|path)){0,2}(?:\*\*)?[\"']?(?: is:?|[ \t]?(?:is)?[:=(>]\*{0,2})\s{0,4}[`\"']?"
    r"(?P<path>(?:/|~/|[A-Za-z]:[\\/])[^\n\r\"'`<>|*?]{0,300}?)(?=[`\"'<)]|[.,;]?(?:\s*[\n\r]|\s*\Z)|[.,;] |\s\()"
)
_DIRECTORY: Final = re.compile(r"/|~/|[A-Za-z]:[\\/]")


class Workspaces:
    """Finds the working directory that requests name. Remembers it for each system text."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, str | None] = {}

    def find(self, request: Request, client: Client) -> str | None:
        """The working directory a request names, or None."""
        root = request.conversation.root
        if root not in self._known:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[root] = _find_in(map(_ends, request.conversation.system))
        if found := self._known[root]:
            return found
        # Claude Code describes the environment in a system message behind the person's first words.
        later = map(_ends, request.conversation.system_messages(_MOST_MESSAGES))
        return _find_in(later) or _find_in(_messages_of_programs(request, client))


def _find_in(texts: Iterable[str]) -> str | None:
    for text in texts:
        for name in _NAMES:
            at = text.find(name)
            while at >= 0:
                found = _STATED.match(text, at + len(name))
                if found:
                    return _tidy(found["path"])
                at = text.find(name, at + len(name))
    return None


def identity(scope: Scope) -> Scope:
    """What of a scope tells sessions apart. A directory does not: where it comes from the prompt it is known only once the session
    is, and what is recorded does not say where it came from."""
    workspace = scope.workspace
    return Scope(scope.user) if workspace is not None and _DIRECTORY.match(workspace) else scope


def _messages_of_programs(request: Request, client: Client) -> Iterator[str]:
    spoken = request.conversation
    for position in spoken.users[:_MOST_MESSAGES]:
        text = spoken.text_at(position)
        if words(client, text):
            # The environment may stand before the person's words in the same message, in a part of its own.
            yield from _marked(spoken.texts_at(position), client)
            return
        yield _ends(text)


def _marked(parts: Iterable[str], client: Client) -> Iterator[str]:
    for part in parts:
        if not words(client, part):
            yield _ends(part)


def _ends(text: str) -> str:
    return text if len(text) <= _HEAD_CHARS + _TAIL_CHARS else f"{text[:_HEAD_CHARS]}\n{text[-_TAIL_CHARS:]}"


def _tidy(path: str) -> str | None:
    path = path.strip().rstrip(".,;:")
    path = path.rstrip("/\\") or path[:1]
    return path if 0 < len(path) <= _MAX_CHARS else None
