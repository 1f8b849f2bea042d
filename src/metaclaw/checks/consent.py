"""What a person agreed to delete, read from the conversation.

A person agrees by an order that names what is deleted ("delete src/old"), or by a yes to an agent
that asked about it by name. Only the names count: "go ahead" as an order allows nothing. What
stands in code blocks, quotations and tags is not the person's order. An order is a sentence that
says nothing else: "delete everything except src/old" or "the ticket says: delete src/old" is none.
An agreement lasts until the person's next message.

The words are English, German, French, Spanish, Portuguese, Italian, Dutch, Russian, Chinese and
Japanese. The reading is cautious: where a name may be a place ("remove flask from
requirements.txt") or belong to another verb, it is not agreed to, and the agent has to ask."""

import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Final

from metaclaw.domain.chat import Message, Role, text_of

_MOST_CHARS: Final = 8_000
_MOST_MESSAGES: Final = 200
_MOST_REFUSED: Final = 100
_MOST_UNKNOWN: Final = 2
_WORDS: Final = {
    name: text.replace("\n", "")
    for name, text in tomllib.loads(
        (files("metaclaw.checks") / "consent.toml").read_text(encoding="utf-8")
    ).items()
}

_CODE_BLOCK: Final = re.compile(
    r"^[ \t]*(```|~~~).*?(?:^[ \t]*\1[ \t]*$|\Z)", re.DOTALL | re.MULTILINE
)
_TAGS: Final = re.compile(r"<([A-Za-z][\w.:-]*)(?:\s[^<>]*)?>.*?(?:</\1\s*>|\Z)", re.DOTALL)
_QUOTED_LINE: Final = re.compile(
    r"^(?:[ \t]*>|(?: {4}|\t)(?![ \t]*(?:[-*•]|\d+[.)])[ \t])).*$", re.MULTILINE
)
_QUOTED_NAME: Final = re.compile(r"[\"“„«]([^\s\"“”„«»]+)[\"”“»]|(?<!\w)'([^\s']+)'(?!\w)")
_QUOTED: Final = re.compile(r"[\"“„«][^\"“”„«»\n]*[\"”“»]")
_SPAN: Final = re.compile(r"`([^`\n]*)`")
_MARKED: Final = re.compile(r"(`[^`\n]*`)")
_NAME: Final = r"(?:`[^`\s]+`|[^\s`,;:]*(?:[/*_]|\w\.\w)[^\s`,;]*)"
_LISTED: Final = re.compile(
    rf"[:,]?[ \t]*\n+[ \t]*(?:[-*•]|\d+[.)])[ \t]+({_NAME})(?:[ \t]+(?:[(–—]|- |: )[^\n]*)?["
    r" \t]*(?=\n|\Z)"
)
_JOINED: Final = re.compile(
    rf"(?:[,、，][ \t]*|:[ \t]+)(?:(?:and|und|et|y|e|en|и|和)[ \t]+)?(?={_NAME})"
)
_CLAUSE_END: Final = re.compile(
    r"(?<=[.!?;:])\s+|(?<=[。！？])|[\n,;、，"
    r"]|\s[-–—]\s|\b(?:but|aber|sondern|mais|pero|mas|(?<!doe )maar|но)\b|但"
)
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|(?<![:：\s])\s*\n+")
_UNSPACED: Final = re.compile(r"([\u3040-\u30ff\u3400-\u9fff、＆]+)")


def _any_of(key: str) -> "re.Pattern[str]":
    return re.compile(rf"(?i)(?:{_WORDS[key]})")


