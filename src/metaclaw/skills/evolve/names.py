"""Names for learned skills: readable slugs, numbered where a name is taken."""

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Skill
from metaclaw.errors import SkillError

_MOST_ALIKE = 100
_NOT_SLUG = re.compile(r"[^a-z0-9]+")


def slug(words: Iterable[str], most_chars: int = 48) -> str:
    """Words as a slug, cut between words; empty where no letter of it can be written in ASCII."""
    plain = unicodedata.normalize("NFKD", " ".join(words)).encode("ascii", "ignore").decode().lower()
    text = _NOT_SLUG.sub("-", plain).strip("-")
    if len(text) > most_chars:
        text = text[: most_chars + 1].rpartition("-")[0] or text[:most_chars]
    return text.strip("-")


def digest(*parts: str) -> str:
    """Six characters that stand for a text."""
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=3).hexdigest()


def numbered(name: str) -> Iterator[SkillName]:
    """The name, then `name-2`, `name-3` and so on."""
    yield SkillName(name)
    for number in range(2, _MOST_ALIKE):
        yield SkillName(f"{name}-{number}")


def own_name(wanted: str, is_taken: Callable[[str], bool]) -> SkillName:
    """A valid name like the wanted one that is not taken. Raises SkillError where all its numbers are taken."""
    base = slug([wanted]) or "skill"
    free = next((name for name in numbered(base) if not is_taken(name)), None)
    if free is None:
        raise SkillError(f"there are {_MOST_ALIKE} skills named like {base}")
    return free


def named_apart(skill: Skill, in_force: Callable[[SkillName], Skill | None]) -> Skill:
    """The skill under the name under which the same words of the same person are in force already, else under a free one."""
    known = {name: in_force(name) for name in numbered(skill.name)}
    same = (name for name, one in known.items() if one is not None and _says_the_same(one, skill))
    free = (name for name, one in known.items() if one is None)
    return replace(skill, name=next(same, next(free, skill.name)))


def _says_the_same(in_force: Skill, skill: Skill) -> bool:
    """Whether a skill in force holds the same words for the same scope."""
    texts = (" ".join(one.body.casefold().split()) for one in (in_force, skill))
    return in_force.scope == skill.scope and in_force.author is skill.author and len(set(texts)) == 1
