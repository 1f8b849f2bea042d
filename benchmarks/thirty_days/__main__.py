"""Does an agent fail twice in the same way? Thirty days of a developer in three projects, with the
running program and beside it the same program that learns nothing.

    python -m benchmarks.thirty_days [--seed 1] [--days 30] [--kinds MORE.json] [--kills]
    [--json FILE]

SIMULATED is the model (`developer.py`), and the wall clock, which is moved from day to day. Each
kind of failure belongs to one project and comes 3 to 12 times, on random days, in other words, over
one of the three wires; the agent's prompt has 20,000 tokens. A *repeat* is a session whose kind had
failed in an earlier one; it is prevented if no call fails. `--kills` kills the program with
`kill -9` once a day, in the middle of the day's sessions."""

import argparse
import json
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx

from benchmarks.home import CommandProgram
from benchmarks.thirty_days.developer import Kind, Model, schedule
from benchmarks.thirty_days.wires import WIRES
from tests.support.clock import FakeClock

PROJECTS = ("shop", "pos", "warehouse")
SETTLED = 4
"""So many looks in a row without waiting work end a day."""
GOALS = {"prevented": 0.7, "lessons": 60, "share": 0.1}
_PROMPT = "You are a coding agent. " + " ".join(
    f"Guideline {number}: read the file before you change it, and keep to its style."
    for number in range(1, 1100)
)
_WAITING = ("turns", "sessions", "listening", "lessons", "evolutions", "candidates")


@dataclass
class Day:
    """What one day came to."""

    repeats: int = 0
    prevented: int = 0
    calls_failed: int = 0
    lessons: int = 0
    tokens: int = 0
    """Of the agent's requests."""
    learning_tokens: int = 0


