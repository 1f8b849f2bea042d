"""Held rules in the running program: what reaches the client, what is counted, and what it costs.

    .venv/bin/python -m benchmarks.enforcement [--calls 500] [--requests 300] [--json]
    [--assert-goals] .venv/bin/python -m benchmarks.enforcement --agents opencode claude-code codex
    openclaw

The provider is scripted: it breaks a rule on a schedule, alone and beside calls that comply, and
refuses every history that it did not make. The clients are the official SDKs on all three wires,
streamed and whole, relayed and translated, several at once. Thirty rules are in force, ten of them
held. Every call that a client gets is compared with what the provider said, and is answered with a
result, so that the next request shows whether the history is still the provider's own.

Processor time is that of the whole process tree, from `/proc`, in two programs with the same thirty
rules, one of which holds ten. They take turns under the same load of calls that comply; learning is
off in both. The ratio is taken within each round.

With `--agents` the clients are the real agent programs instead, each with an equal share of the
calls; `agent_schedule` in the tests says what the provider plays and refuses. The folder in which
an agent works tells which commands were run."""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import count, cycle
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import httpx

from benchmarks.proxy.procfs import cpu_s
from tests.support.agent_schedule import CYCLE, REAL_AGENTS, Result, run_agent, schedule
from tests.support.holding import PARAMETERS, new_agent, write_rule
from tests.support.program import NOT_LEARNING, Program, providers_toml
from tests.support.strict_provider import BAD, STEPS, Answer, RemindedProvider, StrictProvider

RULE = "no-force-push"
TARGETS = (
    ("chat", "openai"),
    ("messages", "anthropic"),
    ("responses", "openai"),
    ("chat", "anthropic"),
    ("messages", "chatonly"),
    ("responses", "chatonly"),
)
RELAYED = TARGETS[:3]
VIOLATING = ("bad good", "mixed two", "bad mixed good", "bad bad bad", "mixed text")
COMPLIANT = ("good", "two")
_PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}
_FIRST_TEXT = {
    "chat": b'"content": "',
    "messages": b'"text_delta"',
    "responses": b"response.output_text.delta",
}
_RULES, _HELD = 30, 10
_PAUSE_S = 0.002


class Kind(NamedTuple):
    """Whether an answer is streamed, what the provider says, and the pause before each event.
    Without one, a stream arrives in one piece, which no model does; answers with pauses take long,
    so only a share of the requests is made."""

    stream: bool
    plan: str
    pause_s: float = 0.0
    share: float = 1.0


_KINDS = {
    "whole": Kind(False, "two"),
    "streamed": Kind(True, "two", _PAUSE_S, 0.25),
    "streamed without calls": Kind(True, "text", _PAUSE_S, 0.5),
    "streamed in one piece": Kind(True, "two"),
}
_FRESH_AFTER = 8
_STEPS_OF_A_ROUND = 50
_TICK_S = 0.01
GOALS = {
    "violating_delivered": 0,
    "compliant_changed": 0,
    "failures": 0,
    "cpu_ratio": 1.10,
    "first_text_ms": 5.0,
}


@dataclass
class ScriptedProvider(RemindedProvider):
    """Knows all calls it made, and has nothing to say to requests of the program's own."""

    made: dict[str, str] = field(default_factory=dict)

    def reply(
        self, wire: str, request: dict[str, Any], headers: dict[str, str]
    ) -> tuple[int, dict[str, Any] | list[bytes]]:
        if headers.get("x-metaclaw-purpose") not in (None, "enforce"):
            return 503, {"error": {"message": "not scripted", "type": "server_error"}}
        return super().reply(wire, request, headers)

    def _make(self, step: str) -> Answer:
        answer = super()._make(step)
        self.made.update(answer.calls)
        return answer


@dataclass
class Tally:
    """What the clients saw."""

    violating_made: int = 0
    violating_delivered: int = 0
    compliant_made: int = 0
    compliant_changed: int = 0
    requests: int = 0
    failures: list[str] = field(default_factory=list)
    turns: Counter[str] = field(default_factory=Counter)
    by_model: dict[str, Counter[str]] = field(default_factory=dict)


