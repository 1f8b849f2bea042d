"""The retrieval query: a user's own words in a message, without what chat bridges, coding agents
and mail programs add.

Envelopes, timestamps, sender records, reminders and descriptions of the machine are nearly the same
in every turn, so a query with them would find the same skills every time. They are removed. Of a
long message only the beginning and the end are used.

Each pattern is anchored or bounded, so that matching takes time linear in the text. The patterns
match only texts that programs are known to add; brackets, tags and colons that people write
("[WIP]", "<rules>", "server: nginx") stay."""

import re

from metaclaw.text import CLIENT_OUTPUT_TAGS, CLIENT_TAGS, keep_ends

_TAG = f"{CLIENT_TAGS}|{CLIENT_OUTPUT_TAGS}"
_FRAME = r"(?:[A-Z]+_)*(?:INTERNAL_CONTEXT|UNTRUSTED_CONTENT)"
_I, _M = re.IGNORECASE, re.MULTILINE

BLOCK_EDGE = re.compile(
    rf"<(?:(?P<start>(?:{_TAG})(?:["
    rf" \t][^<>\n]{{0,400}})?>|<<(?:BEGIN_)?(?!END_){_FRAME}(?:\s[^<>\n]{{0,200}})?>>>)"
    rf"|(?P<end>/(?:{_TAG})>|<<END_{_FRAME}(?:\s[^<>\n]{{0,200}})?>>>))"
)
"""The beginning or end of a block that a program added: `<system-reminder>`,
`<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>`.
"""

UNTRUSTED_HEADING = re.compile(
    r"^[^\n:()]{1,80}\((?:untrusted|metadata|data)\b[^()\n]{0,100}\):[ \t]*\n(?:["
    r" \t]*\n)?(?P<fence>```)?",
    _I | _M,
)
"""`Conversation info (untrusted metadata):` above a fenced block or a paragraph."""

HISTORY = re.compile(
    r"^\[(?:chat messages since your last reply|thread history|conversation"
    r" history)\b[^\]\n]{0,80}\]",
    _I | _M,
)
CURRENT = re.compile(r"^\[(?:your )?current message\b[^\]\n]{0,80}\]", _I | _M)
"""In group chats: the heading of earlier messages, and that of the message to answer."""

CLIENT_TAIL = re.compile(
    r"^(?:You can execute bash commands and edit files to implement|To suggest changes to a file"
    r" you MUST return"
    r"|#{1,3} Learned Skills\b|USER'S CURRENT TIME:)",
    _M,
)
"""The beginning of a client's template after the user's words; it extends to the end of the
message.
"""

METADATA_KEY = re.compile(
    r"\"(?:message_?id|chat_?id|sender_?id|chat_?type|conversation_label|is_group_chat|group_subject)\"\s*:",
    _I,
)
FENCE = re.compile(r"```[^`\n]{0,20}\n[^`]*```")
BARE_JSON_LINE = re.compile(r"^[ \t]*\{[^\n]{0,4000}\}[ \t]*$", _M)

_ZONE = r"(?:[ ]?[A-Z]{1,5}(?:[+-]\d{1,2}(?::?\d{2})?)?|[ ]?[+-]\d{2}:?\d{2})?"
_CLOCK = rf"[T ]\d{{1,2}}:\d{{2}}(?::\d{{2}}(?:\.\d{{1,9}})?)?(?:[ ]?[AP]M)?{_ZONE}"
_WHEN = (
    rf"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{{0,6}},?[ ])?\d{{4}}-\d{{2}}-\d{{2}}(?:{_CLOCK})?"
)
TIMESTAMP = re.compile(rf"\[{_WHEN}\]|\[\d{{1,2}}:\d{{2}}(?::\d{{2}})?(?:[ ][AP]M)?\]")
"""`[Sun 2026-11-15 00:40 UTC]`."""

_CHAT = (
    "Telegram|WhatsApp|Discord|Signal|iMessage|BlueBubbles|Matrix|Mattermost|MSTeams|Feishu|Lark|DingTalk|WeChat|WeCom|WebChat"
    "|Zalo|Nostr|Twitch"
)
_MAYBE_CHAT = (
    "Slack|Teams|MS Teams|Google Chat|LINE|QQ|IRC|SMS|Email|Web|Voice|Viber|Messenger|Instagram"
)
_DETAIL = (
    r"(?:\b(?:id|chat_?id|user_?id|sender|message_?id|jid|channel|thread)["
    r" ]?[:=]|@\w|#\w|\+\d|\d{1,2}:\d{2}|\d{4}-\d{2}-\d{2})"
)
ENVELOPE = re.compile(
    rf"^[ \t]*\[(?:(?:{_CHAT})\b[^\[\]\n]{{0,300}}|(?:{_MAYBE_CHAT})\b(?=[^\[\]\n]{{0,300}}{_DETAIL})[^\[\]\n]{{0,300}}"
    rf"|(?:{_MAYBE_CHAT}))\][ \t]*(?P<sender>@?[\w.-]{{1,40}}(?:[ ][\w.-]{{1,40}}){{0,2}}(?:["
    r" ]\([^()\n]{1,40}\))?:[ ])?",
    _I | _M,
)
"""`[Telegram Alice (@alice) id:123 +5m 2026-11-15 10:00 UTC] Alice: `."""

