"""What the person wants: their own words, and where in the history each of their tasks begins."""

from typing import Final

from metaclaw.domain.session import Anchor
from metaclaw.proxy.origin.clients import Client
from metaclaw.proxy.origin.conversation import Conversation
from metaclaw.proxy.origin.glue import is_heartbeat, is_machine_text, without_machine_tags

MAX_TASK_CHARS: Final = 16_000
_MAX_READ_CHARS: Final = 64_000


def words(client: Client, text: str) -> str:
    """A person's own words in a user message; empty if a program wrote all of it. At most MAX_TASK_CHARS of them."""
    if len(text) > _MAX_READ_CHARS:
        text = text[: _MAX_READ_CHARS - MAX_TASK_CHARS] + text[-MAX_TASK_CHARS:]
    text = client.words(text.strip()).strip()
    if "<" in text:
        text = without_machine_tags(text)
    return "" if is_machine_text(text) or is_heartbeat(text) else text[:MAX_TASK_CHARS]


class Tasks:
    """The tasks visible in one request.

    `known` are the digests of user messages that began tasks up to position `upto`, where an earlier request has settled that;
    messages behind it are read. `began` says whether one of those is a task, `last` is the newest task's words of all that
    were read.
    """

    __slots__ = ("anchors", "began", "last")

    def __init__(self, spoken: Conversation, client: Client, known: frozenset[bytes] | None, upto: int) -> None:
        anchors: list[Anchor] = []
        self.began = False
        self.last = ""
        for position in spoken.users:
            digest = spoken.digests[position]
            if known is not None and position <= upto:
                if digest not in known:
                    continue
            elif said := words(client, spoken.text_at(position)):
                self.last = said
                self.began = self.began or position > upto
            else:
                continue
            anchors.append(Anchor(spoken.indices[position], digest))
        self.anchors = tuple(anchors)


def known_anchors(spoken: Conversation, known: frozenset[bytes]) -> tuple[Anchor, ...]:
    """The tasks of a session that are visible in a request that begins none."""
    return tuple(Anchor(spoken.indices[at], spoken.digests[at]) for at in spoken.users if spoken.digests[at] in known)
