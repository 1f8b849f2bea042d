"""Sentences, the instructions among them, and text that a person cannot read: hidden characters, base64 and hexadecimal."""

import base64
import binascii
import html
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from metaclaw.text.words import VERBS

_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[ \t]*([\w+-]*)[^\n]*\n(.*?)(?:^[ \t]*\1[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
_BREAK = re.compile(
    r"(?<=[.!?;])(?<!\d\.)\s+|(?<=[。！？；])|\n[ \t]*\n"
    r"|\n(?=[ \t]*(?:[-*•+>]|\d{1,3}[.)]|#{1,6})[ \t])|\n|(?<=:)[ ](?=[A-Z])| — | – "
)
_LEAD = re.compile(
    r"(?:[-*•+>#\s]|\d{1,3}[.)]|\[[ x]\]|\*\*|__|step \d+:?|note:|important:|first,?|then,?|next,?|finally,?|also,?|and"
    r"|please,?|so|but|instead,?|now,?)+\s*",
    re.IGNORECASE,
)
_CLAUSE = re.compile(
    r"(?:when(?:ever)?|if|before|after|while|once|until|unless|for|in|on|to|with|as|at|during|because|since|where|wherever|by"
    r"|under|given|upon|each time|every time|any time)\b[^,\n]{2,160},\s*",
    re.IGNORECASE,
)
_SHELL = frozenset(
    ("", "sh", "bash", "shell", "zsh", "console", "fish", "powershell", "ps1", "cmd", "bat", "terminal", "shell-session")
)
_PROMPT = re.compile(r"^[ \t]*(?:\$|%|>|#)[ \t]+(?=\S)")
_COMMAND = re.compile(
    r"^[ \t]*(?:sudo[ \t]+)?(?:curl|wget|bash|sh|zsh|eval|source|ssh|scp|rsync|nc|ncat|git|pip3?|pipx|uv|npm|npx|pnpm|yarn"
    r"|brew|apt(?:-get)?|python3?|node|ruby"
    r"|perl|chmod|chown|cat|echo|export|docker|kubectl|make|cargo|go|openssl|base64|crontab|systemctl|rm|cp|mv|tar|\./|~/"
    r"|/)\S*[ \t]"
)

_MODAL = re.compile(
    r"\b(?:must|shall|should|have to|has to|need(?:s)? to|ought to|required? to|is to|are to|supposed to|obliged|mandatory"
    r"|make sure|be sure"
    r"|remember to|don'?t forget|do not|don'?t|never|always|from now on|going forward|in (?:the )?future|henceforth"
    r"|it is (?:important|critical"
    r"|essential|necessary|imperative)|not allowed|forbidden|prohibited|only use|let'?s|no longer|(?:the )?(?:user|owner"
    r"|admin\w*|operator"
    r"|developer|customer|boss|team|policy|company|assistant|agent|ai|model|system)s?"
    r" (?:want|wish|expect|prefer|require|like|ask|need|demand|instruct|request|order|will|would like|policy|has (?:asked"
    r"|approved|authori[sz]ed|granted|requested))\w*"
    r"|you(?:'re| are) (?:now|to|required|allowed|authori[sz]ed|expected)|you (?:can|may|will|want|might)|your (?:task|job"
    r"|goal|role|new|instructions?)|new (?:rule|policy|instruction)|instead of|rather than|prefer(?:red|s)?"
    r"|to (?:continue|proceed|fix|resolve|solve|install|avoid|complete|finish|enable|unlock)\b[^.\n]{0,60}?\b(?:run|use"
    r"|execute|visit|open|call|add|set|type|go)"
    r"|(?:run|execute|visit|install|download|open|paste|type)\b(?=\s*(?::|`|\$|https?:))"
    r"|müssen|muss|musst|sollst|sollte[nst]?|soll|immer|nie(?:mals)?|ab (?:jetzt|sofort)|bitte|il faut|doi[st]|devez|devrait"
    r"|toujours|jamais|ne pas|désormais"
    r"|veuillez|debes?|deben|siempre|nunca|hay que|por favor|tienes que|deve[ms]?|sempre|mai|bisogna|moet(?:en)?|altijd|nooit"
    r"|voortaan"
    r"|всегда|никогда|должен|должна|должны|нужно|надо|нельзя|пожалуйста|используй\w*|отправ\w+)\b"
    r"|必须|必須|务必|不要|请|請|总是|總是|永远|应该|應該|禁止|使用|发送|不得|今后|以后"
    r"|てください|ください|必ず|しないで|べき|常に|今後|使って"
    r"|하세요|반드시|항상|하지 ?마|앞으로|يجب|دائما|لا ت",
    re.IGNORECASE,
)
_REPORTED = re.compile(
    r"\b(?:\w*error|\w*exception|traceback|warning|expected|got|failed|cannot|could not|couldn't|was|were|has been|exited?)\b",
    re.IGNORECASE,
)
_COMMENT = re.compile(r"<!--|-->|/\*|\*/")
_ATTRIBUTE = re.compile(
    r"<[^<>\n]{0,300}?(?:alt|title|content|aria-label|placeholder|value)=[\"']([^\"'<>\n]{1,500})[\"'][^<>\n]{0,300}>"
)
_BLOCK_TAG = re.compile(r"</?(?:p|br|div|li|td|tr|span|h\d|b|i|em|strong|script|style|noscript|body|html)\b[^<>]{0,300}>")
_FIELD = re.compile(r"[{\[\s]*[\"'][\w:./ -]{1,60}[\"']\s*:\s*[\"'\[{]*(.*)", re.DOTALL)
_LIST_MARK = re.compile(r"(?:[-*•+]|\d{1,3}[.)])[ \t]+")
_STATES = re.compile(
    r"\b(?:is|are|was|were|has|have|had|means?|contains?|stands? for|ist|sind|est|sont|es|son|è)\b|=|:", re.IGNORECASE
)
_WANTS = re.compile(r"\b(?:please|i want|i need|we need|rules?|regeln|reglas|règles|regole)\b|规则|規則|ルール", re.IGNORECASE)
_MATERIAL_WORDS = (
    "look see check read review explain translate summarise summarize rephrase correct analyse analyze answer reply compare fix"
    " find show tell describe proofread convert parse debug test open print give list get copy quote"
)
_MATERIAL_VERBS = frozenset(_MATERIAL_WORDS.split())


@dataclass(frozen=True, slots=True)
class Imperative:
    """An instruction as it was written: a sentence, or a line of a shell script if `is_command`."""

    text: str
    is_command: bool = False


def split_sentences(text: str, *, with_code: bool = False) -> Iterator[str]:
    """The text's sentences, list entries and headings; with `with_code` also the lines of its code blocks."""
    for piece in _BREAK.split(text if with_code else _FENCE.sub("\n\n", text)):
        bare = piece.strip(" \t\r\n*_")
        if len(bare) > 1:
            yield bare


def commands(text: str) -> Iterator[str]:
    """The shell commands in the text's code blocks."""
    for fence in _FENCE.finditer(text):
        for line in fence[3].splitlines():
            prompted = _PROMPT.match(line)
            if prompted or (fence[2].lower() in _SHELL and _COMMAND.match(line)):
                yield (line[prompted.end() :] if prompted else line).strip()


def instructions(text: str) -> tuple[Imperative, ...]:
    """The instructions in a skill's text: imperatives, and every other sentence that does not state a fact.

    No list of verbs is complete, and an agent follows every sentence of a skill.
    """
    seen = visible_text(text)
    told = (
        _LIST_MARK.sub("", one, count=1)
        for one in split_sentences(seen)
        if is_imperative(one) or not (_STATES.search(one) or one.startswith("#"))
    )
    return (*map(Imperative, told), *(Imperative(command, is_command=True) for command in commands(seen)))


def visible_text(text: str) -> str:
    """The text with hidden characters replaced, entities decoded, and the contents of comments and attributes as lines."""
    shown = without_hidden_characters(html.unescape(text) if "&" in text else text)
    for pattern, instead in ((_COMMENT, "\n"), (_ATTRIBUTE, r"\n\1\n"), (_BLOCK_TAG, "\n")):
        shown = pattern.sub(instead, shown)
    return shown


def is_imperative(sentence: str) -> bool:
    """Whether a sentence orders or forbids something, or says what a person wants."""
    if _MODAL.search(sentence):
        return True
    field = _FIELD.match(sentence)
    if field is not None:
        return field[1].count(" ") >= 2 and is_imperative(field[1])
    rest = sentence
    for _ in range(3):
        rest = _LEAD.sub("", rest, count=1) if _LEAD.match(rest) else rest
        if _first_word(rest) in VERBS:
            return not (_REPORTED.match(rest) or sentence.endswith("?"))
        clause = _CLAUSE.match(rest)
        if clause is None:
            break
        rest = rest[clause.end() :]
    if _REPORTED.search(sentence):
        return False
    return any(_first_word(part) in VERBS for part in re.split(r",\s+(?:and |then )?|:\s+|\band then\b", rest)[1:4])


def introduces_rules(lead: str) -> bool:
    """Whether a line before a block makes the block an instruction: `From now on:`, `Use these:`."""
    last = _BREAK.split(lead.strip())[-1]
    word = _first_word(_LEAD.sub("", last, count=1) if _LEAD.match(last) else last)
    if word in _MATERIAL_VERBS:
        return False
    return _MODAL.search(last) is not None or _WANTS.search(last) is not None or word in VERBS


def begins_with_verb(sentence: str) -> bool:
    """Whether a sentence begins with a verb of command, after words such as `please` and `so`."""
    return _first_word(_LEAD.sub("", sentence, count=1) if _LEAD.match(sentence) else sentence) in VERBS


def begins_with_rule(sentence: str) -> bool:
    """Whether a sentence begins with words such as `always` and `from now on`."""
    return _MODAL.match(_LEAD.sub("", sentence, count=1) if _LEAD.match(sentence) else sentence) is not None


def _first_word(text: str) -> str:
    found = re.match(r"[\"'“`(\[]*([^\W\d_][\w'’-]*)", text)
    return found[1].lower().replace("’", "'") if found else ""


_INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0"
)
_TAGS = "\U000e0000-\U000e007f"
_SUPPLEMENT = "\U000e0100-\U000e01ef"
_WIDE = "\uff01-\uff5e"
_MATHEMATICAL = "\U0001d400-\U0001d7ff"
_ENCLOSED = "\u24b6-\u24e9"
# Cyrillic and Greek letters that look like Latin ones in most typefaces.
_LOOK_ALIKES = dict(
    zip(
        "аеорсухіјѕԁԛԝһӏьАВЕКМНОРСТУХІЈЅԌԚԜҮαοινρυκτΑΒΕΖΗΙΚΜΝΟΡΤΥΧ",
        "aeopcyxijsdqwhlbABEKMHOPCTYXIJSGQWYaoivpuktABEZHIKMNOPTYX",
        strict=True,
    )
)
_ALIKE = "".join(_LOOK_ALIKES)

INVISIBLE = re.compile(f"[{_INVISIBLE}{_TAGS}{_SUPPLEMENT}]")
HIDDEN = re.compile(
    f"[{_INVISIBLE}{_TAGS}{_SUPPLEMENT}{_WIDE}{_MATHEMATICAL}{_ENCLOSED}]|(?<=[A-Za-z0-9])[{_ALIKE}]|[{_ALIKE}](?=[A-Za-z0-9])"
)
"""Characters to remove or to replace by plain ones. Look-alikes match only next to a Latin letter or digit."""

_SUSPECT = re.compile(f"[{_INVISIBLE}{_TAGS}{_SUPPLEMENT}{_WIDE}{_MATHEMATICAL}{_ENCLOSED}{_ALIKE}]")
_HIDDEN_ON_PURPOSE = re.compile(
    f"(?<![\U0001f3f4{_TAGS}])[{_TAGS}]|[\u202a-\u202e\u2066-\u2069]"
    f"|(?<=[\x21-\x7e])[\u200b-\u200d\u2060\u00ad\ufeff](?=[\x21-\x7e])"
    f"|(?<=[A-Za-z])[{_ALIKE}](?=[A-Za-z])|(?<=[{_ALIKE}])[A-Za-z]{{2}}(?=[{_ALIKE}])"
)


def may_contain_hidden(text: str) -> bool:
    """Whether the text has any candidate for HIDDEN: a quick test before the exact one."""
    return not text.isascii() and _SUSPECT.search(text) is not None


def visible_form(found: str) -> str:
    """The plain character for one match of HIDDEN; empty for an invisible one."""
    code = ord(found[0])
    if 0xE0020 <= code <= 0xE007E:
        return chr(code - 0xE0000)
    if found in _LOOK_ALIKES:
        return _LOOK_ALIKES[found]
    return "" if INVISIBLE.match(found) else unicodedata.normalize("NFKC", found)


def without_hidden_characters(text: str) -> str:
    """The text without invisible characters and with look-alikes as plain letters."""
    return text if text.isascii() else HIDDEN.sub(lambda found: visible_form(found[0]), text)


def hides_characters(text: str) -> bool:
    """Whether the text hides characters on purpose. Joiners that a script or an emoji needs do not count."""
    return not text.isascii() and _HIDDEN_ON_PURPOSE.search(text) is not None


BASE64 = re.compile(r"[A-Za-z0-9+/_-]{16,}={0,2}")
HEX = re.compile(r"[0-9a-fA-F]{24,}")
_READABLE = bytes((*b"\t\r\n", *range(32, 127)))
_SAMPLE = 64
_LONG_TOKEN = 24
_FIRST_HALF = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdef"


def hides_text(text: str) -> bool:
    """Whether a text holds words in base64 or hexadecimal, or is mostly such a token: a person's rule is in plain words."""
    tokens = [match[0] for pattern in (BASE64, HEX) for match in pattern.finditer(text)]
    if any(from_base64(token) or (HEX.fullmatch(token) and from_hex(token)) for token in tokens):
        return True
    random = sum(len(token) for token in set(tokens) if len(token) >= _LONG_TOKEN and _is_mixed(token) and "/" not in token)
    return random > len("".join(text.split())) / 2


def from_base64(token: str) -> str:
    """The words that a token stands for; empty where it stands for none."""
    bare = token.rstrip("=")
    # Plain text has no byte above 127, so each group of four begins with one of the first half of the alphabet.
    if len(bare) % 4 == 1 or bare[:_SAMPLE:4].strip(_FIRST_HALF) or not _reads(_decoded(bare[:_SAMPLE])):
        return ""
    return _text(_decoded(bare))


def _decoded(bare: str) -> bytes:
    altchars = b"-_" if "-" in bare or "_" in bare else None
    try:
        return base64.b64decode(bare + "=" * (-len(bare) % 4), altchars)
    except (binascii.Error, ValueError):
        return b""


def from_hex(token: str) -> str:
    """The words that hexadecimal digits stand for; empty where they stand for none."""
    return _text(bytes.fromhex(token)) if len(token) % 2 == 0 else ""


def _reads(raw: bytes) -> bool:
    """Whether these bytes are text; names and random tokens decode to noise."""
    return bool(raw) and raw.isascii() and not raw.translate(None, _READABLE)


def _text(raw: bytes) -> str:
    return raw.decode("ascii") if _reads(raw) else ""


def _is_mixed(token: str) -> bool:
    kinds = (str.isdigit, str.isupper, str.islower)
    return all(any(map(kind, token)) for kind in kinds)
