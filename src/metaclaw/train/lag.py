"""One look at a canary when its trial is over: does it lag behind? Pure.

The bets on the coin (`coin`) may be looked at after every turn, and pay for that in sharpness. A look at a moment that is fixed
beforehand sees more.

**On the whole.** A turn is held against what turns with the same skills come to, whoever answered them: y - p. R is the sum of that
over a session. A coin with probability π decided who answered it, A; if the weights make no difference, then given all outcomes

    T = Σ (A - π)·R      has the mean 0 and the variance V = Σ π·(1-π)·R²,

however much the turns of one session resemble each other, and whichever skills happened to be asked of whom. z = T/√V. (p of a few
turns is drawn to that of all: any p will do that does not know the coin.)

**With one skill** there are too few sessions for that. There it is the exact chance of so few passes, if those of all turns with
the skill had been dealt to the turns at random. Turns of one session that resemble each other count for less:

    D = Σ R² / Σ p·(1-p)  over the sessions of the others, 1 where turns do not resemble each other;      chance^(1/D).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from metaclaw.domain.ids import SessionId, SkillName
from metaclaw.domain.verdict import Outcome
from metaclaw.train.coin import LiveTurn

_DRAWN = 5.0
"""So many turns at the rate of all are added to those with the same skills."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How a canary stands: z is negative where it lags; `likeness` is how many turns of one session count as one."""

    z: float
    likeness: float


@dataclass(slots=True)
class _Session:
    is_canary: bool
    share: float
    residual: float = 0.0


def find_lag(turns: Sequence[LiveTurn]) -> Lag:
    """How the canary stands on the whole, after turns whose outcomes are known and of which a coin decided who answers."""
    rates = _rates(turns)
    sessions: dict[SessionId, _Session] = {}
    spread = 0.0
    for turn in turns:
        rate = rates[_skills_of(turn)]
        sessions.setdefault(turn.session, _Session(turn.is_canary, turn.share)).residual += _passed(turn) - rate
        spread += 0.0 if turn.is_canary else rate * (1.0 - rate)
    total = math.fsum((one.is_canary - one.share) * one.residual for one in sessions.values())
    variance = math.fsum(one.share * (1.0 - one.share) * one.residual**2 for one in sessions.values())
    others = math.fsum(one.residual**2 for one in sessions.values() if not one.is_canary)
    return Lag(total / math.sqrt(variance) if variance else 0.0, max(1.0, others / spread) if spread else 1.0)


def chance_of_so_few(canary: Sequence[int], others: Sequence[int]) -> float:
    """How likely the canary has so few passes or fewer, if all passes were dealt out at random (passes and failures of each)."""
    passed, mine, theirs = canary[0] + others[0], sum(canary), sum(others)
    dealt = range(max(0, passed - theirs), canary[0] + 1)
    every = _ways(mine + theirs, passed)
    return min(1.0, math.fsum(math.exp(_ways(mine, some) + _ways(theirs, passed - some) - every) for some in dealt))


def _ways(among: int, chosen: int) -> float:
    """The logarithm of the number of ways to choose."""
    return math.lgamma(among + 1) - math.lgamma(chosen + 1) - math.lgamma(among - chosen + 1)


def _rates(turns: Sequence[LiveTurn]) -> dict[tuple[SkillName, ...], float]:
    counts: dict[tuple[SkillName, ...], list[int]] = {}
    for turn in turns:
        count = counts.setdefault(_skills_of(turn), [0, 0])
        count[0] += _passed(turn)
        count[1] += 1
    overall = sum(map(_passed, turns)) / max(1, len(turns))
    return {skills: (passes + _DRAWN * overall) / (count + _DRAWN) for skills, (passes, count) in counts.items()}


def _skills_of(turn: LiveTurn) -> tuple[SkillName, ...]:
    return tuple(sorted(set(turn.skills)))


def _passed(turn: LiveTurn) -> bool:
    return turn.outcome is Outcome.PASS
