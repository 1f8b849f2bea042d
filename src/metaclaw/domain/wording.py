"""The words in which people read verdicts, agents, audiences, sums and held calls: the same on the page and in the terminal."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from metaclaw.domain.verdict import Outcome

OUTCOMES: Final = {"pass": "good", "fail": "bad", "unknown": "unclear"}
"""Verdicts on a turn. `failed` is no verdict: it is the word for a turn to which no answer came."""
FAILED: Final = "failed"
NOT_JUDGED: Final = "not judged yet"
SOURCES: Final = {
    "user": "you said so",
    "check": "a check found it",
    "detector": "seen in what happened next",
    "judge": "a judge found it",
    "nobody": "it could not be judged",
}
CAME_LATER: Final = "it came into force after this turn"
"""Why a rule or skill of today was not in an earlier prompt."""
EVERYONE: Final = "everyone"
YOU: Final = "you"
_UNKNOWN_AGENT: Final = "agent not known"
_UNDID: Final = re.compile(r"undid generation \d+ \((.*)\)", re.DOTALL)
_GOT: Final = {
    "complied": "The client got the calls of the last attempt, which follow the rules.",
    "words": "The client got the words of the last attempt, which has no calls.",
    "stopped": "The client got a text in place of the calls.",
    "warned": "The client got the calls of the last attempt with a warning.",
}


def outcome_word(outcome: object) -> str:
    """A verdict's outcome as a person says it."""
    return NOT_JUDGED if outcome is None else OUTCOMES.get(str(outcome), str(outcome))


def source_words(source: object) -> str:
    """Where a verdict comes from."""
    return SOURCES.get(str(source), str(source))


def session_words(outcomes: "Mapping[Outcome, int]", failed: int) -> str:
    """How the turns of a session went: `1 bad, 2 good, 6 failed`. Where nothing is known: not judged yet."""
    known = {str(outcome): number for outcome, number in outcomes.items()}
    counts = [(known.get("fail"), OUTCOMES["fail"]), (known.get("pass"), OUTCOMES["pass"]), (failed, FAILED)]
    told = [f"{number} {word}" for number, word in counts if number]
    return ", ".join(told) or (OUTCOMES["unknown"] if known.get("unknown") else NOT_JUDGED)


def agent_word(name: object) -> str:
    """The name of an agent; one that the proxy does not recognise has none."""
    return _UNKNOWN_AGENT if name == "unknown" else str(name)


def audience(scope: object) -> str:
    """For whom a rule or skill is."""
    if not scope:
        return EVERYONE
    return YOU if scope == "owner" else str(scope).removeprefix("user:").replace("team:", "team ", 1)


def money(cost: object, unpriced_tokens: object = 0) -> str:
    """A sum in dollars; small ones with more digits. Tokens of models without a price are said to be left out."""
    if not isinstance(cost, int | float):
        return "unpriced"
    partly = " + unpriced" if unpriced_tokens else ""
    return f"${cost:,.2f}{partly}" if cost >= 0.1 or not cost else f"${cost:.4f}{partly}"


def reason_words(reason: object) -> str:
    """Why a generation was made. The stored reason of an undo names a number; this names what was taken back."""
    words = str(reason)
    undone = _UNDID.fullmatch(words)
    return words if undone is None else f"took back the change “{reason_words(undone[1])}”"


def attempt_word(end: object, number: int, attempts: int) -> str:
    """What became of one of the attempts at an answer whose calls were held."""
    if number < attempts or end == "stopped":
        return "refused"
    return "passed with a warning" if end == "warned" else "given to the client"


def client_got(end: object, *, has_calls: bool) -> str:
    """What the client got of an answer whose calls were held: `has_calls` says that the last attempt has any."""
    return _GOT.get("words" if end == "complied" and not has_calls else str(end), "")
