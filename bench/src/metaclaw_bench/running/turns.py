"""What the proxy's ledger says of the turns a round took: skills placed, generation, policy
version, tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from metaclaw_bench.json_types import Json
from metaclaw_bench.running.api import Api, at, rows

_MOST = 1000


@dataclass(frozen=True, slots=True)
class Turn:
    """One main turn, as far as a benchmark tells of it."""

    id: str
    session: str
    provider: str
    generation: int
    policy_version: int
    skills: tuple[str, ...]
    tokens_in: int | None
    tokens_out: int | None
    cached: int


@dataclass(frozen=True, slots=True)
class Took:
    """The turns a round took. Generation and version are those of the last one: what the answer was
    made with.
    """

    turns: tuple[Turn, ...]

    @property
    def skills(self) -> tuple[str, ...]:
        """The skills placed in any of them, in order."""
        return tuple(dict.fromkeys(name for turn in self.turns for name in turn.skills))

    @property
    def generation(self) -> int:
        return self.turns[-1].generation if self.turns else 0

    @property
    def policy_version(self) -> int:
        return self.turns[-1].policy_version if self.turns else 0

    @property
    def tokens_in(self) -> int | None:
        return _total([turn.tokens_in for turn in self.turns])

    @property
    def tokens_out(self) -> int | None:
        return _total([turn.tokens_out for turn in self.turns])


class Ledger:
    """Reads what is new in the proxy's ledger since the last look."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._read: dict[str, tuple[int, int]] = {}

    async def new(self) -> Took:
        """The main turns since the last look, in the order they came."""
        return Took(
            tuple(_turn(row) for row in await self.new_turns() if row.get("kind") == "main")
        )

    async def new_turns(self) -> list[dict[str, Json]]:
        """All turns since the last look as the API lists them, in the order they came."""
        found: list[dict[str, Json]] = []
        for session in await self._sessions():
            name, count = str(session["id"]), _number(session.get("turn_count"))
            seen, cursor = self._read.get(name, (0, 0))
            if count == seen:
                continue
            listed = rows(
                at(await self._api.get("sessions", name, limit=_MOST, after=cursor), "turns")
            )
            cursor = max((_number(turn.get("cursor")) for turn in listed), default=cursor)
            self._read[name] = (seen + len(listed), cursor)
            found += listed
        return sorted(found, key=_when)

    async def _sessions(self) -> list[dict[str, Json]]:
        """Every session, page by page."""
        found = rows(at(await self._api.get("sessions", limit=_MOST), "sessions"))
        while len(found) % _MOST == 0 and found:
            more = rows(
                at(
                    await self._api.get("sessions", limit=_MOST, before=str(found[-1]["id"])),
                    "sessions",
                )
            )
            if not more:
                break
            found += more
        return found

    async def end_sessions(self) -> None:
        """End whatever conversation is still open: the day is over for all of them."""
        for session in await self._sessions():
            if session.get("ended_at") is None:
                await self._api.post("sessions", str(session["id"]), "end")


def _turn(row: dict[str, Json]) -> Turn:
    skills = row.get("skills")
    usage = row.get("usage")
    return Turn(
        str(row["id"]),
        str(row["session"]),
        str(row.get("provider")),
        _number(row.get("generation")),
        _number(row.get("policy_version")),
        tuple(map(str, skills)) if isinstance(skills, list) else (),
        None if usage is None else _number(at(usage, "input_tokens")),
        None if usage is None else _number(at(usage, "output_tokens")),
        _number(at(usage, "cached_tokens")),
    )


def _when(row: dict[str, Json]) -> datetime:
    return datetime.fromisoformat(str(at(row, "times", "received_at")))


def _number(value: Json) -> int:
    return value if isinstance(value, int) else 0


def _total(counts: Sequence[int | None]) -> int | None:
    """The sum; None where one of them was not counted, or there is nothing to count."""
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None