_VERB: Final = rf"(?:{_WORDS['verbs']})\b(?!\s*(?:{_WORDS['thing_behind']}))"
_ORDER: Final = re.compile(
    rf"(?i)(?:^\W*(?:(?:{_WORDS['before_verbs']})\W+)*"
    r"|\b(?:and|then|und|dann|et|puis|y|e|poi|en|please|bitte|you can|you may|du kannst|du darfst)"
    r" (?:also |auch )?)"
    rf"(?P<verb>{_VERB})"
    rf"|\b(?P<final>{_WORDS['final_verbs']})\W*$|(?P<unspaced>{_WORDS['unspaced_verbs']})"
)
_ABOUT: Final = re.compile(
    rf"(?i)\b(?:{_WORDS['about']})[^\W_]*|(?:{_WORDS['unspaced_verbs']}|удал|стере|消し|消さ)\w*"
)
_NEGATION: Final = re.compile(rf"(?i)\b(?:{_WORDS['negation']})\b|{_WORDS['unspaced_negation']}")
_WANTING: Final = re.compile(rf"(?i)\W*(?:{_WORDS['wanting']})")
_AGREEMENT: Final = re.compile(
    rf"(?i)\W*(?:{_WORDS['agreement']})(?![^\W_])|\W*(?:{_WORDS['unspaced_agreement']})"
)
_CODE_THINGS: Final = re.compile(rf"(?i)\b(?:{_WORDS['code_things']})\b")
_ONLY: Final = re.compile(rf"(?i)\b(?:{_WORDS['only']})\b|只|仅|除了|だけ|以外")
_BUT: Final = re.compile(r"(?i)\b(?:but|aber|mais|pero|mas|maar|но)\b|但")
_LEADING: Final = re.compile(rf"(?i)\W*(?:(?:{_WORDS['before_verbs']}|{_WORDS['agreement']})\W+)*")
_OR: Final = re.compile(r"(?i)\b(?:or|oder|ou|или)\b|还是|還是|それとも")
_PROCEED: Final = re.compile(
    rf"(?i)\b(?:{_WORDS['agreement']}|{_WORDS['proceed']})|{_WORDS['unspaced_proceed']}"
)
_KIND, _CONTENTS, _SMALL, _AND = (
    _any_of("kinds"),
    _any_of("contents"),
    _any_of("small_words"),
    _any_of("and"),
)
_TURNING, _BEHIND_PLACE = _any_of("turning"), _any_of("behind_place")
_NAME_LIKE: Final = re.compile(r"[/*_]|\w\.\w|^\.\w|\d")
_LETTER: Final = re.compile(r"\w")


@dataclass(frozen=True, slots=True)
class Consent:
    """The names of what may be deleted, and the clauses that forbid something."""

    to_delete: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


def deletion_consent(messages: Sequence[Message]) -> Consent:
    """What the person has agreed to delete in a conversation."""
    found, asked = Consent(), ""
    for message in messages[-_MOST_MESSAGES:]:
        text = text_of(message.parts)
        if message.role is Role.ASSISTANT:
            asked = text[-_MOST_CHARS:] or asked
        elif message.role is Role.USER and (said := _read_message(text, asked)) is not None:
            refused = dict.fromkeys((*found.refused, *said.refused))
            kept = [
                clause for clause in refused if not any(name in clause for name in said.to_delete)
            ]
            found, asked = Consent(said.to_delete, tuple(kept[-_MOST_REFUSED:])), ""
    return found


@lru_cache(512)  # a request repeats the messages of the one before
def _read_message(text: str, asked: str) -> Consent | None:
    """What a message allows and forbids; None if no words are the person's own."""
    said = _own_words(text)
    if not said:
        return None
    clauses = _split(said, _CLAUSE_END)
    refused = tuple(clause for clause in clauses if _NEGATION.search(clause))
    allowed: list[str] = []
    if all(map(_has_name, refused)):
        for sentence in _split(said, _SENTENCE_END):
            if _is_order(sentence) and _says_nothing_else(sentence):
                allowed += _ordered(sentence)
    others = [clause for clause in clauses if clause not in refused]
    agrees = any(
        (clause is clauses[0] and _is_agreement(clause))
        or (_is_order(clause) and not _ordered(clause))
        for clause in others
    )
    takes_back = any(_ABOUT.search(clause) and not _has_name(clause) for clause in refused)
    if agrees and asked and not takes_back and not _BUT.search(said):
        names = _asked_for(asked)
        chosen = _names_in(others).intersection(names)
        if chosen or not any(map(_ONLY.search, clauses)):
            kept = _names_in(refused)
            allowed += [name for name in names if name not in kept and name in (chosen or names)]
    return Consent(tuple(dict.fromkeys(allowed)), refused)