class Driver:
    """Clients of one wire, one after another, each with its own history."""

    def __init__(
        self, program: Program, provider: ScriptedProvider, tally: Tally, numbers: Iterator[int]
    ) -> None:
        self._program, self._provider, self._tally, self._numbers = (
            program,
            provider,
            tally,
            numbers,
        )
        self._lock = threading.Lock()

    def run(self, wire: str, target: str, stream: bool, plans: Sequence[str]) -> None:
        """Ask for each plan, and send the results of what was called."""
        model = f"{target}/{wire}-{'stream' if stream else 'whole'}"
        agent: Any = new_agent(wire, self._program.url, model, stream)
        for place, plan in enumerate(plans):
            if place % _FRESH_AFTER == 0:
                agent.history = []
            with self._lock:
                number = next(self._numbers)
            try:
                got = agent.ask(f"task {number} PLAN {plan}")
                later = agent.answer_calls() if got.calls else None
            except Exception as error:
                with self._lock:
                    self._tally.requests += 1
                    self._tally.failures.append(
                        f"{model} {plan}: {type(error).__name__}: {error}"[:300]
                    )
                agent.history = []
                continue
            with self._lock:
                self._count(
                    plan,
                    model.partition("/")[2],
                    (wire, target) in RELAYED,
                    got.calls,
                    later.calls if later else [],
                )

    def _count(
        self,
        plan: str,
        model: str,
        is_relayed: bool,
        calls: Sequence[tuple[str, str]],
        more: Sequence[tuple[str, str]],
    ) -> None:
        tally, steps = self._tally, plan.split()
        tally.requests += 1 + bool(calls)
        tally.violating_delivered += sum(command == BAD for _, command in (*calls, *more))
        if plan in VIOLATING:
            tally.violating_made += sum(step in ("bad", "mixed") for step in steps)
            result = "held"
        else:
            wanted = STEPS[plan]
            is_same = [command for _, command in calls] == wanted
            if is_relayed:  # translated calls have ids of their own
                is_same = is_same and all(
                    self._provider.made.get(identity) == command for identity, command in calls
                )
            tally.compliant_made += len(wanted)
            tally.compliant_changed += 0 if is_same else len(wanted)
            result = "followed"
        tally.turns[result] += 1
        tally.by_model.setdefault(model, Counter())[result] += 1


def plans_for(kinds: Sequence[str], calls: int) -> list[str]:
    """Plans of these kinds in turn that come to at least so many calls of the kind that is
    counted.
    """
    found: list[str] = []
    for plan in cycle(kinds):
        if calls <= 0:
            return found
        found.append(plan)
        calls -= (
            sum(step in ("bad", "mixed") for step in plan.split())
            if plan in VIOLATING
            else 1 + (plan == "two")
        )
    return found


def write_rules(program: Program, held: int) -> None:
    """Thirty rules about what a shell is given; the first so many are held."""
    for number in range(_RULES):
        name = RULE if number == 0 else f"rule-{number:02d}"
        check = (
            "not in calls of shell: push .*--force"
            if number == 0
            else f"not in calls of shell: tool-{number:02d} +(run|start)"
        )
        write_rule(
            program, name, check, f"Never use tool {number}." if number else "Never force-push."
        )
        if number >= held:
            path = program.home / "skills" / name / "SKILL.md"
            path.write_text(path.read_text().replace("enforce: hold", "enforce: remind"))


@contextmanager
def running(
    folder: Path, name: str, provider: StrictProvider, held: int, *, learn: bool
) -> Iterator[Program]:
    """The program with thirty rules, so many of them held."""
    program = Program(
        folder / name,
        providers_toml(provider.url, timeout_s=60),
        env=None if learn else NOT_LEARNING,
    )
    write_rules(program, held)
    program.start()
    try:
        yield program
    finally:
        program.stop()


