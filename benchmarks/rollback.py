"""Taking weights back in the running program: how long until the version before answers.

    python -m benchmarks.rollback [--rounds 20] [--json] [--assert-goals]

The real program with the real 135M model and one adapter (random, of visible effect) that serves.
Each round rolls it back over HTTP, as `metaclaw policy rollback` does, asks at once, and promotes
it again. *Rollback* is until the program says that it is done; *first answer* until an answer is
whole that the version before has made, which the turn's own header says. Beside it two clients
stream answers without a pause, and none of theirs may fail."""

import argparse
import json
import shutil
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from benchmarks.engine import machine
from benchmarks.swaps_world import make_adapter
from metaclaw.engine import MODEL_ID
from metaclaw.store import SqlPolicies, connect
from tests.support.program import Program

ROOT = Path(__file__).resolve().parents[1]
GOALS = {"rollback_most_s": 1.0, "failed": 0.0}
_CLIENTS = 2


@dataclass(slots=True)
class Found:
    """Seconds, and what the clients beside it saw."""

    rollback: list[float] = field(default_factory=list)
    answer: list[float] = field(default_factory=list)
    promote: list[float] = field(default_factory=list)
    answers: int = 0
    failed: int = 0


def ask(program: Program, tokens: int, session: str) -> httpx.Response:
    """One whole answer."""
    body = {
        "model": "any",
        "messages": [{"role": "user", "content": f"Say something about {session}."}],
        "max_tokens": tokens,
    }
    headers = program.auth | {"X-Session-Id": session}
    return httpx.post(f"{program.url}/v1/chat/completions", json=body, headers=headers, timeout=120)


def talk(program: Program, number: int, found: Found, stop: threading.Event) -> None:
    """A client that never pauses."""
    at = 0
    while not stop.is_set():
        at += 1
        try:
            answer = ask(program, 24, f"client {number}, question {at}")
            found.failed += answer.status_code != 200 or answer.json()["choices"][0][
                "finish_reason"
            ] not in ("stop", "length")
        except httpx.HTTPError:
            found.failed += 1
        found.answers += 1


def command(program: Program, what: str, body: dict[str, int]) -> float:
    """One command to the running program; how long it took."""
    began = time.monotonic()
    httpx.post(
        f"{program.url}/api/policy/{what}", json=body, headers=program.auth, timeout=60
    ).raise_for_status()
    return time.monotonic() - began


def prepare(home: Path, model: Path) -> None:
    """A home in which version 1 serves."""
    home.mkdir(mode=0o700, parents=True)
    shutil.copytree(model, home / "models" / MODEL_ID)
    weights = make_adapter(model, home / "policies" / "000001", 1, 0.1)
    database = connect(f"sqlite:///{home / 'ledger.db'}")
    database.prepare()
    policies = SqlPolicies(database)
    version = policies.publish(weights, parent=0, base=MODEL_ID, note="for a benchmark")
    policies.promote(version.number, "for a benchmark")
    database.close()


def measure(program: Program, rounds: int) -> Found:
    """So many times back and forth."""
    found, stop = Found(), threading.Event()
    clients = [
        threading.Thread(target=talk, args=(program, number, found, stop), daemon=True)
        for number in range(_CLIENTS)
    ]
    for client in clients:
        client.start()
    try:
        for number in range(rounds):
            began = time.monotonic()
            found.rollback.append(command(program, "rollback", {}))
            answer = ask(program, 1, f"round {number}")
            if answer.headers["x-metaclaw-policy"] != "0":
                raise RuntimeError(
                    "an answer after the rollback came from the version that was taken back"
                )
            found.answer.append(time.monotonic() - began)
            found.promote.append(command(program, "promote", {"version": 1}))
            if ask(program, 1, f"round {number}, again").headers["x-metaclaw-policy"] != "1":
                raise RuntimeError("the version that was promoted does not answer")
    finally:
        stop.set()
        for client in clients:
            client.join()
    return found


def run(rounds: int, model: Path) -> dict[str, object]:
    """The whole measurement."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        prepare(home, model)
        program = Program(home, '[policy]\nmode = "skills_only"\n').start()
        try:
            program.wait_for(
                "/api/status", lambda status: status["engine"]["state"] == "ready", within_s=120
            )
            found = measure(program, rounds)
        finally:
            program.stop()
    result: dict[str, object] = {
        "machine": machine(),
        "rounds": rounds,
        "answers_beside": found.answers,
        "failed": float(found.failed),
    }
    for name in ("rollback", "answer", "promote"):
        values = sorted(getattr(found, name))
        result[f"{name}_p50_s"], result[f"{name}_most_s"] = values[len(values) // 2], values[-1]
    return result


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rollback", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument(
        "--folder", type=Path, default=ROOT / ".cache" / "engine" / MODEL_ID, help="the model"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    parser.add_argument(
        "--assert-goals", action="store_true", help="exit status 1 where a goal is missed"
    )
    options = parser.parse_args()
    result = run(options.rounds, options.folder)
    if options.json:
        print(json.dumps(result, indent=1))
    else:
        for name, value in result.items():
            print(f"{name}: {value:.4f}" if isinstance(value, float) else f"{name}: {value}")
    missed = [
        name
        for name, goal in GOALS.items()
        if isinstance(value := result[name], float) and value > goal
    ]
    for name in missed:
        print(f"missed: {name} is {result[name]}, the goal is {GOALS[name]}", file=sys.stderr)
    return 1 if missed and options.assert_goals else 0


if __name__ == "__main__":
    sys.exit(main())
