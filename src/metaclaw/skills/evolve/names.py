"""Names for learned skills: readable slugs, numbered where a name is taken."""

import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib.resources import files

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Skill
from metaclaw.errors import SkillError
from metaclaw.skills.terms import list_terms, list_words

_RULE_CHARS = 40
_WORD_CHARS = 24
_FEW_WORDS = 2
_MOST_WORDS = 5
_WORDS = json.loads((files("metaclaw.skills.evolve") / "names.json").read_text(encoding="utf-8"))
_FRAME = frozenset(_WORDS["frame"])
_GLOSSARY: dict[str, str] = _WORDS["glossary"]
_MOST_ALIKE = 100
_NOT_SLUG = re.compile(r"[^a-z0-9]+")


def slug(words: Iterable[str], most_chars: int = 48) -> str:
    """Words as a slug, cut between words; empty where no letter of it can be written in ASCII."""
    plain = unicodedata.normalize("NFKD", " ".join(words)).encode("ascii", "ignore").decode().lower()
    text = _NOT_SLUG.sub("-", plain).strip("-")
    if len(text) > most_chars:
        text = text[: most_chars + 1].rpartition("-")[0] or text[:most_chars]
    return text.strip("-")


def rule_name(text: str, when: str, kind: str, is_taken: Callable[[str], bool]) -> SkillName:
    """A readable name for a rule or fact: the words of its text that say what it is about, else of its situation; where their
    script has no Latin letters, the commonest of their words in English."""
    words = next((found for one in (text, when) if (found := _telling(one))), [])
    return own_name(slug(words, _RULE_CHARS) or kind, is_taken)


def _telling(text: str) -> list[str]:
    """The words of a text for a name, each once, without those that frame a rule; fewer than two readable ones are helped by the
    glossary."""
    latin = [word for word in list_words(text) if slug([word]) and len(word) <= _WORD_CHARS]
    found = [word for word in latin if word.casefold() not in _FRAME and list_terms(word)]
    if len(found) < _FEW_WORDS:
        found += [english for term, english in _GLOSSARY.items() if term in text]
    return list(dict.fromkeys(word.casefold() for word in found))[:_MOST_WORDS]


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
