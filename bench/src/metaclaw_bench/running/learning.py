"""Learning in the proxy under test, seen from outside: wait until it is over, start training, and
read what was learned.

No request waits for learning, but the status says what is still to be learned from
(`learning.pending`). Only quiet that lasts counts: what was learned may itself be something to
learn from."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import anyio

from metaclaw_bench.json_types import Json
from metaclaw_bench.records import EventKind
from metaclaw_bench.running.api import Api, at, rows
from metaclaw_bench.running.plan import Patience

_MOST: Final = 1000
_REFUSED_STANDINGS: Final = frozenset({"rejected"})
_GONE: Final = frozenset({"rejected", "rolled_back"})
_TRAINING_PAUSE_S: Final = 0.25
_CALM_S: Final = 2.0
_GRACE_S: Final = 5.0
_IDLE: Final = "waiting"
_PAUSE_S: Final = 0.05
_IN_WORDS: Final = {
    "turns": "turns without a verdict",
    "sessions": "sessions whose last turn has no verdict",
    "lessons": "failures and words that nobody has looked at",
    "evolutions": "kinds of failure with the evolver",
    "candidates": "skills under review",
}


@dataclass(frozen=True, slots=True)
class Settled:
    """How long it took, and what was still under way when patience ran out; empty where everything
    came to rest.
    """

    seconds: float
    left: tuple[str, ...] = ()


async def settle(api: Api, patience: Patience) -> Settled:
    """Return once nothing is being learned any more, or after `patience.most_s`."""
    began = since = time.monotonic()
    before: Json = None
    while True:
        status = await api.get("status")
        busy, now = under_way(status), _changes(status)
        if busy or now != before:
            since, before = time.monotonic(), now
        if time.monotonic() - since >= patience.calm_s:
            return Settled(time.monotonic() - began)
        if time.monotonic() - began >= patience.most_s:
            return Settled(time.monotonic() - began, busy or ("skills or verdicts still change",))
        await anyio.sleep(_PAUSE_S)


def under_way(status: dict[str, Json]) -> tuple[str, ...]:
    """What learning is busy with, in words."""
    pending = at(status, "learning", "pending")
    if not isinstance(pending, dict):
        return ("what there is to learn is not known yet",)
    return tuple(f"{count} {_IN_WORDS.get(name, name)}" for name, count in pending.items() if count)


def _changes(status: dict[str, Json]) -> Json:
    """What moves while something is learned."""
    return [
        status.get("generation"),
        at(status, "counts", "verdicts"),
        at(status, "counts", "support"),
        at(status, "counts", "candidates"),
        at(status, "learning", "asked"),
    ]


@dataclass(frozen=True, slots=True)
class Happened:
    """Something was learned, refused or taken back. `number` is the generation or version it is
    about.
    """

    kind: EventKind
    number: int | None = None
    name: str | None = None
    why: str = ""
    numbers: dict[str, float] = field(default_factory=dict)


class Learned:
    """Tells what is new since the last look."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._generation = 0
        self._version = 0
        self._candidates: dict[str, str] = {}

    async def new(self) -> list[Happened]:
        """What happened since the last look, oldest first."""
        generations = rows(at(await self._api.get("generations", limit=_MOST), "generations"))
        candidates = rows(at(await self._api.get("candidates", limit=_MOST), "candidates"))
        versions = rows(at(await self._api.get("policy", limit=_MOST), "versions"))
        born = {
            words[1]: _whole(row.get("number"))
            for row in generations
            if len(words := str(row.get("reason")).split()) > 1
        }
        return [
            *self._generations(generations),
            *self._skills(candidates, born),
            *self._versions(versions),
        ]

    def _generations(self, listed: Sequence[dict[str, Json]]) -> Iterator[Happened]:
        for one in sorted(listed, key=lambda row: _whole(row.get("number"))):
            number = _whole(one.get("number"))
            if number > self._generation:
                self._generation = number
                why = str(one.get("reason") or "")
                yield Happened("generation", number, why=why)
                if why.startswith("retired "):
                    yield Happened(
                        "skill_retired", number, why.removeprefix("retired ").partition(":")[0], why
                    )

    def _skills(
        self, listed: Sequence[dict[str, Json]], born: Mapping[str, int]
    ) -> Iterator[Happened]:
        """`born` says in which generation a name was first told of: `learned NAME from …`."""
        for one in reversed(listed):
            name, standing, skill = (
                str(one.get("id")),
                str(one.get("standing")),
                str(one.get("skill")),
            )
            if self._candidates.get(name) == standing:
                continue
            self._candidates[name] = standing
            if standing == "accepted":
                by_evolver = 0.0 if one.get("is_instruction") else 1.0
                yield Happened(
                    "skill_born",
                    born.get(skill),
                    skill,
                    str(one.get("reason") or ""),
                    {"by_evolver": by_evolver},
                )
            elif standing in _REFUSED_STANDINGS:
                yield Happened("skill_refused", None, skill, str(one.get("reason") or ""))

    def _versions(self, listed: Sequence[dict[str, Json]]) -> Iterator[Happened]:
        for one in sorted(listed, key=lambda row: _whole(row.get("version"))):
            number = _whole(one.get("version"))
            if number > self._version:
                self._version = number
                is_refused = str(one.get("state")) in _GONE
                kind: EventKind = "version_refused" if is_refused else "version"
                yield Happened(
                    kind,
                    number,
                    why=str(one.get("note") or ""),
                    numbers={"steps": float(_whole(one.get("steps")))},
                )


def _whole(value: Json) -> int:
    return value if isinstance(value, int) else 0


async def train(api: Api, most_s: float) -> list[Happened]:
    """Begin to train and wait until it is over; what went wrong, if anything did. No turn to train
    on is no trouble.

    Where there are turns for another batch, the proxy goes on with it at once: over is what stays
    over."""
    before = await _newest(api)
    status, answer = await api.post("policy", "train")
    if status >= 400:
        return [_trouble(f"training did not begin: {at(answer, 'error', 'message') or answer}")]
    if not answer.get("started"):
        return []
    began = busy_at = time.monotonic()
    seen_busy = False
    while True:
        now = time.monotonic()
        if not str(at(await api.get("status"), "training", "state") or "").startswith(_IDLE):
            busy_at, seen_busy = now, True
        # It may take a moment until the loop notices that it is wanted.
        if now - busy_at > (_CALM_S if seen_busy else _GRACE_S):
            break
        if now - began > most_s:
            return [_trouble(f"training was not over after {most_s:g} s")]
        await anyio.sleep(_TRAINING_PAUSE_S)
    if not seen_busy:
        return [_trouble("training was asked for and did not begin")]
    if await _newest(api) == before:
        return [
            _trouble(
                f"nothing came of training on {answer.get('turns')} turns; the proxy's log says why"
            )
        ]
    return []


async def _newest(api: Api) -> Json:
    """The newest version of the weights, whatever became of it; None where there is none."""
    return next(
        (one.get("version") for one in rows(at(await api.get("policy", limit=1), "versions"))), None
    )


def _trouble(why: str) -> Happened:
    return Happened("trouble", why=why)
