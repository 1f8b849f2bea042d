"""How soon a correction takes effect, and what serving feels of it: the real program, over HTTP.

    python -m benchmarks.time_to_effect [--repetitions 30] [--rounds 6] [--seconds 5]
    [--evolver-delay 0] [--json] [--assert-goals]

SIMULATED are the models, none of which is real: worker, judge and evolver
(`tests/support/teacher.py`). The evolver answers at once, or after `--evolver-delay` seconds; the
time it really took is measured at its end and taken off. Everything else is the program as it is
delivered, with `gate = "lint"`.

**Time to effect.** For each repetition another kind of task: a session fails, the clock starts, the
correction is sent; from then on a fresh session asks for the same kind of thing every 50 ms. The
clock stops when the first answer is there whose request carried the skill. Each later repetition
finds the skills of the earlier ones in the library.

**Serving meanwhile.** Two programs, one that learns and one with `skills.learn = false`, are loaded
in turns, in an order that alternates: two sessions a second fail and are corrected, while an
unrelated client asks an unrelated provider 50 times a second, both in processes of their own. Its
latencies are compared within each round. Who feels nothing of learning sees a ratio of 1."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from benchmarks.time_to_effect_topics import TOPICS, Topic
from benchmarks.time_to_effect_world import Agent, World, stage
from tests.support.program import KEY

POLL_S = 0.05
GIVE_UP_S = 20.0
CORRECTIONS_A_SECOND = 2.0
HAMMER_A_SECOND = 50.0
GOALS = {"effect_p50_s": 2.0, "latency_p50_ratio": 1.1, "latency_p99_ratio": 1.5}


def effect_s(agent: Agent, world: World, topic: Topic) -> tuple[float, float]:
    """From sending the correction to the first answer made with the skill, and the evolver's own
    part of it.
    """
    task = topic.task(0)
    agent.ask(f"failing {topic.name}", task)
    began = time.perf_counter()
    agent.ask(f"failing {topic.name}", task, topic.correction)
    for number in range(1, int(GIVE_UP_S / POLL_S)):
        if agent.carries(f"poll {topic.name} {number}", topic, number):
            return time.perf_counter() - began, world.evolving_s[topic.name]
        time.sleep(max(0.0, began + number * POLL_S - time.perf_counter()))
    raise TimeoutError(
        f"{topic.name} had no effect within {GIVE_UP_S:g}"
        f" s:\n{agent.program.log.read_text()[-2000:]}"
    )


class Corrections(threading.Thread):
    """People whose agents fail and who say so, at a steady pace, until told to stop."""

    def __init__(self, agent: Agent, label: str) -> None:
        super().__init__(daemon=True)
        self.sent = 0
        self.error: Exception | None = None
        self._agent = agent
        self._label = label
        self._enough = threading.Event()

    def run(self) -> None:
        began = time.perf_counter()
        try:
            while not self._enough.wait(
                max(0.0, began + self.sent / CORRECTIONS_A_SECOND - time.perf_counter())
            ):
                topic, session = TOPICS[self.sent % len(TOPICS)], f"{self._label} {self.sent}"
                task = topic.task(self.sent)
                self._agent.ask(session, task)
                self._agent.ask(session, task, topic.correction)
                self.sent += 1
        except httpx.HTTPError as error:
            self.error = error

    def finish(self) -> int:
        """How many were sent."""
        self._enough.set()
        self.join()
        if self.error is not None:
            raise self.error
        return self.sent


def hammer(url: str, seconds: float) -> list[float]:
    """Latencies in milliseconds as an unrelated client sees them; it runs in a process of its
    own.
    """
    command = [
        sys.executable,
        "-m",
        "benchmarks.time_to_effect",
        "--hammer",
        url,
        "--seconds",
        str(seconds),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds + 60)
    found: list[float] = json.loads(done.stdout)
    return found


def _hammer_here(url: str, seconds: float) -> list[float]:
    body = {
        "model": "echo",
        "messages": [{"role": "user", "content": "How does photosynthesis work in plants?"}],
    }
    headers = {"authorization": f"Bearer {KEY}", "x-user-id": "unrelated"}
    seen = []
    with httpx.Client(timeout=20) as client:
        client.post(
            f"{url}/v1/chat/completions", json=body, headers=headers
        ).raise_for_status()  # the connection
        began = time.perf_counter()
        for number in range(int(seconds * HAMMER_A_SECOND)):
            time.sleep(max(0.0, began + number / HAMMER_A_SECOND - time.perf_counter()))
            at = time.perf_counter()
            client.post(
                f"{url}/v1/chat/completions",
                json=body,
                headers={**headers, "x-session-id": f"{os.getpid()} {number}"},
            )
            seen.append((time.perf_counter() - at) * 1000)
    return seen


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of the values is not above."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


@dataclass
class Serving:
    """Latencies of one round, and what went on meanwhile."""

    learning_ms: list[float]
    off_ms: list[float]
    corrections: int

    def ratio(self, share: float) -> float:
        """Learning to not learning."""
        return percentile(self.learning_ms, share) / percentile(self.off_ms, share)


def serving_round(number: int, learning: Agent, off: Agent, seconds: float) -> Serving:
    """Load both, one after the other; every second time the other one first."""
    loaded: dict[int, tuple[list[float], int]] = {}
    for agent in (learning, off) if number % 2 == 0 else (off, learning):
        people = Corrections(agent, f"round {number}")
        people.start()
        latencies = hammer(agent.program.url, seconds)
        loaded[id(agent)] = latencies, people.finish()
    return Serving(loaded[id(learning)][0], loaded[id(off)][0], loaded[id(learning)][1])


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Everything, as facts."""
    with stage(given.evolver_delay) as (world, learning, off):
        times = [effect_s(learning, world, topic) for topic in TOPICS[: given.repetitions]]
        rounds = [
            serving_round(number, learning, off, given.seconds) for number in range(given.rounds)
        ]
        status = learning.program.get("/api/status")
        evolved = len(world.asked("evolve"))
    net = [whole - own for whole, own in times]
    facts: dict[str, Any] = {
        "repetitions": len(times),
        "effect_s": {"p50": percentile(net, 0.5), "p95": percentile(net, 0.95), "max": max(net)},
        "evolver_s": {"p50": percentile([own for _, own in times], 0.5)},
        "skills": status["skills"]["count"],
        "evolver_calls": evolved,
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
    }
    if rounds:
        facts["serving"] = _serving_facts(rounds)
    facts["goals"] = goals_met(facts)
    return facts


