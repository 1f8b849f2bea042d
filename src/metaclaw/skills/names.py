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
from metaclaw.text import list_words

_RULE_CHARS = 40
_FEW_WORDS = 3
_MOST_WORDS = 5
_LATIN_SHARE = 0.4
_WORDS = json.loads((files("metaclaw.skills") / "names.json").read_text(encoding="utf-8"))
_OPENING = frozenset(_WORDS["opening"])
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
    """A readable name for a rule or fact: the first words of its text, without what only opens it; where its script has no Latin
    letters, its kind and the commonest of its words in English."""
    about = _in_english(text) or _in_english(when)
    return own_name(_readable(text) or (f"{kind}-{about}" if about else kind), is_taken)


def _readable(text: str) -> str:
    """The first words as a slug; empty where most of the text is in another script."""
    words = text.split()
    while len(words) > _FEW_WORDS and slug(words[:1]) in _OPENING:
        del words[0]
    letters = sum(map(str.isalpha, text))
    name = slug(words, _RULE_CHARS)
    return name if sum(map(str.isalpha, name)) >= _LATIN_SHARE * min(letters, _RULE_CHARS) else ""


def _in_english(text: str) -> str:
    latin = [word for word in list_words(text) if any(map(str.isalpha, slug([word]))) and word.casefold() != "always"]
    known = [english for term, english in _GLOSSARY.items() if term in text.casefold()]
    return slug(list(dict.fromkeys([*latin, *known]))[:_MOST_WORDS], _RULE_CHARS)


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
