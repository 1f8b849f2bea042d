"""What the model and the client are told of held calls, in words."""

from collections.abc import Mapping, Sequence
from typing import Final

from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.turn import STOPPED_BY_US
from metaclaw.proxy.held_rules import Broken, HeldRule

_MOST_RULE_CHARS: Final = 300
_AGAIN: Final = ("", ", also after the model was asked again", ", also after the model was asked again twice")


def refusal_text(rules: Sequence[HeldRule]) -> str:
    """The result of a call that breaks these rules, for the model."""
    named = "; ".join(f"`{rule.name}`: {_short(rule.text)}" for rule in rules)
    what = "a rule" if len(rules) == 1 else "rules"
    return (
        f"Refused: this call breaks {what} of the person you work for and was not run. {named.rstrip('.')}. "
        "Send calls that follow the rule, or say in words why you cannot."
    )


def sibling_text() -> str:
    """The result of a call beside one that was refused, for the model."""
    return "Not run, because another call of the same answer was refused. Send this call again if it is still needed."


def stop_text(rules: Mapping[SkillName, HeldRule], turn: TurnId, asked_again: int, trouble: str) -> str:
    """What the client gets in place of calls that break these rules. `trouble` says why the model could not be asked again."""
    named = "; ".join(f"`{name}` ({_short(rule.text)})" for name, rule in rules.items())
    again = f", and the model could not be asked again: {trouble}" if trouble else _AGAIN[min(asked_again, len(_AGAIN) - 1)]
    return (
        f"{STOPPED_BY_US}, because it breaks the rule {named}{again}. Nothing was run. "
        f"The rule is the person's: follow it, or ask them. What happened: `metaclaw why {turn}`."
    )


def silence_text(rules: Mapping[SkillName, HeldRule], turn: TurnId) -> str:
    """What the client gets instead of an empty message, which providers refuse in later requests."""
    named = ", ".join(f"`{name}`" for name in rules)
    return (
        f"{STOPPED_BY_US}, because it breaks the rule {named}, and the model had nothing else to say. "
        f"Nothing was run. What happened: `metaclaw why {turn}`."
    )


def warning_text(broken: Sequence[Broken]) -> str:
    """What stands before calls that break rules and are let through."""
    named = "; ".join(f"`{one.rule.name}` ({_short(one.rule.text)})" for one in broken)
    return f"MetaClaw warning: the next tool call breaks the rule {named}."


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MOST_RULE_CHARS else line[: _MOST_RULE_CHARS - 1] + "…"