def _serving_facts(rounds: Sequence[Serving]) -> dict[str, Any]:
    arms = {
        "learning": [ms for one in rounds for ms in one.learning_ms],
        "off": [ms for one in rounds for ms in one.off_ms],
    }
    shown = {
        name: {"n": len(ms), "p50_ms": percentile(ms, 0.5), "p99_ms": percentile(ms, 0.99)}
        for name, ms in arms.items()
    }
    ratios = {
        f"p{int(share * 100)}_ratio": statistics.median(one.ratio(share) for one in rounds)
        for share in (0.5, 0.99)
    }
    return {
        **shown,
        **ratios,
        "rounds": len(rounds),
        "corrections": sum(one.corrections for one in rounds),
    }


def goals_met(facts: dict[str, Any]) -> dict[str, bool]:
    """Which of the goals are met; those of what was not measured are left out."""
    serving = facts.get("serving")
    met = {"effect_p50_s": facts["effect_s"]["p50"] < GOALS["effect_p50_s"]}
    if serving is not None:
        met |= {
            f"latency_{name}": serving[name] <= GOALS[f"latency_{name}"]
            for name in ("p50_ratio", "p99_ratio")
        }
    return met


def report(facts: dict[str, Any]) -> None:
    """For people."""
    effect, serving = facts["effect_s"], facts.get("serving")
    print(
        f"time to effect, gate = lint, {facts['repetitions']} repetitions, the simulated evolver's"
        " own time taken off:"
    )
    print(f"  p50 {effect['p50']:.3f} s   p95 {effect['p95']:.3f} s   max {effect['max']:.3f} s")
    print(
        f"  (evolver itself: p50 {facts['evolver_s']['p50']:.3f} s; skills in force at the end:"
        f" {facts['skills']})"
    )
    if serving is not None:
        busy = (
            f"{serving['corrections']} corrections, {facts['evolver_calls']} evolver calls in all"
        )
        print(f"serving meanwhile, {serving['rounds']} rounds, {busy}:")
        for name in ("learning", "off"):
            arm = serving[name]
            print(
                f"  {name:9} p50 {arm['p50_ms']:.2f} ms   p99 {arm['p99_ms']:.2f} ms   n {arm['n']}"
            )
        print(
            f"  ratio, median over rounds: p50 {serving['p50_ratio']:.3f}   p99"
            f" {serving['p99_ratio']:.3f}"
        )
    print(f"machine: {facts['cores']} cores, load average {facts['load_average']:.1f} at the end")
    for name, is_met in facts["goals"].items():
        print(
            f"{'yes' if is_met else 'NO '}  {name} {'<' if name.startswith('effect') else '<='}"
            f" {GOALS[name]:g}"
        )


def main() -> int:
    """Measure and report; 1 where a goal is missed and that matters."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.time_to_effect", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument(
        "--repetitions",
        type=int,
        default=30,
        choices=range(1, len(TOPICS) + 1),
        metavar=f"1..{len(TOPICS)}",
    )
    parser.add_argument(
        "--rounds", type=int, default=6, help="of serving while learning; 0 leaves that out [6]"
    )
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="that each program is loaded in a round [5]"
    )
    parser.add_argument(
        "--evolver-delay", type=float, default=0.0, help="seconds the simulated evolver takes [0]"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--assert-goals", action="store_true")
    parser.add_argument("--hammer", metavar="URL", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.hammer is not None:
        print(json.dumps(_hammer_here(given.hammer, given.seconds)))
        return 0
    facts = measure(given)
    if given.json:
        print(json.dumps(facts, indent=2))
    else:
        report(facts)
    return 1 if given.assert_goals and not all(facts["goals"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
