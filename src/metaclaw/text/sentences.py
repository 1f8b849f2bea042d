"""Sentences, and which of them order something."""

import html
import re
from collections.abc import Iterator

from metaclaw.text.excerpts import without_hidden_characters
from metaclaw.text.terms import VERBS, WORD_LISTS

_FENCE = re.compile(
    r"^[ \t]*(`{3,}|~{3,})[ \t]*([\w+-]*)[^\n]*\n(.*?)(?:^[ \t]*\1[ \t]*$|\Z)",
    re.MULTILINE | re.DOTALL,
)
_BREAK = re.compile(
    r"(?<=[.!?;])(?<!\d\.)\s+|(?<=[。！？；])|\n[ \t]*\n"
    r"|\n(?=[ \t]*(?:[-*•+>]|\d{1,3}[.)]|#{1,6})[ \t])|\n|(?<=:)[ ](?=[A-Z])| — | – "
)
_LEAD = re.compile(
    r"(?:[-*•+>#\s]|\d{1,3}[.)]|\[[ x]\]|\*\*|__|step"
    r" \d+:?|note:|important:|first,?|then,?|next,?|finally,?|also,?|and"
    r"|please,?|so|but|instead,?|now,?)+\s*",
    re.IGNORECASE,
)
_CLAUSE = re.compile(
    r"(?:when(?:ever)?|if|before|after|while|once|until|unless|for|in|on|to|with|as|at|during|because|since|where|wherever|by"
    r"|under|given|upon|each time|every time|any time)\b[^,\n]{2,160},\s*",
    re.IGNORECASE,
)

_MODAL = re.compile(
    rf"\b(?:{''.join(WORD_LISTS['modal'])})\b|{''.join(WORD_LISTS['unspaced_modal'])}",
    re.IGNORECASE,
)
_REPORTED = re.compile(
    r"\b(?:\w*error|\w*exception|traceback|warning|expected|got|failed|cannot|could"
    r" not|couldn't|was|were|has been|exited?)\b",
    re.IGNORECASE,
)
_COMMENT = re.compile(r"<!--|-->|/\*|\*/")
_ATTRIBUTE = re.compile(
    r"<[^<>\n]{0,300}?(?:alt|title|content|aria-label|placeholder|value)=[\"']([^\"'<>\n]{1,500})[\"'][^<>\n]{0,300}>"
)
_BLOCK_TAG = re.compile(
    r"</?(?:p|br|div|li|td|tr|span|h\d|b|i|em|strong|script|style|noscript|body|html)\b[^<>]{0,300}>"
)
_FIELD = re.compile(r"[{\[\s]*[\"'][\w:./ -]{1,60}[\"']\s*:\s*[\"'\[{]*(.*)", re.DOTALL)


def split_sentences(text: str, *, with_code: bool = False) -> Iterator[str]:
    """The text's sentences, list entries and headings; with `with_code` also the lines of its code
    blocks.
    """
    for piece in _BREAK.split(text if with_code else _FENCE.sub("\n\n", text)):
        bare = piece.strip(" \t\r\n*_")
        if len(bare) > 1:
            yield bare


def visible_text(text: str) -> str:
    """The text with hidden characters replaced, entities decoded, and the contents of comments and
    attributes as lines.
    """
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
    return any(
        _first_word(part) in VERBS
        for part in re.split(r",\s+(?:and |then )?|:\s+|\band then\b", rest)[1:4]
    )


def _first_word(text: str) -> str:
    match = re.match(r"[\"'“`(\[]*([^\W\d_][\w'’-]*)", text)
    return match[1].lower().replace("’", "'") if match else ""