def measure_delivery(
    folder: Path, calls: int, seed: int = 1, *, held: int = _HELD
) -> dict[str, Any]:
    """Drive violating and compliant calls through all wires; then compare the program's own
    numbers.
    """
    provider = ScriptedProvider(random=Random(seed))
    provider.start()
    tally = Tally()
    places = [(wire, target, stream) for wire, target in TARGETS for stream in (False, True)]
    plans = plans_for(VIOLATING, calls) + plans_for(COMPLIANT, calls)
    Random(seed).shuffle(plans)
    try:
        with running(folder, "delivery", provider, held, learn=True) as program:
            driver = Driver(program, provider, tally, count(1))
            with ThreadPoolExecutor(4) as threads:
                work = [
                    threads.submit(driver.run, *place, plans[number :: len(places)])
                    for number, place in enumerate(places)
                ]
                for one in work:
                    one.result()
            counted = _settled_counts(program, tally)
    finally:
        provider.stop()
    truth = _counts(tally.turns)
    models = {model: _counts(found) for model, found in tally.by_model.items()}
    return {
        "violating_made": tally.violating_made,
        "violating_delivered": tally.violating_delivered,
        "compliant_made": tally.compliant_made,
        "compliant_changed": tally.compliant_changed,
        "requests": tally.requests,
        "failures": len(tally.failures),
        "failed": tally.failures[:5],
        "refused_histories": len(provider.refused),
        "truth": truth,
        "counted": _plain(counted["compliance"]),
        "compliance_is_true": (
            _agrees(counted["compliance"], truth)
            and {model: _plain(found) for model, found in counted["by_model"].items()} == models
        ),
    }


def measure_agents(folder: Path, names: Sequence[str], calls: int) -> list[Result]:
    """Run real agents through a schedule of at least so many violating calls in all, and more that
    comply.
    """
    script = Path(__file__).resolve().parent.parent / "scripts" / "agents-env"
    programs = [REAL_AGENTS[name].program for name in names]
    found = subprocess.run(
        [sys.executable, str(script), *programs], stdout=subprocess.PIPE, text=True, check=True
    )
    cycles = -(
        -calls // (len(names) * sum(plan.count("bad") + plan.count("mixed") for plan in CYCLE))
    )
    results = []
    for name in names:
        began = time.monotonic()
        results.append(
            run_agent(
                REAL_AGENTS[name], found.stdout.strip(), folder / name, schedule(cycles, prompts=3)
            )
        )
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return results


def report_agents(results: Sequence[Result]) -> bool:
    """Print a table in Markdown; whether all goals are met."""
    rows = []
    is_met = True
    for one in results:
        found = _plain(one.counted["compliance"])
        wire = REAL_AGENTS[one.agent].wire
        unchanged = f"{one.compliant - len(one.changed)} of {one.compliant}"
        failed = len(one.refused) + len(one.errors)
        counts = "the same" if found == one.truth else f"{_words(found)}, not {_words(one.truth)}"
        rows.append(
            (
                one.agent,
                wire,
                f"{len(one.leaked)} of {one.violating}",
                unchanged,
                f"{failed} of {one.requests}",
                counts,
            )
        )
        is_met = is_met and not (one.leaked or one.changed or failed) and found == one.truth
    violating, compliant = (
        sum(one.violating for one in results),
        sum(one.compliant for one in results),
    )
    leaked, changed = (
        sum(len(one.leaked) for one in results),
        sum(len(one.changed) for one in results),
    )
    failed, asked = (
        sum(len(one.refused) + len(one.errors) for one in results),
        sum(one.requests for one in results),
    )
    rows.append(
        (
            "all",
            "",
            f"{leaked} of {violating}",
            f"{compliant - changed} of {compliant}",
            f"{failed} of {asked}",
            "",
        )
    )
    print(
        "| agent | wire | violating calls run | compliant calls run, unchanged | failed requests |"
        " compliance, script and program |"
    )
    print("|---|---|---|---|---|---|")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    for one in results:
        for line in (*one.refused[:3], *one.errors[:3]):
            print(f"failed: {one.agent}: {line}")
    return is_met


def _counts(turns: Counter[str]) -> dict[str, int]:
    held, followed = turns["held"], turns["followed"]
    return {
        "applied": held + followed,
        "followed": followed,
        "broken": held,
        "held": held,
        "unknown": 0,
    }


def _plain(found: dict[str, Any]) -> dict[str, int]:
    return {name: found[name] for name in ("applied", "followed", "broken", "held", "unknown")}


def _agrees(found: dict[str, Any], truth: dict[str, int]) -> bool:
    return _plain(found) == truth


def _settled_counts(program: Program, tally: Tally) -> dict[str, Any]:
    """The program's own numbers for the rule, when the learner has looked at everything or after a
    while.
    """
    truth = _counts(tally.turns)
    deadline, found = time.monotonic() + 120, {}
    while time.monotonic() < deadline:
        found = program.get(f"/api/rules/{RULE}")
        if found["compliance"]["applied"] >= truth["applied"]:
            break
        time.sleep(0.5)
    return found


