"""Retrieval at 100, 10,000 and 100,000 skills: time, memory, what is found and what is wrongly
placed.

    python -m benchmarks.retrieval [--sizes 100,10000,100000] [--no-files] [--json] [--assert-goals]

Each size runs in a process of its own. A library is the hand-written cases plus made-up skills of
twelve trades; recall is measured on requests that need one known skill, the wrong-placement rate on
requests that need none. A query is `query_text` and the search, nothing cached. Times are of one
thread, given as processor time and, in brackets, as they passed on the clock, which other programs
lengthen."""

import argparse
import gc
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.retrieval_cases import CASES, UNRELATED
from benchmarks.retrieval_library import TRADES, Planted, make_library
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import ChangesSince, Skill, SkillGeneration, library_hash
from metaclaw.skills import SkillIndex, SkillLibrary, query_text, render_skill

SIZES = (100, 10_000, 100_000)
_PLANTED = 2_000
_CHANGES = 30
Facts = dict[str, float]


class Timed(NamedTuple):
    """Milliseconds of processor time and of the clock."""

    cpu_ms: float
    wall_ms: float


class Generations:
    """A generation store that only counts, so that loading is measured without a database."""

    def __init__(self) -> None:
        self._latest = SkillGeneration(0, library_hash(()), ())

    def latest(self) -> SkillGeneration:
        """The last one."""
        return self._latest

    def at(self, number: int) -> SkillGeneration | None:
        """The last one, if it is that."""
        return self._latest if self._latest.number == number else None

    def publish(
        self, skills: Sequence[Skill], reason: str, *, after: int | None = None
    ) -> SkillGeneration:
        """The next one. The skills are not kept: their memory is the library's."""
        self._latest = SkillGeneration(self._latest.number + 1, "", ())
        return self._latest

    def since(self, number: int) -> ChangesSince:
        """Nothing: there is no other home."""
        return ChangesSince(number, "", (), ())

    def unwritten(self) -> frozenset[SkillName]:
        """Nothing."""
        return frozenset()


def timed(work: Callable[[], object]) -> Timed:
    """How long one call takes."""
    cpu, wall = time.thread_time_ns(), time.perf_counter_ns()
    work()
    return Timed((time.thread_time_ns() - cpu) / 1e6, (time.perf_counter_ns() - wall) / 1e6)


def spread(name: str, times: Iterable[Timed]) -> Facts:
    """Median, 99th percentile and greatest of many times."""
    kept = list(times)
    facts: Facts = {}
    for kind, values in (
        ("cpu", sorted(one.cpu_ms for one in kept)),
        ("wall", sorted(one.wall_ms for one in kept)),
    ):
        for part, at in (("p50", 0.5), ("p99", 0.99), ("max", 1.0)):
            facts[f"{name}_{part}_{kind}_ms"] = values[min(len(values) - 1, int(len(values) * at))]
    return facts


