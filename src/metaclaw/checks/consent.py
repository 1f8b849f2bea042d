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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
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
_ELSE: Final = re.compile(rf"(?i)\b(?:{_WORDS['else']})\b|其他|别的|ほか")
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


@dataclass(slots=True)
class Consent:
    """The names of what may be deleted, and the clauses that forbid something."""

    to_delete: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def allow(self, names: Sequence[str]) -> None:
        self.to_delete += [name for name in names if name not in self.to_delete]
        self.refused = [
            clause for clause in self.refused if not any(name in clause for name in names)
        ]

    def refuse(self, clause: str) -> None:
        self.refused = [*(one for one in self.refused if one != clause), clause][-_MOST_REFUSED:]
        tokens = {token.name for token in _tokens(clause)}
        if not tokens.isdisjoint(self.to_delete):
            self.to_delete = [name for name in self.to_delete if name not in tokens]
        elif (
            _ABOUT.search(clause)
            and not any(map(_NAME_LIKE.search, tokens))
            and not _ELSE.search(clause)
        ):
            self.to_delete.clear()


def deletion_consent(messages: Sequence[Message]) -> Consent:
    """What the person has agreed to delete in a conversation."""
    found, asked = Consent(), ""
    for message in messages[-_MOST_MESSAGES:]:
        text = text_of(message.parts)
        if message.role is Role.ASSISTANT:
            asked = text[-_MOST_CHARS:] or asked
        elif message.role is Role.USER and (said := _read_message(text, asked)) is not None:
            found.to_delete.clear()
            for step in said:
                if isinstance(step, str):
                    found.refuse(step)
                else:
                    found.allow(step)
            asked = ""
    return found


@lru_cache(512)  # a request repeats the messages of the one before
def _read_message(text: str, asked: str) -> tuple[tuple[str, ...] | str, ...] | None:
    """What a message says, in order: the names that it allows to delete, and the clauses that
    forbid something; None if no words are the person's own."""
    said = _own_words(text)
    if not said:
        return None
    steps: list[tuple[str, ...] | str] = []
    clauses = _split(said, _CLAUSE_END)
    agrees = bool(clauses) and _is_agreement(clauses[0])
    for clause in clauses:
        if _NEGATION.search(clause):
            steps.append(clause)
            agrees = agrees and (not _ABOUT.search(clause) or _has_name(clause))
        elif _is_order(clause):
            agrees = agrees or not _ordered(clause)
    refusals = [step for step in steps if isinstance(step, str)]
    if all(map(_has_name, refusals)):
        steps += [
            tuple(_ordered(sentence))
            for sentence in _split(said, _SENTENCE_END)
            if _is_order(sentence) and _says_nothing_else(sentence)
        ]
    if agrees and asked and not _BUT.search(said):
        steps.append(tuple(_answered(_asked_for(asked), clauses)))
    return tuple(steps)


def _answered(names: list[str], clauses: Sequence[str]) -> list[str]:
    """Of the names in a question, those that an answer says yes to."""
    refused = [clause for clause in clauses if _NEGATION.search(clause)]
    kept = {token.name for clause in refused for token in _tokens(clause)}
    chosen = {
        token.name for clause in clauses if clause not in refused for token in _tokens(clause)
    }.intersection(names)
    if not chosen and any(map(_ONLY.search, clauses)):
        return []
    return [name for name in names if name not in kept and (not chosen or name in chosen)]


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
    for place, token in enumerate(tokens):
        before = tokens[place - 1] if place else _START
        after = tokens[place + 1] if place + 1 < len(tokens) else None
        if token.is_one_of(_TURNING):
            if not before.is_one_of(_CONTENTS):
                return False
        elif token.is_plain and not _is_plain_name(token, before, after):
            return False
    return True


def _is_question(clause: str) -> bool:
    return clause.endswith(("?", "？")) and not _WANTING.match(clause)


def _is_order(clause: str) -> bool:
    return (
        not _is_question(clause)
        and not _CODE_THINGS.search(clause)
        and _ORDER.search(clause) is not None
    )


def _is_agreement(clause: str) -> bool:
    return (
        not clause.endswith(("?", "？"))
        and not _NEGATION.search(clause)
        and _AGREEMENT.match(clause) is not None
    )


def _has_name(clause: str) -> bool:
    return any(_NAME_LIKE.search(token.name) for token in _tokens(clause))


def _ordered(clause: str) -> list[str]:
    """The names of what an order deletes."""
    orders = list(_ORDER.finditer(clause))
    ends = [*(order.start() for order in orders[1:]), len(clause)]
    names: list[str] = []
    for order, end in zip(orders, ends, strict=True):
        behind = [] if order["final"] else list(_names_behind(_tokens(clause[order.end() : end])))
        names += behind or (
            [] if order["verb"] else list(_names_before(_tokens(clause[: order.start()])))
        )
    return names


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
            names += list(_names_behind(_tokens(clause[about.end() :]))) or list(
                _names_before(_tokens(clause[: about.start()]))
            )
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


def _names_behind(tokens: Sequence[_Token]) -> Iterator[str]:
    """The names that follow a verb, up to the first word that turns to something else."""
    unknown, has_names = 0, False
    for place, token in enumerate(tokens):
        before = tokens[place - 1] if place else _START
        after = tokens[place + 1] if place + 1 < len(tokens) else None
        if token.is_one_of(_TURNING):
            if not before.is_one_of(_CONTENTS):
                return
        elif token.is_name or _is_plain_name(token, before, after):
            if after is not None and (after.is_plain or _BEHIND_PLACE.match(after.name)):
                return  # "the src/a.py dependency" is not src/a.py
            has_names = True
            yield token.name
        elif token.is_plain or (token.is_unspaced and not token.is_one_of(_AND)):
            unknown += not token.is_unspaced
            if has_names or unknown > _MOST_UNKNOWN:
                return


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


def _names_before(tokens: Sequence[_Token]) -> Iterator[str]:
    """The names before a verb at the end of a clause, nearest first."""
    unknown, has_names, is_open = 0, False, True
    for place in reversed(range(len(tokens))):
        token, before = tokens[place], tokens[place - 1] if place else _START
        if token.is_one_of(_AND):
            if not has_names:
                return
            is_open = True
        elif token.is_one_of(_TURNING) or (token.is_unspaced and _BEHIND_PLACE.match(token.name)):
            return
        elif token.is_name or (token.is_plain and not unknown and before.is_one_of(_SMALL, _KIND)):
            if not is_open or _is_place(tokens[:place]):
                return
            has_names, is_open = True, False
            yield token.name
        elif token.is_plain:
            unknown += 1
            if has_names or unknown > _MOST_UNKNOWN:
                return


def _is_place(before: Sequence[_Token]) -> bool:
    """Whether the words before a name make it a place, not what is deleted."""
    words = [token for token in before if not token.is_one_of(_SMALL, _KIND)]
    return (
        bool(words)
        and words[-1].is_one_of(_TURNING)
        and not (len(words) > 1 and words[-2].is_one_of(_CONTENTS))
    )