def measure_cost(folder: Path, requests: int, rounds: int) -> dict[str, Any]:
    """Processor time for each request and time to the first text, with ten held rules and with
    none.
    """
    provider = StrictProvider(pieces=20)
    provider.start()
    ratios: dict[str, list[float]] = {kind: [] for kind in _KINDS}
    spent: dict[str, dict[str, list[float]]] = {kind: {"held": [], "none": []} for kind in ratios}
    waits: dict[str, list[float]] = {"held": [], "none": []}
    try:
        with (
            running(folder, "held", provider, _HELD, learn=False) as held,
            running(folder, "none", provider, 0, learn=False) as none,
            httpx.Client(timeout=60) as client,
        ):
            arms = {"held": held, "none": none}
            numbers = count(1)
            for program in arms.values():
                for kind in _KINDS:
                    _load(client, program, 2 * len(RELAYED), kind, numbers)
            for number in range(rounds):
                order = list(arms.items())[:: 1 if number % 2 == 0 else -1]
                for kind in ratios:
                    provider.pause_s = _KINDS[kind].pause_s
                    made = max(len(RELAYED), int(_KINDS[kind].share * requests))
                    used = _round(client, order, made, kind, numbers)
                    for name, value in used.items():
                        spent[kind][name].append(1000 * value / made)
                    ratios[kind].append(used["held"] / max(used["none"], _TICK_S))
            provider.pause_s, provider.pieces = _PAUSE_S, 3
            for number in range(2 * _STEPS_OF_A_ROUND):
                wire, target = RELAYED[number % len(RELAYED)]
                for name, program in list(arms.items())[:: 1 if number % 2 == 0 else -1]:
                    waits[name].append(
                        1000 * _first_text_s(client, program, wire, target, next(numbers))
                    )
    finally:
        provider.stop()
    median = statistics.median
    return {
        "cpu_ms": {
            kind: {name: median(values) for name, values in arms.items()}
            for kind, arms in spent.items()
        },
        "cpu_ratio": {kind: median(values) for kind, values in ratios.items()},
        "first_text_ms": {name: median(values) for name, values in waits.items()},
        "rounds": rounds,
        "requests": requests,
    }


def _round(
    client: httpx.Client,
    arms: Sequence[tuple[str, Program]],
    requests: int,
    kind: str,
    numbers: Iterator[int],
) -> dict[str, float]:
    """Processor seconds of each program for the same load, taken in short turns."""
    used = dict.fromkeys((name for name, _ in arms), 0.0)
    for begin in range(0, requests, _STEPS_OF_A_ROUND):
        for name, program in arms:
            assert program.process is not None
            before = cpu_s(program.process.pid)
            _load(client, program, min(_STEPS_OF_A_ROUND, requests - begin), kind, numbers)
            used[name] += cpu_s(program.process.pid) - before
    return used


def _body(wire: str, target: str, stream: bool, number: int, plan: str) -> dict[str, Any]:
    words = (
        f"task {number} PLAN {plan}\n"
        + "Read the file, change what the test names, and say what you did. " * 20
    )
    tool: dict[str, Any] = {
        "type": "function",
        "function": {"name": "bash", "parameters": PARAMETERS},
    }
    if wire == "messages":
        tool = {"name": "bash", "input_schema": PARAMETERS}
    elif wire == "responses":
        tool = {"type": "function", "name": "bash", "parameters": PARAMETERS, "strict": False}
    history: Any = [{"role": "user", "content": words}]
    return {
        "model": f"{target}/m",
        "stream": stream,
        "tools": [tool],
        ("input" if wire == "responses" else "messages"): history,
        **({"max_tokens": 500} if wire == "messages" else {}),
    }


def _load(
    client: httpx.Client, program: Program, requests: int, kind: str, numbers: Iterator[int]
) -> None:
    stream, plan, *_ = _KINDS[kind]
    for place in range(requests):
        wire, target = RELAYED[place % len(RELAYED)]
        body = _body(wire, target, stream, next(numbers), plan)
        answer = client.post(f"{program.url}{_PATHS[wire]}", json=body, headers=program.auth)
        answer.raise_for_status()


def _first_text_s(
    client: httpx.Client, program: Program, wire: str, target: str, number: int
) -> float:
    began, seen = time.perf_counter(), b""
    body = _body(wire, target, True, number, "two")
    with client.stream(
        "POST", f"{program.url}{_PATHS[wire]}", json=body, headers=program.auth
    ) as answer:
        answer.raise_for_status()
        first = 0.0
        for chunk in answer.iter_raw():
            seen += chunk
            if not first and _FIRST_TEXT[wire] in seen.replace(b'"content": ""', b""):
                first = time.perf_counter() - began
    assert first, seen[:500]
    return first