def resident_mb() -> float:
    """Memory of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def pasted_texts(count: int, seed: int = 11) -> list[str]:
    """Long pastes full of the library's own words, the hardest requests there are: a log, a table,
    a page of documentation.
    """
    rng = random.Random(seed)
    words = [word for trade in TRADES for group in trade for word in group]
    return [
        "what is wrong here?\n"
        + "\n".join(
            f"2026-11-15 10:00:{line % 60:02d} {' '.join(rng.choices(words, k=6))}"
            for line in range(300)
        )
        for _ in range(count)
    ]


def recall(index: SkillIndex, planted: Iterable[Planted]) -> tuple[float, list[Timed]]:
    """The share of requests whose skill is among the three placed, and the time each took."""
    hits, times = 0, []
    for query, name in planted:
        times.append(timed(lambda query=query: index.search(query_text(query))))  # type: ignore[misc]
        hits += name in [found.skill.name for found in index.search(query_text(query))]
    return hits / len(times), times


def measure(size: int, *, with_files: bool) -> Facts:
    """All facts about a library of one size."""
    written = [Planted(query, SkillName(case.name)) for case in CASES for query in case.queries]
    cases = [Skill(SkillName(case.name), case.trigger, case.body) for case in CASES]
    made = list(make_library(size - len(cases)))
    skills = [*cases, *(skill for skill, _ in made)]
    gc.collect()
    before_mb = resident_mb()
    building = time.thread_time()
    index = SkillIndex().changed(skills)
    facts: Facts = {"skills": len(index), "build_s": time.thread_time() - building}
    gc.collect()
    facts["index_mb"] = resident_mb() - before_mb
    facts["text_mb"] = sum(len(skill.body) + len(skill.trigger) for skill in skills) / 1e6
    planted = random.Random(5).sample([one for _, one in made], min(_PLANTED, len(made)))
    facts["recall_made_up"], times = recall(index, planted)
    facts["recall_by_hand"], more = recall(index, written)
    unrelated = [timed(lambda query=query: index.search(query_text(query))) for query in UNRELATED]  # type: ignore[misc]
    facts["wrong_placement"] = sum(
        bool(index.search(query_text(query))) for query in UNRELATED
    ) / len(UNRELATED)
    facts |= spread("query", [*times, *more, *unrelated])
    facts |= spread(
        "pasted",
        [timed(lambda text=text: index.search(query_text(text))) for text in pasted_texts(50)],
    )  # type: ignore[misc]
    facts |= measure_changes(index)
    if with_files:
        del index
        facts |= measure_files(skills)
    return facts


def measure_changes(index: SkillIndex) -> Facts:
    """Adding one skill and removing one, as the writer does it."""
    new = [skill for skill, _ in make_library(_CHANGES, seed=99)]
    adding = [timed(lambda skill=skill: index.changed([skill])) for skill in new]  # type: ignore[misc]
    there = random.Random(3).sample(index.skills(), _CHANGES)
    removing = [timed(lambda skill=skill: index.changed([], [skill.name])) for skill in there]  # type: ignore[misc]
    return spread("add", adding) | spread("remove", removing)


def measure_files(skills: Sequence[Skill]) -> Facts:
    """The library on real files: loading, looking when nothing changed, and taking in one new
    file.
    """
    with tempfile.TemporaryDirectory(prefix="metaclaw-bench-") as name:
        folder = Path(name)
        for skill in skills:
            (folder / skill.name).mkdir()
            (folder / skill.name / "SKILL.md").write_text(render_skill(skill))
        library = SkillLibrary(folder, Generations(), clock=lambda: time.time() + 60)
        load = timed(library.sync)
        idle = timed(library.sync)
        (folder / "one-more").mkdir()
        (folder / "one-more" / "SKILL.md").write_text(
            render_skill(Skill(SkillName("one-more"), "When there is one more", "Count it."))
        )
        one = timed(library.sync)
        if library.view.count != len(skills) + 1:
            raise SystemExit(f"{library.view.count} skills were loaded, {len(skills) + 1} written")
    return {
        "load_cpu_ms": load.cpu_ms,
        "load_wall_ms": load.wall_ms,
        "look_cpu_ms": idle.cpu_ms,
        "look_wall_ms": idle.wall_ms,
        "take_in_cpu_ms": one.cpu_ms,
        "take_in_wall_ms": one.wall_ms,
    }


class Goal(NamedTuple):
    """What a fact must not exceed, or must reach, at one size."""

    size: int
    fact: str
    at_most: float | None = None
    at_least: float | None = None

    def is_met(self, facts: Facts) -> bool:
        """Whether these facts are good enough."""
        value = facts[self.fact]
        return (self.at_most is None or value <= self.at_most) and (
            self.at_least is None or value >= self.at_least
        )


GOALS = (
    Goal(100_000, "query_p99_cpu_ms", at_most=5),
    Goal(100_000, "add_p99_cpu_ms", at_most=10),
    Goal(100_000, "remove_p99_cpu_ms", at_most=10),
    *(Goal(size, "recall_made_up", at_least=0.95) for size in SIZES),
    *(Goal(size, "recall_by_hand", at_least=0.70) for size in SIZES),
    *(Goal(size, "wrong_placement", at_most=0.1 if size <= 100 else 0.05) for size in SIZES),
)

_ROWS = (
    (
        "query, median / p99 / greatest, ms",
        "{query_p50_cpu_ms:.2f} / {query_p99_cpu_ms:.2f} / {query_max_cpu_ms:.2f}",
    ),
    (
        "  as the clock went",
        "({query_p50_wall_ms:.2f} / {query_p99_wall_ms:.2f} / {query_max_wall_ms:.2f})",
    ),
    (
        "query with a paste of 2,000 words, median / p99, ms",
        "{pasted_p50_cpu_ms:.2f} / {pasted_p99_cpu_ms:.2f}",
    ),
    ("add one skill, median / greatest, ms", "{add_p50_cpu_ms:.2f} / {add_max_cpu_ms:.2f}"),
    (
        "remove one skill, median / greatest, ms",
        "{remove_p50_cpu_ms:.2f} / {remove_max_cpu_ms:.2f}",
    ),
    ("build the index, s", "{build_s:.2f}"),
    ("memory of the index (the skills' own text), MB", "{index_mb:.0f} ({text_mb:.0f})"),
    ("recall@3, made-up requests", "{recall_made_up:.1%}"),
    ("recall@3, hand-written requests", "{recall_by_hand:.1%}"),
    ("wrongly placed on unrelated requests", "{wrong_placement:.1%}"),
    ("library: load all files, ms (clock)", "{load_cpu_ms:.0f} ({load_wall_ms:.0f})"),
    ("library: look when nothing changed, ms", "{look_cpu_ms:.1f} ({look_wall_ms:.1f})"),
    ("library: take in one new file, ms", "{take_in_cpu_ms:.1f} ({take_in_wall_ms:.1f})"),
)


def print_table(results: Sequence[Facts]) -> None:
    """The facts side by side, as a Markdown table."""
    print("| skills | " + " | ".join(f"{int(facts['skills']):,}" for facts in results) + " |")
    print("|---|" + "---|" * len(results))
    for label, form in _ROWS:
        cells = []
        for facts in results:
            try:
                cells.append(form.format(**facts))
            except KeyError:
                cells.append("–")
        print(f"| {label} | " + " | ".join(cells) + " |")


def judge(results: Sequence[Facts], *, out: Callable[[str], object]) -> bool:
    """Say which goals are met."""
    by_size = {int(facts["skills"]): facts for facts in results}
    all_met = True
    for goal in GOALS:
        facts = by_size.get(goal.size)
        if facts is None:
            continue
        met = goal.is_met(facts)
        all_met = all_met and met
        wanted = (
            f"at most {goal.at_most}" if goal.at_most is not None else f"at least {goal.at_least}"
        )
        out(
            f"{'yes' if met else 'NO '} {goal.size:>7,} skills: {goal.fact} {wanted}:"
            f" {facts[goal.fact]:.3f}"
        )
    return all_met


def main() -> int:
    """Run each size in its own process and print what was found."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.retrieval",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument(
        "--sizes", default=",".join(map(str, SIZES)), help="sizes of libraries, at least 40 each"
    )
    parser.add_argument(
        "--no-files", action="store_true", help="leave out the library on real files"
    )
    parser.add_argument("--json", action="store_true", help="print the facts as JSON")
    parser.add_argument(
        "--assert-goals", action="store_true", help="exit with 1 where a goal is missed"
    )
    parser.add_argument("--one-size", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one_size is not None:
        print(json.dumps(measure(given.one_size, with_files=not given.no_files)))
        return 0
    results: list[Facts] = []
    for size in given.sizes.split(","):
        command = [
            sys.executable,
            "-m",
            "benchmarks.retrieval",
            "--one-size",
            size,
            *(["--no-files"] if given.no_files else []),
        ]
        results.append(
            json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        )
    if given.json:
        print(json.dumps({"results": results}))
    else:
        print_table(results)
        print()
    all_met = judge(
        results, out=lambda line: print(line, file=sys.stderr if given.json else sys.stdout)
    )
    return 0 if all_met or not given.assert_goals else 1


if __name__ == "__main__":
    sys.exit(main())
