"""Rules and facts: create and change them from the fields of a command or an API call, name and
compare them; and a library of example rules."""

import hashlib
import json
import re
import sys
import tomllib
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import cache
from importlib.resources import files
from typing import Any, Final, TypedDict

from metaclaw.checks import check_trouble
from metaclaw.domain.front_matter import CHOICES
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import ALWAYS, Authorship, Fact, Rule, Skill, SkillState
from metaclaw.domain.turn import channel_name
from metaclaw.errors import SkillError
from metaclaw.skills.scopes import OWNER, choice_fault, fault_of
from metaclaw.text import hides_text, list_words

MAX_RULE_CHARS: Final = 2_000
MAX_WHEN_CHARS: Final = 500
_EMPHATIC: Final = re.compile(
    r"\bnever,? ever\b|\bunder no circumstances?\b|\bon no account\b|\bno exceptions\b|\bwithout"
    r" (?:any )?exception\b"
    r"|\bunter (?:gar )?keinen umständen\b|\bauf (?:gar )?keinen fall\b|\bnie und nimmer\b|\bsous"
    r" aucun prétexte\b"
    r"|\ben aucun cas\b|\bbajo ningún concepto\b|\bnunca jamás\b|\ben ningún caso\b|\bem hipótese"
    r" alguma\b|\bem nenhuma hipótese\b"
    r"|\bin nessun caso\b|\bmai e poi mai\b|\bonder geen beding\b|\bnooit ofte nimmer\b|\bни в коем"
    r" случае\b|\bни при каких\b"
    r"|绝对不|絕對不|绝不|絕不|無論如何|无论如何都不|絶対に|절대로",
    re.IGNORECASE,
)
_WORD: Final = re.compile(r"\w+")
# Programs run on Linux only (`checks.run`): elsewhere, holding by one would hold every call.
_LOOKS_AT_CALLS: Final = re.compile(
    r"\s*(?:(?:pattern|not|schema)[ \t]+in[ \t]+calls\b"
    + (r"|program\b)" if sys.platform == "linux" else ")")
)
_ABOUT_ANSWERS: Final = re.compile(r"\Aprogram:[\s\S]*^[ \t]*# answers only[ \t]*$", re.MULTILINE)
_SCOPES: Final = ("user:", "team:", "workspace:")


class RuleFields(TypedDict, total=False):
    """The fields of a rule that a person may set; an absent field stays as it is."""

    text: str
    kind: str
    when: str | None
    scope: str | None
    workspace: str | None
    channel: str | None
    examples: Sequence[str]
    expires: str | None
    source: str | None
    check: str | None
    enforce: str | None
    on_error: str | None
    on_break: str | None
    name: str


def is_emphatic(text: str) -> bool:
    """Whether a person says "never, ever" or the like. Then they are asked whether calls that break
    the rule should be held.
    """
    return _EMPHATIC.search(text) is not None


def can_hold(rule: Skill) -> bool:
    """Whether its check looks at tool calls, so that `enforce: hold` has an effect."""
    check = rule.check
    return (
        check is not None
        and _LOOKS_AT_CALLS.match(check) is not None
        and not is_about_answers(check)
    )


def is_about_answers(check: str) -> bool:
    """Whether a check is a program with a line `# answers only`: it passes every answer with tool
    calls.
    """
    return _ABOUT_ANSWERS.search(check) is not None


def question_of(rule: Skill) -> str | None:
    """The open question to the person about a rule, with the command that answers it, or None."""
    if not rule.asks_to_hold or rule.enforce is not None:
        return None
    first = "" if can_hold(rule) else "--check 'not in calls of shell: …' "
    return f"hold it? metaclaw rules edit {rule.name} {first}--enforce hold (or --enforce remind)"


def new_rule(fields: RuleFields, known: Callable[[str], Skill | None], today: date) -> Rule:
    """A rule or fact with a readable name that no `known` rule with another text has. Raises
    SkillError that names the field.
    """
    text = _text(fields.get("text"))
    kind = fields.get("kind", Rule.kind.value)
    if kind not in (Rule.kind, Fact.kind):
        raise SkillError(f"kind is {kind!r}: write `rule` or `fact`")
    blank = (
        Fact(SkillName("rule"), ALWAYS, text, applies_always=True)
        if kind == Fact.kind
        else Rule(
            SkillName("rule"), ALWAYS, text, applies_always=True, asks_to_hold=is_emphatic(text)
        )
    )
    rule = changed_rule(blank, fields, today)

    def is_taken(name: str) -> bool:
        other = known(name)
        return other is not None and not same_rule(other, rule)

    wanted = slug([fields.get("name", "")])
    return replace(
        rule,
        name=(
            free_name(wanted, is_taken) if wanted else rule_name(text, rule.trigger, kind, is_taken)
        ),
    )