def _names_in(clauses: Iterable[str]) -> set[str]:
    return {token.name for clause in clauses for token in _tokens(clause)}


def _own_words(text: str) -> str:
    """A person's text without code blocks, tags and quotations; a single quoted or marked word is a
    name.
    """
    text = _QUOTED_LINE.sub("", _TAGS.sub("", _CODE_BLOCK.sub("", text)))
    text = _without_commands(_without_quotations(text)).strip()
    return text if len(text) <= 2 * _MOST_CHARS else f"{text[:_MOST_CHARS]}\n{text[-_MOST_CHARS:]}"


def _without_quotations(text: str) -> str:
    """A text without quotations; a single quoted word is a name. Marked words and commands stay as
    they are.
    """
    parts = _MARKED.split(text)
    parts[::2] = [
        _QUOTED.sub("", _QUOTED_NAME.sub(lambda match: f"`{match[1] or match[2]}`", part))
        for part in parts[::2]
    ]
    return "".join(parts)


def _without_commands(text: str) -> str:
    """A text without marked words that are more than a name."""
    return _SPAN.sub(lambda match: "" if " " in match[1] else match[0], text)


def _split(text: str, end: "re.Pattern[str]") -> list[str]:
    """The clauses or sentences of a text; a list of names belongs to the one before it."""
    joined = _JOINED.sub(" and ", _LISTED.sub(r" and \1", text))
    return [part.strip() for part in end.split(joined) if part and part.strip()]


def _says_nothing_else(sentence: str) -> bool:
    """Whether a sentence is an order and nothing more: names, their kinds and small words beside
    the verb.
    """
    if _NEGATION.search(sentence) or _ONLY.search(sentence) or ":" in sentence:
        return False
    tokens = _tokens(_ORDER.sub(" then ", _LEADING.sub("", sentence, count=1)))
    return not any(
        _turns(before, token) or (token.is_plain and not _is_plain_name(token, before, after))
        for before, token, after in _in_context(tokens)
    )


def _is_order(clause: str) -> bool:
    is_question = clause.endswith(("?", "？")) and not _WANTING.match(clause)
    return not is_question and not _CODE_THINGS.search(clause) and _ORDER.search(clause) is not None


def _is_agreement(clause: str) -> bool:
    return not clause.endswith(("?", "？")) and _AGREEMENT.match(clause) is not None


def _has_name(clause: str) -> bool:
    return any(_NAME_LIKE.search(token.name) for token in _tokens(clause))


def _ordered(clause: str) -> list[str]:
    """The names of what an order deletes."""
    orders = list(_ORDER.finditer(clause))
    ends = [*(order.start() for order in orders[1:]), len(clause)]
    return [
        name
        for order, end in zip(orders, ends, strict=True)
        for name in _names_beside(
            "" if order["verb"] else clause[: order.start()],
            "" if order["final"] else clause[order.end() : end],
        )
    ]


def _asked_for(text: str) -> list[str]:
    """The names of what an agent asks to delete, and the commands that it asks to run."""
    text = _LISTED.sub(r" and \1", _without_quotations(_CODE_BLOCK.sub("", text)))
    names: list[str] = []
    before = ""
    for sentence in _SENTENCE_END.split(text):
        if not sentence.strip():
            continue
        sentence = _BUT.split(sentence)[-1]
        if sentence.rstrip().endswith(("?", "？")) and not _OR.search(_without_commands(sentence)):
            names += _proposed(sentence)
            if not names and _PROCEED.search(sentence):
                names += _proposed(before)
        before = sentence
    return names


def _proposed(sentence: str) -> list[str]:
    """The names in a sentence about deleting, and its commands."""
    names = [match[1] for match in _SPAN.finditer(sentence) if " " in match[1]]
    text = _SPAN.sub(lambda match: match[1] if " " in match[1] else match[0], sentence)
    for clause in _split(text, _CLAUSE_END):
        about = _ABOUT.search(clause)
        if about and not _CODE_THINGS.search(clause) and not _NEGATION.search(clause):
            names += _names_beside(clause[: about.start()], clause[about.end() :])
    return names


