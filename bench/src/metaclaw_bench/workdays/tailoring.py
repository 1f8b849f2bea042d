"""A plan made to measure, from words: who speaks which language, who means a rule in a way of their
own, where the work is done.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from metaclaw.plugin import ConfigError
from metaclaw_bench.workdays.demands import Rule
from metaclaw_bench.workdays.plans import (
    CONTRADICTING_USERS,
    Drift,
    Plan,
    User,
    add_rules,
    speaking,
)

CONTRADICTING: Final = "contradicting"
_DRIFT: Final = re.compile(r"(\d+):(\w+)=(\S+)")


def tailored(
    plan: Plan,
    *,
    users: Sequence[str] = (),
    languages: Sequence[str] = (),
    domains: Sequence[str] = (),
    drift: str | None = None,
    rules: Sequence[Rule] = (),
) -> Plan:
    """The plan with what is given, and named after it, so that nobody takes it for the plain one.
    Raises ConfigError.
    """
    if users and languages:
        raise ConfigError(
            "--users and --languages: give one of them; a user has a language (Robin:de)"
        )
    asked = [
        *users,
        *languages,
        *domains,
        *([drift] if drift else []),
        *(rule.id for rule in rules),
    ]
    if languages:
        plan = speaking(plan, *languages)
    if users:
        plan = replace(plan, users=tuple(_users(users)))
    if domains:
        plan = replace(plan, domains=tuple(domains))
    if drift is not None:
        plan = replace(plan, drift=_drift(drift))
    plan = add_rules(plan, rules)
    return (
        plan
        if not asked
        else replace(
            plan,
            name="-".join([plan.name, *(re.sub(r"\W+", "-", word).strip("-") for word in asked)]),
        )
    )


def _users(words: Iterable[str]) -> Iterable[User]:
    """`NAME[:LANGUAGE[:RULE=VARIANT;…]]` each; `contradicting` stands for two who do."""
    for word in words:
        if word == CONTRADICTING:
            yield from CONTRADICTING_USERS
            continue
        name, _, rest = word.partition(":")
        language, _, meant = rest.partition(":")
        pairs = [pair.partition("=") for pair in meant.split(";") if pair]
        if not name or not all(rule and variant for rule, _, variant in pairs):
            raise ConfigError(
                f"--users {word}: write NAME, NAME:LANGUAGE or"
                " NAME:LANGUAGE:RULE=VARIANT;RULE=VARIANT"
            )
        yield User(name, language or "en", {rule: variant for rule, _, variant in pairs})


def _drift(word: str) -> Drift:
    found = _DRIFT.fullmatch(word)
    if found is None:
        raise ConfigError(f"--drift {word}: write DAY:RULE=VARIANT, such as 9:times=+09:00")
    return Drift(int(found[1]), found[2], found[3])