def changed_rule(rule: Rule, fields: RuleFields, today: date) -> Rule:
    """The rule with these fields changed and a person as its author. Raises SkillError that names
    the field.
    """
    changes: dict[str, Any] = {"state": SkillState.LIVE, "author": Authorship.PERSON}
    if "text" in fields:
        changes["body"] = _text(fields["text"])
    if "when" in fields:
        when = " ".join((fields["when"] or ALWAYS).split()) or ALWAYS
        if len(when) > MAX_WHEN_CHARS:
            raise SkillError(
                f"when has {len(when)} characters: say in at most {MAX_WHEN_CHARS} when it applies"
            )
        is_always = when.casefold() == ALWAYS
        changes |= {"trigger": ALWAYS if is_always else when, "applies_always": is_always}
    if "scope" in fields:
        changes["scope"] = _scope(fields["scope"])
    if "workspace" in fields:
        workspace = (fields["workspace"] or "").strip() or None
        changes |= {"workspace": workspace, "is_project_unknown": False}
    if "channel" in fields:
        changes["channel"] = _channel(fields["channel"])
    if "examples" in fields:
        stripped = (example.strip() for example in fields["examples"])
        changes["examples"] = tuple(filter(None, stripped))
    if "expires" in fields:
        changes["expires"] = _expires(fields["expires"], today)
    if "source" in fields:
        changes["source"] = fields["source"] or None
    if "check" in fields:
        # A check that a person wrote or accepted needs no confirmation.
        check = (fields["check"] or "").strip() or None
        changes |= {"check": check, "check_state": None, "check_note": None}
    for key, value in fields.items():
        if key in CHOICES:
            if (fault := choice_fault(key, value, CHOICES[key])) is not None:
                raise SkillError(fault)
            changes[key] = value
    if "enforce" in fields:
        changes["asks_to_hold"] = False
        if fields["enforce"] == "hold":
            changes["check_state"] = None  # a person who sets `hold` has seen the check
    changed = replace(rule, **changes)
    if "check" in fields and (trouble := check_trouble(changed)) is not None:
        raise SkillError(f"check cannot be read: {trouble}")
    return changed


def same_rule(one: Skill, other: Skill) -> bool:
    """Whether two rules or skills say the same for the same scope, workspace and channel."""
    return (
        one.kind is other.kind
        and (one.scope, one.workspace, one.channel) == (other.scope, other.workspace, other.channel)
        and plain_words(one.body) == plain_words(other.body)
    )


def find_same(rule: Rule, among: Iterable[Skill]) -> Rule | None:
    """The first of these rules that says the same."""
    return next(
        (other for other in among if isinstance(other, Rule) and same_rule(other, rule)), None
    )


def plain_words(text: str) -> str:
    """The words without case and punctuation, for comparing texts."""
    return " ".join(_WORD.findall(text.casefold()))


def _text(value: str | None) -> str:
    text = (value or "").strip()
    if not text:
        raise SkillError("text is missing or empty: write what is to be followed or remembered")
    if hides_text(text):
        raise SkillError(
            "text holds encoded text, which a person cannot read: write it in plain words"
        )
    if len(text) > MAX_RULE_CHARS:
        raise SkillError(
            f"text has {len(text)} characters: a rule has at most {MAX_RULE_CHARS}; make a skill of"
            " it (metaclaw skills add)"
        )
    return text


def _scope(value: str | None) -> str | None:
    scope = (value or "").strip()
    if scope in ("", "everyone", "everywhere"):
        return None
    if (fault := fault_of(scope)) is not None:
        raise SkillError(f"scope {fault}")
    if scope != OWNER and not scope.startswith(_SCOPES):
        raise SkillError(f"scope is {scope!r}: write `everyone`, `owner`, `user:ID` or `team:NAME`")
    return scope


def _channel(value: str | None) -> str | None:
    said = (value or "").strip()
    name = channel_name(said)
    if said and name is None:
        raise SkillError(f"channel is {said!r}: write the name of one, such as `slack`")
    return name


