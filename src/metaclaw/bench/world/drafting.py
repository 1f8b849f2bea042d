"""The simulated evolver: drafts with real texts, which the real draft check reads, and effects that only this world knows."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Literal

from metaclaw.bench.world.policy import Effect, family
from metaclaw.bench.world.settings import Evolver
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, Skill

Worth = Literal["right", "useless", "harmful"]

_ALSO_SPOILT: Final = 3
_NO_SLUG: Final = re.compile(r"[^a-z0-9]+")
_WAYS: Final = {
    "right": ("Look up what the house asks for", "Do it before the work is handed over"),
    "useless": ("Read the task twice", "Keep the tone friendly"),
    "harmful": ("Leave it out, to save time", "Do the same for everything that looks alike"),
}
_SLOPPY: Final = (
    "I tried this and the user said it was wrong.",
    "See /home/simulated/notes for what happened in this session.",
    "Use the key YOUR_API_KEY for it.",
)


@dataclass(frozen=True, slots=True)
class Draft:
    """A skill as the evolver writes it, the rule whose failures it was written for, and what it does."""

    skill: Skill
    rule: str
    worth: Worth
    effect: Effect


def draft(rule: str, attempt: int, rules: Sequence[str], evolver: Evolver, rng: Random) -> Draft:
    """What the evolver makes of failures to follow a rule, of all the rules there are.

    A right draft names one form of a rule and misleads where another is wanted. A harmful one is found for some more rules, too,
    and spoils them all.
    """
    drawn = rng.random()
    worth: Worth = "right" if drawn < evolver.right else "harmful" if drawn < evolver.right + evolver.harmful else "useless"
    is_sloppy = worth != "right" and rng.random() < evolver.sloppy
    text = _body(worth, rng.choice(_SLOPPY) if is_sloppy else "")
    trigger = f"When a file or an answer falls under the simulated house rule {rule}"
    skill = Skill(SkillName(_name(rule, attempt)), trigger, text, author=Authorship.EVOLVER)
    return Draft(skill, rule, worth, _effect(worth, rule, rules, rng))


def _effect(worth: Worth, rule: str, rules: Sequence[str], rng: Random) -> Effect:
    kin = frozenset(one for one in rules if family(one) == family(rule)) | {rule}
    match worth:
        case "right":
            return Effect(kin, mends=frozenset({rule}), breaks=kin - {rule})
        case "useless":
            return Effect(kin)
        case "harmful":
            others = [one for one in rules if one not in kin]
            spoilt = kin | frozenset(rng.sample(others, min(_ALSO_SPOILT, len(others))))
            return Effect(spoilt, breaks=spoilt)


def _body(worth: Worth, fault: str) -> str:
    first, second = _WAYS[worth]
    return f"1. {first}.\n2. {second}.\n- Do not wait until somebody asks for it.\n{fault}".strip()


def _name(rule: str, attempt: int) -> str:
    slug = _NO_SLUG.sub("-", rule.casefold()).strip("-")[:48].strip("-") or "rule"
    return f"{slug}-{attempt}"
