"""The block of rules, facts and skills in a prompt: render it within budgets, recognise it, and
remove it.

Rules and facts come first, one line each; then the listed skills, one line each; then the skills in
full. The same content always gives the same bytes. The opening tag has the length and a checksum of
the content, so text that only resembles a block, in a skill or in a conversation, is not taken for
one. The blank lines around the block are part of it."""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import ALWAYS, Skill, SkillKind
from metaclaw.skills.files import SKILL_FILE
from metaclaw.text import shorten

RULES_BUDGET_TOKENS = 800
"""Default budget for the lines of rules and facts."""

_ASCII_CHARS_A_TOKEN = 4.0
_TOKENS_A_WIDE_CHAR = 1.0
_TOKENS_AN_ACCENTED_CHAR = 0.5
_WIDE_CHARS = re.compile("[\u2e80-\U0010ffff]+")

_PREAMBLE = "The request itself has priority over what follows."
_RULES = "User rules, [where they apply]:"
_FACTS = "User facts:"
_LESSONS = "Learned here from calls that failed:"
_LISTED = "Further procedures, a line apiece; where one fits the request, work that way:"
SKILL_TOOL = "metaclaw_skill"
"""The tool by which a model reads a listed skill in full."""
_LISTED_FOR_TOOL = (
    "Further procedures, a line apiece; where one fits the request, read it first with"
    f" {SKILL_TOOL}, then work that way:"
)
_FULL = (
    "Procedures for requests like this. They say when they apply; follow those that fit, skip"
    " others."
)
_CLOSE = "\n</house_rules>\n"
_OPEN = re.compile(
    r"\n\n<house_rules by=\"metaclaw\" length=\"(\d{1,6})\" sum=\"([0-9a-f]{12})\">\n"
)

_REMINDER = "Reminder, keep to what the user laid down:"
_NEEDED = "Learned here when this failed before:"
_MOST_WHEN_CHARS = 160
_MOST_REMINDER_CHARS = 240
_LEAST_GIST_CHARS, _MOST_GIST_CHARS = 20, 120
_MOST_SHORT_CHARS = 90
_NUMBER_OR_BULLET = re.compile(r"\A\s*(?:#{1,6}\s+|[-*+]\s+|\d{1,2}[.)]\s+|>\s*)")
_SENTENCE_END = re.compile(r"(?<=[.!?;])\s|(?<=[。！？；])")


@dataclass(frozen=True, slots=True)
class Block:
    """A block's text, the names of the rules, facts and skills placed in it, and of those listed;
    all empty if nothing fits.
    """

    text: str
    skills: tuple[SkillName, ...]
    listed: tuple[SkillName, ...] = ()


def estimate_tokens(text: str) -> int:
    """Estimate: a token per 4 ASCII characters, per 2 accented, Cyrillic or Arabic letters, per
    Chinese or Japanese character or emoji."""
    if text.isascii():
        return ceil(len(text) / _ASCII_CHARS_A_TOKEN)
    plain = len(text.encode("ascii", "ignore"))
    wide = len(text) - len(_WIDE_CHARS.sub("", text))
    return ceil(
        plain / _ASCII_CHARS_A_TOKEN
        + wide * _TOKENS_A_WIDE_CHAR
        + (len(text) - plain - wide) * _TOKENS_AN_ACCENTED_CHAR
    )


def render_block(
    placed: Sequence[Skill],
    budget_tokens: int,
    *,
    listed: Sequence[Skill] = (),
    rules_budget_tokens: int = RULES_BUDGET_TOKENS,
    has_tool: bool = False,
) -> Block:
    """A block of `placed` rules, facts and skills in full and of `listed` skills in a line each.
    Entries that exceed the budget are left out. The budget of skills counts twice: for the skills
    in full with the frame, and for the listed lines. `has_tool` says that the request offers
    `SKILL_TOOL`."""
    paragraphs: list[str] = []
    names: list[SkillName] = []

    def add(heading: str, written: Sequence[_Written], between: str = "\n") -> None:
        if written:
            paragraphs.append(between.join((heading, *[entry.text for entry in written])))

    for heading, kind in (
        (_RULES, SkillKind.RULE),
        (_FACTS, SkillKind.FACT),
        (_LESSONS, SkillKind.LESSON),
    ):
        of_kind = [skill for skill in placed if skill.kind is kind]
        lines = _fitting(of_kind, rules_budget_tokens, rule_line)
        rules_budget_tokens -= sum(line.tokens for line in lines)
        names += [line.skill.name for line in lines]
        add(heading, lines)
    lines = _fitting(listed, budget_tokens, listed_line)
    if len(lines) < len(listed):
        lines = _fitting(listed, budget_tokens, listed_briefly)
    add(_LISTED_FOR_TOOL if has_tool else _LISTED, lines)
    skills = [skill for skill in placed if skill.is_skill]
    full = _fitting(skills, budget_tokens - _FRAME_TOKENS, skill_text)
    names += [skill.skill.name for skill in full]
    add(_FULL, full, "\n\n")
    if not paragraphs:
        return Block("", ())
    text = _envelope("\n\n".join((_PREAMBLE, *paragraphs)))
    return Block(text, tuple(names), tuple([line.skill.name for line in lines]))


def render_reminder(rules: Sequence[Skill]) -> str:
    """One line that reminds of these rules, for the end of a conversation. `remove_blocks` removes
    it.
    """
    texts = [shorten(rule_line(rule).removeprefix("- "), _MOST_REMINDER_CHARS) for rule in rules]
    return _envelope(f"{_REMINDER} {' / '.join(texts)}").removeprefix("\n\n")


