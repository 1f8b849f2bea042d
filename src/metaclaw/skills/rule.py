"""The words of a rule or fact: what it says, and when it applies."""

from metaclaw.domain.skill import Skill

# Rules of homes from before kinds existed wrap the person's words in a template.
_TEMPLATES = (
    "The person's own words, to be followed as they stand:",
    "A task of this kind went wrong before. What the person said about it:",
)
_ALWAYS = frozenset(("always", "always."))


def rule_words(rule: Skill) -> str:
    """What a rule or fact says: the person's own words, without the template that older homes put around them."""
    body = rule.body.strip()
    if not body.startswith(_TEMPLATES):
        return body
    return "\n".join(line.removeprefix(">").strip() for line in body.splitlines() if line.startswith(">")) or body


def rule_text(rule: Skill) -> str:
    """The same on one line."""
    return " ".join(rule_words(rule).split())


def rule_when(rule: Skill) -> str:
    """When a rule or fact applies; empty where that is always, or where an older home only listed words."""
    if rule.applies_always or rule.body.startswith(_TEMPLATES):
        return ""
    when = " ".join(rule.trigger.split())
    return "" if when.casefold() in _ALWAYS else when
