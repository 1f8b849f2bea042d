"""Facts shown to a person (health, size of the store, cost of calls), and the words that the page
and the terminal use for verdicts, agents, audiences, sums and held calls."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from operator import add, attrgetter
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from metaclaw.domain.verdict import Outcome


class Health(StrEnum):
    """DEGRADED: the proxy serves, but something is broken."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"


class LoopState(StrEnum):
    """What the slow loop is doing, for people."""

    WAITING = "waiting for turns"
    SHUT = "waiting for a window"
    DOWN = "training service unreachable"
    MISSING = "waiting for a missing package"
    UNPAID = "waiting for the learning budget"
    MEMORY = "waiting for memory"
    PREPARING = "preparing a run"
    TRAINING = "training"
    CHOOSING = "comparing checkpoints"
    PROVING = "testing the new version"
    ABSORBING = "checking which skills the new weights have absorbed"


RUN_STATES: Final = (
    LoopState.PREPARING,
    LoopState.TRAINING,
    LoopState.CHOOSING,
    LoopState.PROVING,
    LoopState.ABSORBING,
)
"""A run is made, or its version is tested."""


@dataclass(frozen=True, slots=True)
class StoreHealth:
    """Whether turns are stored; if not, why, and how many were lost or wait in memory."""

    health: Health
    reason: str | None
    waiting_turns: int
    lost_turns: int
    notice: str | None = None
    """A past problem that a person should know of although the store works again."""


@dataclass(frozen=True, slots=True)
class StoreSize:
    """Bytes of the database, how many of them are free, its limit, and how many sessions the limit
    has removed since the start.
    """

    size_bytes: int
    free_bytes: int
    max_bytes: int | None
    removed_sessions: int


@dataclass(frozen=True, slots=True)
class SkippedSkill:
    """A skill file that could not be read, and why."""

    path: str
    reason: str


SERVED: Final = "serve"
"""The purpose under which the main turns of agents are counted, beside the purposes of the
program's own calls.
"""
ENFORCED: Final = "enforce"
"""The purpose of requests that ask a provider again because a call broke a held rule. They count
neither as traffic of agents nor as learning, but against the budget."""


@dataclass(frozen=True, slots=True)
class SpendingKey:
    """What a sum counts. `day` is `YYYY-MM-DD` in local time, `model` is `provider/model`."""

    day: str
    purpose: str
    model: str


@dataclass(frozen=True, slots=True)
class Spending:
    """A sum of calls. `input_tokens` includes the cached ones. `turns` are the turns the calls were
    about; `estimated` the calls whose provider did not say how many tokens they took;
    `unpriced_tokens` the tokens of models without a price, which `cost` leaves out."""

    turns: int = 0
    calls: int = 0
    failures: int = 0
    estimated: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    unpriced_tokens: int = 0
    cost: float = 0.0

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Spending") -> "Spending":
        return Spending(*map(add, _values(self), _values(other)))


# dataclasses.astuple makes deep copies, which took most of the time of counting many turns.
_values = attrgetter(*(field.name for field in fields(Spending)))


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
KEEP_RULES: Final = "metaclaw-keep-rules"
"""The name of the built-in rule that an agent must not change the person's rules. It applies while
any rule is held.
"""
EVERYONE: Final = "everyone"
YOU: Final = "you"
_UNKNOWN_AGENT: Final = "agent not known"
_TEXT_CHARS: Final = 80
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


def session_words(outcomes: "Mapping[Outcome, int] | Mapping[str, int]", failed: int) -> str:
    """The verdicts of a session's turns: `1 bad, 2 good, 6 failed`, `unclear` or `not judged
    yet`.
    """
    known = {str(outcome): number for outcome, number in outcomes.items()}
    counts = [
        (known.get("fail"), OUTCOMES["fail"]),
        (known.get("pass"), OUTCOMES["pass"]),
        (failed, FAILED),
    ]
    words = [f"{number} {word}" for number, word in counts if number]
    return ", ".join(words) or (OUTCOMES["unknown"] if known.get("unknown") else NOT_JUDGED)


def agent_word(name: object) -> str:
    """The name of an agent, or words for an agent that the proxy does not recognise."""
    return _UNKNOWN_AGENT if name == "unknown" else str(name)


def held_words(held: int, by_agent: Mapping[str, int]) -> str:
    """`5 held back (codex 3, claude-code 2)`: the turns in which calls were held, in all and by
    agent.
    """
    agents = [
        (agent_word(agent), times)
        for agent, times in sorted(by_agent.items(), key=lambda one: -one[1])
        if times
    ]
    names = ", ".join(f"{agent} {times}" if len(agents) > 1 else agent for agent, times in agents)
    return f"{held} held back" + (f" ({names})" if names else "")


def audience(scope: object) -> str:
    """The audience of a rule or skill in words."""
    if not scope:
        return EVERYONE
    return (
        YOU if scope == "owner" else str(scope).removeprefix("user:").replace("team:", "team ", 1)
    )


def money(cost: object, unpriced_tokens: object = 0) -> str:
    """A sum in dollars, with more digits if it is small; ` + unpriced` says that tokens of models
    without a price are left out.
    """
    if not isinstance(cost, int | float):
        return "unpriced"
    partly = " + unpriced" if unpriced_tokens else ""
    return f"${cost:,.2f}{partly}" if cost >= 0.1 or not cost else f"${cost:.4f}{partly}"


def reason_words(reason: object) -> str:
    """Why a generation was made. The stored reason of an undo names a number; this names what was
    taken back.
    """
    words = str(reason)
    undone = _UNDID.fullmatch(words)
    return words if undone is None else f"took back the change “{reason_words(undone[1])}”"


def replaced_words(change: Mapping[str, Any]) -> str:
    """What a person's newer words took the place of, as `change_view` has it; empty if nothing."""
    if not (str(change["reason"]).startswith("replaced ") and change["put"] and change["gone"]):
        return ""
    old, new = (" / ".join(_brief(one["text"]) for one in change[side]) for side in ("gone", "put"))
    names = " ".join(str(one["name"]) for one in change["gone"])
    return f"replaced “{old}” by “{new}”; to have both: metaclaw skills restore {names}"


def _brief(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _TEXT_CHARS else f"{line[: _TEXT_CHARS - 1]}…"


def attempt_word(end: object, number: int, attempts: int) -> str:
    """What the proxy did with attempt `number` of `attempts` at an answer whose calls were held."""
    if number < attempts or end == "stopped":
        return "refused"
    return "passed with a warning" if end == "warned" else "given to the client"


def client_got(end: object, *, has_calls: bool) -> str:
    """What the client got in place of an answer whose calls were held. `has_calls` says whether the
    last attempt has calls.
    """
    return _GOT.get("words" if end == "complied" and not has_calls else str(end), "")
