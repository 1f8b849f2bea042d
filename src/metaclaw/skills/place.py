"""The block of skills as it stands in a prompt: the same bytes for the same skills, within a budget, and removable without a trace.

The opening tag carries the length and a checksum of what follows, so a block is recognised by what it is and not by how it looks:
text that merely resembles one, in a skill or in a conversation, is left alone. Blank lines that set the block off are part of it.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Skill
from metaclaw.skills.files import SKILL_FILE

_ASCII_CHARS_A_TOKEN = 3.5
_TOKENS_A_WIDE_CHAR = 1.5
_TOKENS_AN_ACCENTED_CHAR = 0.75
_WIDE_CHARS_BEGIN = "\u2e80"

_PREAMBLE = (
    "House rules learned from earlier work in this installation. Each says when it applies. Follow those that fit what you are"
    " asked to do; pass over the others. The user's own words come first."
)
_CLOSE = "\n</house_rules>\n"
_OPEN = re.compile(r"\n\n<house_rules by=\"metaclaw\" length=\"(\d{1,6})\" sum=\"([0-9a-f]{12})\">\n")


@dataclass(frozen=True, slots=True)
class Block:
    """Text to be placed, and the names of the skills in it. Both empty where nothing fits."""

    text: str
    skills: tuple[SkillName, ...]


def estimate_tokens(text: str) -> int:
    """About how many tokens a text takes, rather too many than too few.

    Usual tokenisers make one token of four English letters or three characters of code: 3.5 ASCII characters are counted as one, an
    accented, Cyrillic or Arabic letter as three quarters, a Chinese, Japanese or Korean character or an emoji as one and a half.
    """
    if text.isascii():
        return ceil(len(text) / _ASCII_CHARS_A_TOKEN)
    plain = sum(char.isascii() for char in text)
    wide = sum(char >= _WIDE_CHARS_BEGIN for char in text)
    return ceil(plain / _ASCII_CHARS_A_TOKEN + wide * _TOKENS_A_WIDE_CHAR + (len(text) - plain - wide) * _TOKENS_AN_ACCENTED_CHAR)


def render_block(skills: Sequence[Skill], budget_tokens: int) -> Block:
    """A block of these skills in this order. A skill that does not fit is left out whole; a later, shorter one may still fit."""
    kept: list[Skill] = []
    text = ""
    for skill in skills:
        longer = _render([*kept, skill])
        if estimate_tokens(longer) <= budget_tokens:
            kept.append(skill)
            text = longer
    return Block(text, tuple(skill.name for skill in kept))


def remove_blocks(text: str) -> str:
    """The text as it was before blocks were placed in it."""
    parts: list[str] = []
    done, searched = 0, 0
    while match := _OPEN.search(text, searched):
        end = match.end() + int(match[1])
        inner = text[match.end() : end]
        if len(inner) == int(match[1]) and text.startswith(_CLOSE, end) and _checksum(inner) == match[2]:
            parts.append(text[done : match.start()])
            done = searched = end + len(_CLOSE)
        else:
            searched = match.start() + 1
    return "".join(parts) + text[done:]


def already_present(skill: Skill, text: str) -> bool:
    """Whether a client has put this very skill into its prompt itself: as a SKILL.md with its front matter, or under a heading with
    its name. A skill that is only mentioned in passing is not present."""
    if skill.name not in text:
        return False
    name = re.escape(skill.name)
    as_front_matter = rf"name:[ \t]*(?:\\?[\"'])?{name}(?:\\?[\"'])?[ \t]*\r?$"
    as_heading = rf"#{{1,6}}[ \t][^\n]{{0,80}}(?<![a-z0-9-]){name}(?![a-z0-9-])[^\n]{{0,80}}$"
    as_file = rf"[^\n]{{0,200}}/{name}/{re.escape(SKILL_FILE)}[ \t`:]*\r?\n---[ \t]*\r?$"
    return re.search(rf"^[ \t>]*(?:{as_front_matter}|{as_heading}|{as_file})", text, re.MULTILINE) is not None


def is_placed_in(skill: Skill, text: str) -> bool:
    """Whether a block's text holds this skill as it is now."""
    return _render_skill(skill) in text


def _render(skills: Sequence[Skill]) -> str:
    inner = "\n\n".join([_PREAMBLE, *(_render_skill(skill) for skill in skills)])
    return f'\n\n<house_rules by="metaclaw" length="{len(inner)}" sum="{_checksum(inner)}">\n{inner}{_CLOSE}'


def _render_skill(skill: Skill) -> str:
    return f"[{skill.name}] {skill.trigger}\n{skill.body}"


def _checksum(inner: str) -> str:
    return hashlib.blake2b(inner.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