def render_lesson(lesson: Skill) -> str:
    """A lesson's line, for a place behind the result that it is about."""
    return _envelope(f"{_NEEDED}\n{rule_line(lesson)}").removeprefix("\n\n")


def rule_line(rule: Skill) -> str:
    """The line of a rule or fact: its text, and when it applies unless that is always."""
    text, when = (" ".join(field.split()) for field in (rule.body, rule.when))
    if when == ALWAYS:
        return f"- {text}"
    return f"- {text} [{shorten(when, _MOST_WHEN_CHARS)}]"


def listed_line(skill: Skill) -> str:
    """The line that lists a skill: its name, when to use it, and the gist of what to do."""
    return f"- {skill.name}: {shorten(skill.trigger, _MOST_WHEN_CHARS)} — {gist(skill)}"


def listed_briefly(skill: Skill) -> str:
    """The shorter line that lists a skill if not all lines fit: its name and when to use it."""
    return f"- {skill.name}: {shorten(skill.trigger, _MOST_SHORT_CHARS)}"


def line_tokens(skill: Skill, form: Callable[[Skill], str]) -> int:
    """Tokens of a line; `form` is one of the functions above."""
    return _write(skill, form).tokens


def gist(skill: Skill) -> str:
    """The first sentence or step of a skill's body, shortened."""
    lines = (
        _NUMBER_OR_BULLET.sub("", line).strip()
        for line in skill.body.splitlines()
        if not line.lstrip().startswith("#")
    )
    first = " ".join(next(filter(None, lines), skill.body).split())
    end = _SENTENCE_END.search(first, _LEAST_GIST_CHARS)
    return shorten(first[: end.start()] if end else first, _MOST_GIST_CHARS)


def remove_blocks(text: str) -> str:
    """The text as it was before blocks were placed in it."""
    parts: list[str] = []
    done, searched = 0, 0
    while match := _OPEN.search(text, searched):
        end = match.end() + int(match[1])
        inner = text[match.end() : end]
        if (
            len(inner) == int(match[1])
            and text.startswith(_CLOSE, end)
            and _checksum(inner) == match[2]
        ):
            parts.append(text[done : match.start()])
            done = searched = end + len(_CLOSE)
        else:
            searched = match.start() + 1
    return "".join(parts) + text[done:]


def already_present(skill: Skill, text: str) -> bool:
    """Whether the client's prompt contains this skill: its front matter, or a heading with its
    name. A mention of it is not enough."""
    if skill.name not in text:
        return False
    name = re.escape(skill.name)
    as_front_matter = rf"name:[ \t]*(?:\\?[\"'])?{name}(?:\\?[\"'])?[ \t]*\r?$"
    as_heading = rf"#{{1,6}}[ \t][^\n]{{0,80}}(?<![a-z0-9-]){name}(?![a-z0-9-])[^\n]{{0,80}}$"
    as_file = rf"[^\n]{{0,200}}/{name}/{re.escape(SKILL_FILE)}[ \t`:]*\r?\n---[ \t]*\r?$"
    return (
        re.search(rf"^[ \t>]*(?:{as_front_matter}|{as_heading}|{as_file})", text, re.MULTILINE)
        is not None
    )


def is_placed_in(skill: Skill, text: str) -> bool:
    """Whether a block has this rule, fact or skill in full, with its present text."""
    if skill.is_skill:
        return skill_text(skill) in text
    return f"\n{rule_line(skill)}\n" in text


def is_listed_in(skill: Skill, text: str) -> bool:
    """Whether a block lists this skill, with its present text."""
    return f"\n{listed_line(skill)}\n" in text or f"\n{listed_briefly(skill)}\n" in text


class _Written(NamedTuple):
    skill: Skill
    text: str
    tokens: int


# A cache of rendered texts, by identity, because a skill cannot be hashed.
_known: dict[tuple[Callable[[Skill], str], int], _Written] = {}
_MAX_KNOWN = 8192


def _write(skill: Skill, form: Callable[[Skill], str]) -> _Written:
    key = (form, id(skill))
    known = _known.get(key)
    if known is None or known.skill is not skill:
        text = form(skill)
        known = _Written(skill, text, estimate_tokens(text) + 1)
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        _known[key] = known
    return known


def _fitting(
    skills: Sequence[Skill], budget_tokens: int, form: Callable[[Skill], str]
) -> list[_Written]:
    """The skills that fit the budget, rendered. A skill that does not fit is skipped; a later,
    shorter one may still fit.
    """
    fitting: list[_Written] = []
    for skill in skills:
        written = _write(skill, form)
        if written.tokens <= budget_tokens:
            fitting.append(written)
            budget_tokens -= written.tokens
    return fitting


def _envelope(inner: str) -> str:
    return (
        f'\n\n<house_rules by="metaclaw" length="{len(inner)}"'
        f' sum="{_checksum(inner)}">\n{inner}{_CLOSE}'
    )


def skill_text(skill: Skill) -> str:
    """A skill in full."""
    return f"[{skill.name}] {skill.trigger}\n{skill.body}"


def _checksum(inner: str) -> str:
    return hashlib.blake2b(inner.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


_FRAME_TOKENS = sum(map(estimate_tokens, (_envelope(""), _PREAMBLE, _FULL))) + 4
"""The tokens of a block without its entries."""
