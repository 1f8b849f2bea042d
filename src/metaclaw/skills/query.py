"""From what arrived as a user's message to what the user said: the retrieval query.

Envelopes, timestamps, sender records, reminders and descriptions of the machine are much the same from turn to turn, so a query
that holds them finds the same skills every time. They are taken out. Of a long paste only the beginning and end are looked at.
"""

import re

from metaclaw.skills import channels

MAX_QUERY_CHARS = 4_500
_HEAD_CHARS, _TAIL_CHARS = 3_000, 1_500
_BLOCKS_SOUGHT = 8  # tagged blocks are cheap to find and may be long: they are looked for in that much more text
_WORD = re.compile(r"[^\W\d_]{3,20}")
_URL_NOISE = frozenset(("www", "com", "org", "net", "html", "htm", "php", "index"))
# Each kind of line in `channels.LINES` has one of these.
_SIGNS_OF_LINES = (":", "=", ">", "--", "mage back", "MAGE BACK", "via /", "VIA /", "rom my", "ROM MY", "rom My")
_NOT_A_SENDER = frozenset(("fix", "bug", "note", "todo", "task", "question", "update", "error", "warning", "help", "re", "fwd"))


def query_text(task: str) -> str:
    """The user's own words in a message, on one line; empty where there are none.

    It runs for every task on the request path, so a pattern is tried only where a character it cannot do without is there.
    """
    text = _ends(_without_blocks_at_ends(task) if "<" in task else task).replace("\r\n", "\n")
    text = channels.DATA_URL.sub(" ", text) if "data:" in text else text
    if _has_sign_of_lines(text):
        # Each match is a whole line, so where there is but one line it is looked at once and not from every character on.
        text = channels.LINES.sub("", text) if "\n" in text else "" if channels.LINES.match(text) else text
    text = _without_brackets(text) if "[" in text else text
    text = _without_untrusted(text) if "):" in text else text
    text = channels.FENCE.sub(_without_metadata, text) if "```" in text else text
    text = channels.BARE_JSON_LINE.sub(_without_metadata, text) if "{" in text else text
    text = _without_notes(text) if "[" in text or "<" in text else text
    text = channels.URL.sub(_words_of_url, text) if "://" in text else text
    text = _without_identifiers(text)
    tail = channels.CLIENT_TAIL.search(text) if "\n" in text else channels.CLIENT_TAIL.match(text)
    return " ".join((text[: tail.start()] if tail else text).split()).strip(" \"'")[:MAX_QUERY_CHARS]


def _has_sign_of_lines(text: str) -> bool:
    for sign in _SIGNS_OF_LINES:  # noqa: SIM110 - any() with a generator takes longer than the search
        if sign in text:
            return True
    return False


def _without_brackets(text: str) -> str:
    return _without_history(channels.TIMESTAMP.sub("", text))


def _without_notes(text: str) -> str:
    text = channels.QUOTED_REPLY.sub("\n", text)
    return channels.NOTES.sub(" ", channels.ENVELOPE.sub(_sender_unless_metadata, text))


def _ends(text: str) -> str:
    if len(text) <= _HEAD_CHARS + _TAIL_CHARS:
        return text
    return text[:_HEAD_CHARS] + "\n" + text[-_TAIL_CHARS:]


def _without_blocks_at_ends(text: str) -> str:
    head, tail = _HEAD_CHARS * _BLOCKS_SOUGHT, _TAIL_CHARS * _BLOCKS_SOUGHT
    if len(text) <= head + tail:
        return _without_blocks(text)
    return _without_blocks(text[:head]) + "\n" + _without_blocks(text[-tail:], begins_within=True)


def _without_blocks(text: str, *, begins_within: bool = False) -> str:
    """Drop tagged blocks, also nested ones. One that is not closed goes on to the end; a closing tag alone means, where the text
    `begins_within` a longer one, that all before it was inside."""
    kept: list[str] = []
    at = depth = 0
    for edge in channels.BLOCK_EDGE.finditer(text):
        if depth == 0:
            kept.append(text[at : edge.start()])
        if edge["start"]:
            depth += 1
        elif depth:
            depth -= 1
        elif begins_within:
            kept.clear()
        at = edge.end()
    if depth == 0:
        kept.append(text[at:])
    return "\n".join(kept)


def _without_history(text: str) -> str:
    """Of a group chat's pending messages keep the one to be answered."""
    history = channels.HISTORY.search(text)
    current = channels.CURRENT.search(text, history.end() if history else 0)
    before = text[: history.start()] if history else ""
    if current:
        return before + text[current.end() :]
    return before if history else text


def _without_untrusted(text: str) -> str:
    """Drop each heading that calls what follows untrusted, with the fenced block or the paragraph it heads."""
    kept: list[str] = []
    at = 0
    while heading := channels.UNTRUSTED_HEADING.search(text, at):
        kept.append(text[at : heading.start()])
        close = "```" if heading["fence"] else "\n\n"
        end = text.find(close, heading.end())
        at = len(text) if end < 0 else end + len(close)
    return "\n".join((*kept, text[at:]))


def _without_metadata(match: re.Match[str]) -> str:
    return " " if channels.METADATA_KEY.search(match[0]) else match[0]


def _sender_unless_metadata(match: re.Match[str]) -> str:
    """Of an envelope keep nothing, and of what looks like a sender's name behind it only what is none ("fix: …")."""
    sender = match["sender"] or ""
    return sender if sender.strip(" :").casefold() in _NOT_A_SENDER else ""


def _without_identifiers(text: str) -> str:
    own_name = channels.OWN_NAME.match(text)
    text = text[own_name.end() :] if own_name else text
    text = channels.MENTIONS.sub(" ", text) if "<" in text else text
    text = channels.PHONES.sub(" ", text) if "+" in text else text
    text = channels.ACCOUNTS.sub(" ", text) if "_" in text else text
    return channels.UUIDS.sub(" ", text) if text.count("-") >= 4 else text


def _words_of_url(match: re.Match[str]) -> str:
    """What an address is about: the last words of its host and path."""
    address = match[1].partition("?")[0].partition("#")[0]
    words = [word for word in _WORD.findall(address[:300]) if word.casefold() not in _URL_NOISE]
    return " " + " ".join(words[-8:]) + " "