_NOTE = (
    "message_id|message id|chat_id|sender_id|user_id|from|sender|reply_to|replying to|in reply"
    " to|quoted|quoting|forwarded from|forwarded|media attached(?: \\d+/\\d+)?|media"
    " source|attachments?|attached|attached file|file|image|photo|picture|audio|voice|voice"
    " message|video|sticker|document|location|contact|reaction|pasted text(?: #\\d+)?|image"
    " #\\d+|id|truncated|system message"
)
NOTES = re.compile(
    rf"\[/?(?:{_NOTE})(?:[ ]?[:=][^\[\]\n]{{0,600}}|["
    r" ]id:[^\[\]\n]{0,200})?\]|\[/(?:replying|quoting)\]"
    r"|\[\[[ ]?(?:reply_to|audio_as_voice|tts)[^\[\]\n]{0,80}\]\]|<media:[a-z]{1,20}>"
    r"|\[(?:replying to|in reply to|quoted|quoting|forwarded from)[ ][^\[\]\n]{1,200}\]",
    _I,
)
"""`[message_id: 12]`, `[media attached: /tmp/a.png (image/png)]`, `<media:audio>`."""

QUOTED_REPLY = re.compile(
    r"^\[(?:replying to|quoted|quoting|in reply"
    r" to)\b[^\n]{0,300}\n(?:[^\n]*\n){0,40}?\[/(?:replying|quoted|quoting|in reply to)\]",
    _I | _M,
)

LINES = re.compile(
    r"^[ \t]*(?:Runtime:["
    r" \t]*\w+=[^\n]*|(?:agent|sessionId|session|channel|host|model)=[^\n|]{0,200}\|[^\n]*"
    r"|Current time:[^\n]*|Current date(?: and time)?:[^\n]*|System:[ \t]*\[[^\n]*|To send an image"
    r" back,[^\n]*"
    r"|A new session was started via /[^\n]*"
    r"|(?:session|sender|chat|user|channel|thread|message|conversation|group|guild|workspace)["
    r" _-]?(?:id|key)[ \t]?[:=][^\n]{0,300}"
    r"|>[^\n]*|On [^\n]{5,160} wrote:|-{2,}[ \t]?(?:Original|Forwarded) Message[^\n]*|Sent from my"
    r" [^\n]{1,60})[ \t]*$",
    _I | _M,
)
"""Whole lines that a program wrote: `Runtime: agent=main | …`, quoted mail, `chat_id: 5`."""

DATA_URL = re.compile(r"data:[\w.+-]{1,60}/[\w.+-]{1,60};base64,[A-Za-z0-9+/=]*")
URL = re.compile(r"\b(?:https?|ftp|file|media|slack|tg)://([^\s<>\"')\]]{1,2000})")
MENTIONS = re.compile(r"<(?:(?:@[!&]?|#|!|a?:)[\w:|.-]{1,80}|/?command-args)>")
PHONES = re.compile(r"\+(?<![\w.]\+)\d{7,15}\b")
ACCOUNTS = re.compile(r"o[ucm]_[0-9a-f]{16,64}\b")
UUIDS = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", _I)
OWN_NAME = re.compile(r"\s*@[\w.-]{2,60}(?=\s)")
"""Identifiers: `<@U024BE7LH>`, telephone numbers, account ids, and the bot's own name at the
beginning of a message.
"""

MAX_QUERY_CHARS = 4_500
_HEAD_CHARS, _TAIL_CHARS = 3_000, 1_500
_BLOCKS_SOUGHT = (
    8  # tagged blocks may be long and are cheap to find: they are searched in 8 times as much text
)
_WORD = re.compile(r"[^\W\d_]{3,20}")
_URL_NOISE = frozenset(("www", "com", "org", "net", "html", "htm", "php", "index"))
# Each kind of line in `LINES` has one of these.
_SIGNS_OF_LINES = (
    ":",
    "=",
    ">",
    "--",
    "mage back",
    "MAGE BACK",
    "via /",
    "VIA /",
    "rom my",
    "ROM MY",
    "rom My",
)
_NOT_A_SENDER = frozenset(
    (
        "fix",
        "bug",
        "note",
        "todo",
        "task",
        "question",
        "update",
        "error",
        "warning",
        "help",
        "re",
        "fwd",
    )
)