@dataclass(frozen=True, slots=True)
class _Token:
    """A word, without the signs around it. `is_marked`: the person marked it as a name."""

    name: str
    is_marked: bool = False

    @property
    def is_name(self) -> bool:
        return self.is_marked or _NAME_LIKE.search(self.name) is not None

    def is_one_of(self, *classes: "re.Pattern[str]") -> bool:
        return not self.is_marked and any(words.fullmatch(self.name) for words in classes)

    @property
    def is_unspaced(self) -> bool:
        return _UNSPACED.fullmatch(self.name) is not None

    @property
    def is_plain(self) -> bool:
        """Whether it is an ordinary word of no class."""
        return (
            not self.is_name
            and not self.is_unspaced
            and not self.is_one_of(_KIND, _CONTENTS, _SMALL, _AND, _TURNING)
        )


_START: Final = _Token("the")


def _tokens(clause: str) -> list[_Token]:
    found = []
    for word in _UNSPACED.sub(r" \1 ", clause).split():
        name = word.lstrip("(\"'").rstrip(".,;:!?)\"'…。！？")
        if name.startswith("`"):
            found.append(_Token(name.strip("`"), is_marked=True))
        elif not name.startswith("-"):
            found.append(_Token(name))
    return [token for token in found if _LETTER.search(token.name) or token.is_one_of(_AND)]


def _names_beside(before: str, behind: str) -> list[str]:
    """The names behind a verb, or, if there are none, those before it, unless one may be a place:
    "aus requirements.txt flask löschen".
    """
    # "du" is a place in French and a person in German, whose verbs come last.
    earlier = [
        token
        for token in _tokens(before)
        if not (token.is_one_of(_TURNING) and token.is_one_of(_SMALL))
    ]
    if any(_turns(one, token) for one, token, _ in _in_context(earlier)):
        earlier = []
    elif len(earlier) > 1 and earlier[0].is_plain and not earlier[1].is_unspaced:
        del earlier[0]  # "Soll ich docs löschen?"
    return list(_names(_tokens(behind))) or list(_names(earlier))


def _turns(before: _Token, token: _Token) -> bool:
    """Whether a word turns to a place or a reason; it does not in "all files in src/old"."""
    return token.is_one_of(_TURNING, _BEHIND_PLACE) and not before.is_one_of(_CONTENTS)


def _names(tokens: Sequence[_Token]) -> Iterator[str]:
    """The names among some words, up to the first word that turns to something else."""
    unknown, has_names = 0, False
    for before, token, after in _in_context(tokens):
        if _turns(before, token):
            return
        if token.is_name or _is_plain_name(token, before, after):
            if after is not None and (after.is_plain or _BEHIND_PLACE.match(after.name)):
                return  # "the src/a.py dependency" is not src/a.py
            has_names = True
            yield token.name
        elif token.is_plain or (token.is_unspaced and not token.is_one_of(_AND)):
            unknown += not token.is_unspaced
            if has_names or unknown > _MOST_UNKNOWN:
                return


def _in_context(tokens: Sequence[_Token]) -> Iterator[tuple[_Token, _Token, _Token | None]]:
    """Each word with those before and after it."""
    return zip([_START, *tokens], tokens, [*tokens[1:], None], strict=False)


def _is_plain_name(token: _Token, before: _Token, after: _Token | None) -> bool:
    """Whether an ordinary word is a name: alone behind the verb ("delete src"), or beside its kind
    ("the users table").
    """
    if not token.is_plain:
        return False
    is_alone = after is None or after.is_unspaced or after.is_one_of(_AND, _SMALL, _TURNING)
    if before.is_one_of(_SMALL, _AND):
        return is_alone or (after is not None and after.is_one_of(_KIND))
    return before.is_one_of(_KIND) and is_alone
