"""The words of a rule or fact: what it says, and when it applies."""

import re
from typing import Final

from metaclaw.domain.skill import Skill

ALWAYS: Final = "always"
# Homes from before rules had a kind keep them in a template: an introduction, the person's words as a quotation, steps.
_TEMPLATES: Final = (
    "The person's own words, to be followed as they stand:",
    "A task of this kind went wrong before. What the person said about it:",
)
_QUOTATION: Final = re.compile(r"(?m)^> ?(.*)$")


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