def goals_met(facts: dict[str, Any]) -> dict[str, bool]:
    """Which of the goals are met; those of what was not measured are left out."""
    met: dict[str, bool] = {}
    if delivery := facts.get("delivery"):
        met |= {
            name: delivery[name] <= GOALS[name]
            for name in ("violating_delivered", "compliant_changed", "failures")
        }
        met["compliance_is_true"] = delivery["compliance_is_true"]
    if cost := facts.get("cost"):
        met |= {
            f"cpu_ratio_{kind}": value <= GOALS["cpu_ratio"]
            for kind, value in cost["cpu_ratio"].items()
        }
        met["first_text_ms"] = (
            cost["first_text_ms"]["held"] - cost["first_text_ms"]["none"] <= GOALS["first_text_ms"]
        )
    return met


def report(facts: dict[str, Any]) -> None:
    """Print a table in Markdown."""
    rows: list[tuple[str, str]] = []
    if one := facts.get("delivery"):
        rows += [
            (
                "violating calls that reached the client",
                f"{one['violating_delivered']} of {one['violating_made']}",
            ),
            (
                "compliant calls that arrived unchanged",
                f"{one['compliant_made'] - one['compliant_changed']} of {one['compliant_made']}",
            ),
            ("failed requests", f"{one['failures']} of {one['requests']}"),
            ("histories that the provider refused", str(one["refused_histories"])),
            ("compliance by the script", _words(one["truth"])),
            ("compliance by `/api/rules`", _words(one["counted"])),
        ]
    if one := facts.get("cost"):
        for kind, ratio in one["cpu_ratio"].items():
            used = one["cpu_ms"][kind]
            words = f"{used['held']:.2f} ms, {used['none']:.2f} ms, ratio {ratio:.3f}"
            rows.append((f"processor time per {kind} request, 10 held and 0 held", words))
        first = one["first_text_ms"]
        rows.append(
            (
                "time to the first text, 10 held and 0 held",
                f"{first['held']:.1f} ms, {first['none']:.1f} ms",
            )
        )
    print("| | |\n|---|---|")
    for name, value in rows:
        print(f"| {name} | {value} |")
    print()
    for name, is_met in facts["goals"].items():
        print(f"{'yes' if is_met else 'NO '}  {name}")
    for line in facts.get("delivery", {}).get("failed", []):
        print(f"failed: {line}")


def _words(counts: dict[str, Any]) -> str:
    return ", ".join(f"{name} {counts[name]}" for name in ("applied", "followed", "broken", "held"))


def measure(calls: int, requests: int, rounds: int, seed: int = 1) -> dict[str, Any]:
    """Everything; 0 calls or 0 requests leaves that part out."""
    facts: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="metaclaw-enforcement-") as folder:
        if calls:
            facts["delivery"] = measure_delivery(Path(folder), calls, seed)
        if requests:
            facts["cost"] = measure_cost(Path(folder), requests, rounds)
    facts["goals"] = goals_met(facts)
    return facts


def main() -> int:
    """Measure and report; 1 where a goal is missed and that matters."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.enforcement", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument(
        "--agents", nargs="+", choices=REAL_AGENTS, help="run these real agents instead of SDKs"
    )
    parser.add_argument(
        "--calls",
        type=int,
        default=500,
        help="violating calls, and as many that comply; 0 leaves that out [500]",
    )
    parser.add_argument(
        "--requests",
        type=int,
        default=300,
        help="of each kind in a round of the cost; 0 leaves that out [300]",
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--assert-goals", action="store_true")
    given = parser.parse_args()
    if given.agents:
        with tempfile.TemporaryDirectory(prefix="metaclaw-enforcement-") as folder:
            results = measure_agents(Path(folder), given.agents, given.calls)
        if given.json:
            print(json.dumps([asdict(one) for one in results], indent=2))
        is_met = report_agents(results)
        return 1 if given.assert_goals and not is_met else 0
    facts = measure(given.calls, given.requests, given.rounds, given.seed)
    if given.json:
        print(json.dumps(facts, indent=2))
    else:
        report(facts)
    return 1 if given.assert_goals and not all(facts["goals"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
