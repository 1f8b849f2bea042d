"""The text of rules and facts: a person's own words, also in files that older versions of the program wrote."""

import re
from typing import Final

from metaclaw.domain.skill import Authorship, Skill, SkillKind

# Older versions wrote an introduction, the person's words as a quotation, and numbered steps.
_QUOTED_TEMPLATE: Final = re.compile(r"[^\n>]{0,120}:\n\n((?:>[^\n]*(?:\n|\Z))+)\n?1\. ")
_QUOTE: Final = re.compile(r"(?m)^> ?")


def is_rule(skill: Skill) -> bool:
    """Whether it is a person's own words: a rule or a fact."""
    return skill.kind is not SkillKind.SKILL


def rule_text(skill: Skill) -> str:
    """The person's words, without what older versions of the program wrote around them."""
    template = _QUOTED_TEMPLATE.match(skill.body) if skill.author is Authorship.INSTRUCTION else None
    return skill.body if template is None else _QUOTE.sub("", template[1]).strip()


def says_the_same(one: Skill, other: Skill) -> bool:
    """Whether two rules say the same to the same people in the same place."""
    is_same_place = one.scope == other.scope and one.extra.get("workspace") == other.extra.get("workspace")
    return is_same_place and plain_text(rule_text(one)) == plain_text(rule_text(other))


def plain_text(text: str) -> str:
    """The words alone, for comparing."""
    return " ".join(re.findall(r"\w+", text.casefold()))