def query_text(task: str) -> str:
    """The user's own words in a message, on one line; may be empty. On the request path: a pattern
    is tried only if its characters occur."""
    text = keep_ends(
        _without_blocks_at_ends(task) if "<" in task else task, _HEAD_CHARS, _TAIL_CHARS
    ).replace("\r\n", "\n")
    text = DATA_URL.sub(" ", text) if "data:" in text else text
    if _has_sign_of_lines(text):
        # Each match is a whole line, so a text of one line is matched once, not searched from every
        # character.
        if "\n" in text:
            text = LINES.sub("", text)
        elif LINES.match(text):
            text = ""
    text = _without_history(TIMESTAMP.sub("", text)) if "[" in text else text
    text = _without_untrusted(text) if "):" in text else text
    text = FENCE.sub(_without_metadata, text) if "```" in text else text
    text = BARE_JSON_LINE.sub(_without_metadata, text) if "{" in text else text
    if "[" in text or "<" in text:
        text = NOTES.sub(" ", ENVELOPE.sub(_keep_label, QUOTED_REPLY.sub("\n", text)))
    text = URL.sub(_words_of_url, text) if "://" in text else text
    text = _without_identifiers(text)
    tail = CLIENT_TAIL.search(text) if "\n" in text else CLIENT_TAIL.match(text)
    return " ".join((text[: tail.start()] if tail else text).split()).strip(" \"'")[
        :MAX_QUERY_CHARS
    ]


def _has_sign_of_lines(text: str) -> bool:
    for sign in _SIGNS_OF_LINES:  # noqa: SIM110 - any() with a generator takes longer than the search
        if sign in text:
            return True
    return False


def _without_blocks_at_ends(text: str) -> str:
    head, tail = _HEAD_CHARS * _BLOCKS_SOUGHT, _TAIL_CHARS * _BLOCKS_SOUGHT
    if len(text) <= head + tail:
        return _without_blocks(text)
    return _without_blocks(text[:head]) + "\n" + _without_blocks(text[-tail:], begins_within=True)


def _without_blocks(text: str, *, begins_within: bool = False) -> str:
    """Drop tagged blocks, also nested ones. An unclosed block extends to the end. `begins_within`
    says that the text may begin inside a block: then a lone closing tag ends it."""
    kept: list[str] = []
    at = depth = 0
    for edge in BLOCK_EDGE.finditer(text):
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
    """Keep only the message to be answered of a group chat's pending messages."""
    history = HISTORY.search(text)
    current = CURRENT.search(text, history.end() if history else 0)
    before = text[: history.start()] if history else ""
    if current:
        return before + text[current.end() :]
    return before if history else text


def _without_untrusted(text: str) -> str:
    """Drop each heading that marks untrusted data, with its fenced block or paragraph."""
    kept: list[str] = []
    at = 0
    while heading := UNTRUSTED_HEADING.search(text, at):
        kept.append(text[at : heading.start()])
        close = "```" if heading["fence"] else "\n\n"
        end = text.find(close, heading.end())
        at = len(text) if end < 0 else end + len(close)
    return "\n".join((*kept, text[at:]))


def _without_metadata(match: re.Match[str]) -> str:
    return " " if METADATA_KEY.search(match[0]) else match[0]


def _keep_label(match: re.Match[str]) -> str:
    """Drop an envelope and the sender's name after it, but keep a word such as "fix:"."""
    sender = match["sender"] or ""
    return sender if sender.strip(" :").casefold() in _NOT_A_SENDER else ""


def _without_identifiers(text: str) -> str:
    own_name = OWN_NAME.match(text)
    text = text[own_name.end() :] if own_name else text
    text = MENTIONS.sub(" ", text) if "<" in text else text
    text = PHONES.sub(" ", text) if "+" in text else text
    text = ACCOUNTS.sub(" ", text) if "_" in text else text
    return UUIDS.sub(" ", text) if text.count("-") >= 4 else text


def _words_of_url(match: re.Match[str]) -> str:
    """The last words of an address's host and path."""
    address = match[1].partition("?")[0].partition("#")[0]
    words = [word for word in _WORD.findall(address[:300]) if word.casefold() not in _URL_NOISE]
    return " " + " ".join(words[-8:]) + " "
