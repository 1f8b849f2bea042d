"""What lessons cost a request: processor time of choosing and placing what goes into its prompt.

    python -m benchmarks.lessons [--sessions 40] [--steps 30]

An agent's session grows by a call and its result with each request; every third call fails. It is
placed without lessons, with 60 in force that are about other failures, and with 60 of which one is
about the failing call. Each number is the median over sessions of the mean of a session's requests;
the goal is at most 0.3 ms more than without lessons, where none is needed. Measured in process, by the time of this
thread's processor."""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from metaclaw.domain.chat import Text, ToolCall, ToolResult, Wire
from metaclaw.domain.ids import SkillName, new_turn_id
from metaclaw.domain.skill import Authorship, Lesson, Skill
from metaclaw.domain.turn import TurnEnd
from metaclaw.outcome import failure_signature
from metaclaw.proxy import Origins
from metaclaw.proxy.http.client import Incoming
from metaclaw.proxy.placement import Placer
from metaclaw.skills import Budgets, LibraryView

LESSONS = 60
GOAL_MS = 0.3
_NONE_NEEDED = f"{LESSONS} lessons, none needed"
_FAILED = "Exit code 4\n" + "tests/test_a.py ....\n" * 80 + "ModuleNotFoundError: No module 'app'"
_WORKED = "a.py | 12 +++---\n" * 100


def _lesson(number: int, signature: str) -> Skill:
    return Lesson(
        SkillName(f"lesson-{number}"),
        "always",
        f"Run step {number} with `tool-{number} --with-its-flag`, never with the bare command.",
        author=Authorship.EVOLVER,
        applies_always=True,
        signatures=(signature,),
    )


def _others(count: int) -> list[Skill]:
    return [_lesson(number, f"shell · tool-{number} · ValueError") for number in range(count)]


def _call(number: int) -> dict[str, str]:
    ran = {"command": "pytest -q" if number % 3 == 0 else f"git diff --stat HEAD~{number}"}
    return {"name": "Bash", "arguments": json.dumps(ran)}


def _known() -> list[Skill]:
    call = ToolCall("c", "Bash", _call(0)["arguments"])
    signature = failure_signature(call, ToolResult("c", (Text(_FAILED),)))
    assert signature
    return [*_others(LESSONS - 1), _lesson(LESSONS, signature)]


def _placer(skills: Sequence[Skill]) -> Placer:
    view = LibraryView.of(1, skills)
    return Placer(lambda: view, Budgets(3, 4000))


def _session_ms(placer: Placer, origins: Origins, session: int, steps: int) -> float:
    """The mean milliseconds of a session's requests."""
    history: list[dict[str, Any]] = [
        {"role": "system", "content": "You are a coding agent. " * 200},
        {"role": "user", "content": "Fix the rounding in the invoice."},
    ]
    spent = 0
    for number in range(steps):
        made = {"id": f"c{number}", "type": "function", "function": _call(number)}
        result = _FAILED if number % 3 == 0 else _WORKED
        history.append({"role": "assistant", "content": None, "tool_calls": [made]})
        history.append({"role": "tool", "tool_call_id": made["id"], "content": result})
        body = json.dumps({"model": "m", "messages": history}).encode()
        headers = {"x-session-id": f"talk {session}"}
        at = datetime.now(UTC), time.perf_counter()
        incoming = Incoming(
            Wire.CHAT, "/chat/completions", "", headers, [], body, json.loads(body), None, *at
        )
        origin = origins.identify(Wire.CHAT, headers, incoming.json)
        began = time.thread_time_ns()
        placer.place(incoming, origin, placer.query(incoming, origin))
        spent += time.thread_time_ns() - began
        origins.finished(origin, new_turn_id(), TurnEnd.COMPLETED)
    return spent / steps / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lessons", description=__doc__)
    parser.add_argument("--sessions", type=int, default=40)
    parser.add_argument("--steps", type=int, default=30)
    given = parser.parse_args()
    placers = {
        "no lessons": _placer([]),
        _NONE_NEEDED: _placer(_others(LESSONS)),
        f"{LESSONS} lessons, one needed": _placer(_known()),
    }
    origins = Origins(now=lambda: datetime.now(UTC))
    gc.disable()
    measured: dict[str, list[float]] = {name: [] for name in placers}
    for number in range(given.sessions):  # in turns, so that a busy machine slows all of them
        for turn, (name, placer) in enumerate(placers.items()):
            session = number * len(placers) + turn
            measured[name].append(_session_ms(placer, origins, session, given.steps))
        gc.collect()
    medians = {name: statistics.median(times) for name, times in measured.items()}
    least = medians["no lessons"]
    print("| in force | ms a request | more |\n|---|---:|---:|")
    for name, median in medians.items():
        print(f"| {name} | {median:.3f} | {median - least:+.3f} |")
    return int(medians[_NONE_NEEDED] - least > GOAL_MS)


if __name__ == "__main__":
    raise SystemExit(main())
