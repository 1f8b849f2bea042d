"""The fields of a rule or fact: its text, when it applies, and what happens when it is broken."""

import re
from collections.abc import Sequence
from typing import Final

from metaclaw.domain.skill import Skill

ALWAYS: Final = "always"
ENFORCE: Final = ("off", "remind", "hold")
ON_ERROR: Final = ("pass", "hold")
ON_BREAK: Final = ("text", "call")
PROPOSED, CONFIRMED = CHECK_STATES = ("proposed", "confirmed")
"""A check that a model wrote is proposed until a real turn has confirmed it. One without a state is a person's, and confirmed."""
# Homes from before rules had a kind keep them in a template: an introduction, the person's words as a quotation, steps.
_TEMPLATES: Final = (
    "The person's own words, to be followed as they stand:",
    "A task of this kind went wrong before. What the person said about it:",
)
_QUOTATION: Final = re.compile(r"(?m)^> ?(.*)$")


def choice_fault(field: str, value: object, allowed: Sequence[str]) -> str | None:
    """What is wrong with the value of a field that allows only these; None where it is one of them, or missing."""
    if value is None or value in allowed:
        return None
    words = [f"`{one}`" for one in allowed]
    return f"{field} is {value!r}: write {', '.join(words[:-1])} or {words[-1]}"


def rule_text(rule: Skill) -> str:
    """The person's words, without the template that older homes have around them."""
    if not is_template(rule):
        return rule.body
    return "\n".join(_QUOTATION.findall(rule.body)).strip() or rule.body


def rule_when(rule: Skill) -> str:
    """When it applies: `always`, or the situation in words. A trigger that only repeats the rule names no situation."""
    is_always = rule.applies_always or rule.trigger.strip(" .").casefold() == ALWAYS or rule.trigger.split() == rule.body.split()
    return ALWAYS if is_always else rule.trigger


def is_template(rule: Skill) -> bool:
    """Whether it stands in the template of an older home, whose trigger only lists words."""
    return rule.body.startswith(_TEMPLATES)


def enforce_of(skill: Skill) -> str:
    """What happens when it is broken: `off` (only counted), `remind` (the default) or `hold`."""
    value = skill.extra.get("enforce")
    return value if isinstance(value, str) and value in ENFORCE else "remind"


def on_error_of(skill: Skill) -> str:
    """What happens to a call when its check cannot be run: `pass` (the default) or `hold`."""
    return "hold" if skill.extra.get("on_error") == "hold" else "pass"


def on_break_of(skill: Skill) -> str:
    """What the client gets when a held rule is broken in every attempt: a `text` (the default), or the `call` with a warning."""
    return "call" if skill.extra.get("on_break") == "call" else "text"


def check_state_of(skill: Skill) -> str | None:
    """Whether its check is `proposed` or `confirmed`; None where it has no check."""
    if skill.extra.get("check") is None:
        return None
    return PROPOSED if skill.extra.get("check_state") == PROPOSED else CONFIRMED
