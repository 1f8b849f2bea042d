"""What a day has taught, read from the proxy afterwards: new generations, skills born and refused, versions of the weights."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from metaclaw.bench.records import EventKind
from metaclaw.bench.running.api import Api, at, rows
from metaclaw.domain.chat import Json

_MOST = 1000
_REFUSED = frozenset({"rejected"})
_GONE = frozenset({"rejected", "rolled_back"})


@dataclass(frozen=True, slots=True)
class Happened:
    """Something was learned, refused or taken back. `number` is the generation or version it is about."""

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
        born = {words[1]: _whole(row.get("number")) for row in generations if len(words := str(row.get("reason")).split()) > 1}
        return [*self._generations(generations), *self._skills(candidates, born), *self._versions(versions)]

    def _generations(self, listed: Sequence[dict[str, Json]]) -> Iterator[Happened]:
        for one in sorted(listed, key=lambda row: _whole(row.get("number"))):
            number = _whole(one.get("number"))
            if number > self._generation:
                self._generation = number
                why = str(one.get("reason") or "")
                yield Happened("generation", number, why=why)
                if why.startswith("retired "):
                    yield Happened("skill_retired", number, why.removeprefix("retired ").partition(":")[0], why)

    def _skills(self, listed: Sequence[dict[str, Json]], born: Mapping[str, int]) -> Iterator[Happened]:
        """`born` says in which generation a name was first told of: `learned NAME from …`."""
        for one in reversed(listed):
            name, standing, skill = str(one.get("id")), str(one.get("standing")), str(one.get("skill"))
            if self._candidates.get(name) == standing:
                continue
            self._candidates[name] = standing
            if standing == "accepted":
                yield Happened("skill_born", born.get(skill), skill, str(one.get("reason") or ""))
            elif standing in _REFUSED:
                yield Happened("skill_refused", None, skill, str(one.get("reason") or ""))

    def _versions(self, listed: Sequence[dict[str, Json]]) -> Iterator[Happened]:
        for one in sorted(listed, key=lambda row: _whole(row.get("version"))):
            number = _whole(one.get("version"))
            if number > self._version:
                self._version = number
                is_refused = str(one.get("state")) in _GONE
                kind: EventKind = "version_refused" if is_refused else "version"
                yield Happened(kind, number, why=str(one.get("note") or ""), numbers={"steps": float(_whole(one.get("steps")))})


def _whole(value: Json) -> int:
    return value if isinstance(value, int) else 0