def _expires(value: str | None, today: date) -> date | None:
    if not value:
        return None
    try:
        day = date.fromisoformat(value)
    except ValueError as error:
        raise SkillError(f"expires is {value!r}: write the last day as 2027-01-31") from error
    if day < today:
        raise SkillError(f"expires is {value}, which is over: write a day to come")
    return day


_FILE: Final = "rule_examples.toml"


@dataclass(frozen=True, slots=True)
class RuleExample:
    """A rule of the library of examples. `breaks` and `follows` are samples for its check; a
    program has none.
    """

    name: str
    text: str
    when: str
    check: str
    breaks: tuple[str, ...]
    follows: tuple[str, ...]

    @property
    def fields(self) -> RuleFields:
        """The fields of the rule that is put in force."""
        return {"text": self.text, "when": self.when, "check": self.check}


@cache
def rule_examples() -> dict[str, RuleExample]:
    """The library of examples, by name."""
    read = tomllib.loads((files("metaclaw.skills") / _FILE).read_text(encoding="utf-8"))
    return {
        name: RuleExample(
            name,
            fields["text"],
            fields.get("when", ALWAYS),
            fields["check"].strip(),
            tuple(fields.get("breaks", ())),
            tuple(fields.get("follows", ())),
        )
        for name, fields in read.items()
    }


def rule_example(name: str) -> RuleExample:
    """The example of this name. Raises SkillError."""
    found = rule_examples().get(name)
    if found is None:
        raise SkillError(
            f"there is no example {name}; metaclaw rules examples lists those there are"
        )
    return found


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
    """Words as a slug, cut between words; empty if it has no ASCII letters."""
    plain = (
        unicodedata.normalize("NFKD", " ".join(words)).encode("ascii", "ignore").decode().lower()
    )
    text = _NOT_SLUG.sub("-", plain).strip("-")
    if len(text) > most_chars:
        text = text[: most_chars + 1].rpartition("-")[0] or text[:most_chars]
    return text.strip("-")


def rule_name(text: str, when: str, kind: str, is_taken: Callable[[str], bool]) -> SkillName:
    """A readable name: the first words of the text without its opening; if the script is not Latin,
    the kind and some words of the text in English."""
    about = _in_english(text) or _in_english(when)
    return free_name(_readable(text) or (f"{kind}-{about}" if about else kind), is_taken)


def _readable(text: str) -> str:
    """The first words as a slug; empty if most of the text is in another script."""
    words = text.split()
    while len(words) > _FEW_WORDS and slug(words[:1]) in _OPENING:
        del words[0]
    letters = sum(map(str.isalpha, text))
    name = slug(words, _RULE_CHARS)
    return name if sum(map(str.isalpha, name)) >= _LATIN_SHARE * min(letters, _RULE_CHARS) else ""


def _in_english(text: str) -> str:
    latin = [
        word
        for word in list_words(text)
        if any(map(str.isalpha, slug([word]))) and word.casefold() != "always"
    ]
    known = [english for term, english in _GLOSSARY.items() if term in text.casefold()]
    return slug(list(dict.fromkeys([*latin, *known]))[:_MOST_WORDS], _RULE_CHARS)


def digest(*parts: str) -> str:
    """A hash of six characters."""
    return hashlib.blake2b(
        "\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=3
    ).hexdigest()


def numbered(name: str) -> Iterator[SkillName]:
    """The name, then `name-2`, `name-3` and so on."""
    yield SkillName(name)
    for number in range(2, _MOST_ALIKE):
        yield SkillName(f"{name}-{number}")


def free_name(wanted: str, is_taken: Callable[[str], bool]) -> SkillName:
    """A valid name that is not taken: the wanted one, or with a number. Raises SkillError if all
    numbers are taken.
    """
    base = slug([wanted]) or "skill"
    free = next((name for name in numbered(base) if not is_taken(name)), None)
    if free is None:
        raise SkillError(f"there are {_MOST_ALIKE} skills named like {base}")
    return free


def with_free_name(skill: Skill, in_force: Callable[[SkillName], Skill | None]) -> Skill:
    """The skill with the name under which the same text of the same person is in force, or else
    with a free name.
    """
    known = {name: in_force(name) for name in numbered(skill.name)}
    same = (
        name
        for name, other in known.items()
        if other is not None and other.author is skill.author and same_rule(other, skill)
    )
    free = (name for name, other in known.items() if other is None)
    return replace(skill, name=next(same, next(free, skill.name)))