@dataclass
class Life:
    """Thirty days with one program."""

    program: CommandProgram
    clock: FakeClock
    model: Model
    days: list[Day] = field(default_factory=list)
    _failed: set[str] = field(default_factory=set)
    _number: int = 0

    def live(self, plan: Sequence[Sequence[tuple[Kind, str]]], *, kills: bool) -> None:
        for number, sessions in enumerate(plan):
            self.clock.set_ahead(timedelta(days=number))
            today = Day()
            self.days.append(today)
            before = Counter(self.model.tokens)
            for place, (kind, task) in enumerate(sessions):
                if kills and place == len(sessions) // 2:
                    self.program.kill()
                    self.program.start()
                self._session(kind, task)
            self._settle()
            today.lessons = len(self.lessons())
            used = Counter(self.model.tokens) - before
            today.tokens = used["main"]
            today.learning_tokens = used.total() - used["main"]

    def lessons(self) -> list[Any]:
        """The lessons in force."""
        known: list[Any] = self.program.get("/api/lessons")["lessons"]
        return [one for one in known if one["state"] == "live"]

    def _session(self, kind: Kind, task: str) -> None:
        self._number += 1
        of_kind = self.model.kinds.index(kind)
        project = PROJECTS[of_kind % len(PROJECTS)]
        transcript = WIRES[(of_kind // len(PROJECTS)) % len(WIRES)](_PROMPT)
        headers = {
            **self.program.auth,
            "X-Session-Id": f"session-{self._number}",
            "X-Workspace-Id": project,
        }
        known = {
            (one.tool, json.dumps(dict(one.arguments))): one for one in (*kind.failing, kind.fix)
        }
        failed = 0
        transcript.say(task)
        for _ in range(12):
            answer = self._post(transcript.path, transcript.body(), headers)
            calls = transcript.read(answer.json())
            if not calls:
                break
            for call in calls:
                made = known[call.tool, json.dumps(call.arguments)]
                failed += made is not kind.fix
                transcript.result(call, made.result)
        transcript.say("thanks")
        answer = self._post(transcript.path, transcript.body(), headers)
        self._post(f"/api/sessions/{answer.headers['x-metaclaw-session']}/end", {}, headers)
        today = self.days[-1]
        today.calls_failed += failed
        if kind.name in self._failed:
            today.repeats += 1
            today.prevented += failed == 0
        if failed:
            self._failed.add(kind.name)

    def _post(self, path: str, body: Any, headers: dict[str, str]) -> httpx.Response:
        answer = httpx.post(self.program.url + path, json=body, headers=headers, timeout=60)
        answer.raise_for_status()
        return answer

    def _settle(self) -> None:
        calm, end = 0, time.monotonic() + 60
        while calm < SETTLED and time.monotonic() < end:
            waiting = self.program.get("/api/status")["learning"].get("pending") or {}
            calm = 0 if any(waiting.get(name) for name in _WAITING) else calm + 1
            time.sleep(0.25)


def live(
    kinds: Sequence[Kind], plan: Sequence[Sequence[tuple[Kind, str]]], *, learns: bool, kills: bool
) -> tuple[list[Day], dict[str, int], list[str]]:
    """The days, the tokens of each purpose, and the lines in force at the end."""
    model = Model(kinds)
    try:
        with tempfile.TemporaryDirectory(prefix="thirty-days-") as folder:
            clock = FakeClock(Path(folder) / "clock")
            config = (
                f'[[providers]]\nname = "p"\nkind = "openai"\nbase_url = "{model.url}/v1"\n'
                'api_key = "x"\nmodels = ["m"]\nwires = ["chat"]\n'
                '[judge]\nprovider = "p"\nmodel = "m"\n[evolver]\nprovider = "p"\nmodel = "m"\n'
                f"[skills]\nlearn = {str(learns).lower()}\n"
            )
            program = CommandProgram(sys.executable, Path(folder) / "home", config, env=clock.env)
            program.start()
            try:
                life = Life(program, clock, model)
                life.live(plan, kills=kills)
                lines = [str(one.get("text") or one.get("body")) for one in life.lessons()]
            finally:
                program.stop()
    finally:
        model.close()
    return life.days, dict(model.tokens), lines


def summary(days: Sequence[Day], tokens: dict[str, int]) -> dict[str, Any]:
    """What the goals are about."""
    late = days[10:]
    own = sum(count for purpose, count in tokens.items() if purpose != "main")
    return {
        "repeats after day 10": sum(day.repeats for day in late),
        "prevented after day 10": sum(day.prevented for day in late),
        "repeats": sum(day.repeats for day in days),
        "prevented": sum(day.prevented for day in days),
        "failed calls": sum(day.calls_failed for day in days),
        "lessons, at most": max((day.lessons for day in days), default=0),
        "tokens of the agent": tokens.get("main", 0),
        "tokens of learning": own,
        "share of learning": round(own / max(1, tokens.get("main", 0)), 4),
    }


def table(days: Sequence[Day]) -> list[str]:
    """The figures of every ten days, as lines of a table."""
    lines = ["days | prevented | calls that failed | lessons | tokens of the agent | of learning"]
    for begin in range(0, len(days), 10):
        part = days[begin : begin + 10]
        repeats, prevented = sum(day.repeats for day in part), sum(day.prevented for day in part)
        figures = (
            f"{begin + 1} to {begin + len(part)}",
            f"{prevented} of {repeats}",
            sum(day.calls_failed for day in part),
            part[-1].lessons,
            sum(day.tokens for day in part),
            sum(day.learning_tokens for day in part),
        )
        lines.append(" | ".join(map(str, figures)))
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.thirty_days", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--kinds", type=Path, help="more kinds, a JSON file with `kinds`")
    parser.add_argument("--kills", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    stated = tomllib.loads(Path(__file__).with_name("kinds.toml").read_text())["kind"]
    if given.kinds:
        stated += [
            one for one in json.loads(given.kinds.read_text())["kinds"] if not one.get("correction")
        ]
    kinds = [Kind.of(one) for one in stated]
    plan = schedule(kinds, given.days, given.seed)
    results = {}
    for name, learns in (("learning", True), ("without", False)):
        days, tokens, lines = live(kinds, plan, learns=learns, kills=given.kills)
        figures = summary(days, tokens)
        results[name] = {
            "summary": figures,
            "tokens": tokens,
            "days": [vars(day) for day in days],
            "missing": [one.name for one in kinds if one.teaches and one.lesson not in lines],
            "lines": lines,
        }
        print(f"== {name}")
        for label, value in figures.items():
            print(f"{label}: {value}")
        print("", *table(days), sep="\n")
    if given.json:
        given.json.write_text(json.dumps(results, indent=1, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
