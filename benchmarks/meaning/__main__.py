"""How well skills and rules are found, by words and by words and meaning together.

    python -m benchmarks.meaning [--data FILE] [--sizes 0,500]
    python -m benchmarks.meaning --waits   # how long a search takes here, and which are in time

`development.json` is the set on which the constants of `domain/skill.py` were chosen, so what it
prints is optimistic; `--data` takes another file of the same form (that of `benchmarks.reach` will
do). Without `--waits`, no search is cut off after the 40 ms that a request allows: this is about
what is found, not how fast."""

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.retrieval_cases import CASES
from benchmarks.retrieval_library import make_library
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Nearness, Rule, Skill, SkillKind
from metaclaw.engine.embedding import INSTALL, MeaningSearch, missing_packages
from metaclaw.skills import SkillIndex

_IN_FULL = 3
_LISTED = 40
_RULES_PLACED = 25
_PAUSE_S = 0.05


class Asked(NamedTuple):
    """A request, and what it should find."""

    query: str
    name: str


class Figures(NamedTuple):
    """Shares: found in full, found among those listed, unrelated requests that got anything."""

    full: float
    listed: float
    unrelated: float


def make_skill(one: Mapping[str, Any]) -> Skill:
    """A skill of the data set."""
    return Skill(
        SkillName(one["name"]), one["trigger"], one["body"], examples=tuple(one["examples"])
    )


def make_rule(name: str, one: Mapping[str, Any]) -> Skill:
    """A rule of the data set."""
    return Rule(
        SkillName(name),
        one["when"],
        one.get("text") or one["rule"],
    )


@asynccontextmanager
async def searching(library: Sequence[Skill]) -> AsyncIterator[MeaningSearch]:
    """A search that holds this library."""
    with tempfile.TemporaryDirectory() as folder:
        search = MeaningSearch(Path(folder), deadline_s=60)
        search.follow(library)
        while search.state != "ready":
            if search.state.startswith("failed"):
                raise SystemExit(search.state)
            await asyncio.sleep(0.1)
        yield search
        await search.aclose()


async def ask_all(library: Sequence[Skill], queries: Iterable[str]) -> dict[str, Nearness | None]:
    """What is near each request."""
    async with searching(library) as search:
        return {query: await search.near(query, ()) for query in dict.fromkeys(queries)}


async def measure_waits(library: Sequence[Skill], queries: Iterable[str]) -> None:
    """Ask one request after another, and print what each deadline allows and costs."""
    took: list[float] = []
    async with searching(library) as search:
        for query in dict.fromkeys(queries):
            await asyncio.sleep(_PAUSE_S)
            began = time.perf_counter()
            await search.near(query, ())
            took.append(1000 * (time.perf_counter() - began))
    print(f"{len(took)} searches, load {os.getloadavg()[0]:.1f}")
    for deadline_ms in (15, 25, 40, 60):
        waits = sorted(min(ms, deadline_ms) for ms in took)
        in_time = sum(ms <= deadline_ms for ms in took) / len(took)
        p50, p99 = waits[len(waits) // 2], waits[len(waits) * 99 // 100]
        print(f"{deadline_ms} ms: in time {in_time:.0%}; added p50 {p50:.1f}, p99 {p99:.1f} ms")


def measure(
    library: Sequence[Skill],
    asked: Sequence[Asked],
    unrelated: Sequence[str],
    *,
    rules: bool,
    by_meaning: bool,
) -> Figures:
    """Ask everything of one library."""
    index = SkillIndex().changed(library)
    queries = [*(one.query for one in asked), *unrelated]
    near = asyncio.run(ask_all(library, queries)) if by_meaning else dict.fromkeys(queries)
    kinds = frozenset({SkillKind.RULE, SkillKind.FACT} if rules else {SkillKind.SKILL})
    ranked = {query: index.rank(query, near[query], kinds) for query in queries}
    limit = _RULES_PLACED if rules else _IN_FULL
    full = {
        query: [one.skill.name for one in found[:limit] if one.is_match]
        for query, found in ranked.items()
    }
    listed = {
        query: [one.skill.name for one in found[: limit if rules else _LISTED]]
        for query, found in ranked.items()
    }
    return Figures(
        sum(one.name in full[one.query] for one in asked) / len(asked),
        sum(one.name in listed[one.query] for one in asked) / len(asked),
        sum(bool(full[query]) for query in unrelated) / len(unrelated),
    )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.meaning", description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(__file__).with_name("development.json"))
    parser.add_argument(
        "--sizes",
        default="0,500",
        help="fill the library up to these sizes with other skills; 0 adds none",
    )
    parser.add_argument("--waits", action="store_true", help="measure only how long searches take")
    given = parser.parse_args()
    data = json.loads(given.data.read_text(encoding="utf-8"))
    development = json.loads(
        Path(__file__).with_name("development.json").read_text(encoding="utf-8")
    )
    ways = [False] if missing_packages() else [False, True]
    if missing_packages():
        print(f"by words alone; for meaning: {INSTALL}")
    own = [make_skill(one) for one in data["skills"]]
    others = [Skill(SkillName(case.name), case.trigger, case.body) for case in CASES]
    tasks = {
        part: [Asked(query, one["name"]) for one in data["skills"] for query in one[part]]
        for part in ("natural", "paraphrases")
    }
    if given.waits:
        asyncio.run(measure_waits(own, [one.query for asked in tasks.values() for one in asked]))
        return
    for size in map(int, given.sizes.split(",")):
        filling = (
            [*others, *(skill for skill, _ in make_library(max(0, size - len(own) - len(others))))]
            if size
            else []
        )
        for by_meaning in ways:
            for part, asked in tasks.items():
                report(
                    f"skills, {part}",
                    [*own, *filling],
                    asked,
                    data["unrelated"],
                    rules=False,
                    by_meaning=by_meaning,
                )
    rules = [make_rule(f"rule-{at}", one) for at, one in enumerate(data["rules"])]
    more = [make_rule(f"other-{at}", one) for at, one in enumerate(development["other_rules"])]
    asked = [
        Asked(query, f"rule-{at}")
        for at, one in enumerate(data["rules"])
        for query in one["should"]
    ]
    for by_meaning in ways:
        report(
            "rules", [*rules, *more], asked, data["unrelated"], rules=True, by_meaning=by_meaning
        )


def report(
    label: str,
    library: Sequence[Skill],
    asked: Sequence[Asked],
    unrelated: Sequence[str],
    *,
    rules: bool,
    by_meaning: bool,
) -> None:
    """Print one line."""
    figures = measure(library, asked, unrelated, rules=rules, by_meaning=by_meaning)
    way = "words and meaning" if by_meaning else "words"
    print(
        f"{label}, {len(library)} in the library, by {way}: in full {figures.full:.0%}, among the"
        f" best {figures.listed:.0%}; unrelated requests with any {figures.unrelated:.0%}",
        flush=True,
    )


if __name__ == "__main__":
    main()
