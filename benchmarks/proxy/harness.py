"""Runs the whole benchmark: starts every target, interleaves the slots, measures memory, stops
everything.
"""

import contextlib
import http.client
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import bodies, peers
from .goals import BEFORE, OURS
from .library import SIGN
from .memory import memory_points
from .procfs import cpu_s, wait_for_quiet
from .results import Run, Slot
from .suites import BY_NAME, SUITES, Bench, LoadFailedError, Suite
from .targets import (
    CHAT,
    Direct,
    Recipe,
    StartError,
    Target,
    nginx,
    ours,
    request,
    running_provider,
)
from .toolchain import MissingToolError, build

Say = Callable[[str], None]
_INDEX_LIMIT_S = 300.0


@dataclass(frozen=True, slots=True)
class Options:
    """What to run and for how long."""

    targets: Sequence[str]
    suites: Sequence[str]
    rounds: int
    seconds: float
    cold_starts: int
    skills: int
    memory_requests: int
    overload_s: float
    patience_s: float
    budget_s: float
    command: str
    before: Path | None = None
    """The `metaclaw` program of another version, measured beside ours."""


def recipes(skills: int, before: Path | None = None) -> dict[str, Recipe]:
    """Every target but `direct`, by name."""
    earlier = {} if before is None else {BEFORE: ours(skills, before)}
    return {"nginx": nginx, **earlier, OURS: ours(skills), **peers.recipes(skills)}


def measure(options: Options, say: Say) -> Run:
    """The whole benchmark; always ends what it started."""
    run = Run(facts=_facts(options), skills=options.skills)
    give_up = time.monotonic() + options.budget_s
    with (
        tempfile.TemporaryDirectory(prefix="proxy-bench-") as folder,
        contextlib.ExitStack() as stack,
    ):
        workplace = Path(folder)
        (workplace / "bodies").mkdir()
        bench = Bench(build(), bodies.write_all(workplace / "bodies"))
        provider, provider_port = stack.enter_context(running_provider(bench.programs["provider"]))
        alive: list[Target] = []
        stack.callback(_stop_all, alive)
        if "direct" in options.targets:
            alive.append(Direct(provider, provider_port, workplace))
        for name, recipe in recipes(options.skills, options.before).items():
            if name in options.targets:
                target = Target(name, recipe, workplace, provider_port)
                alive.append(target)
                if not _start(run, target, options, say):
                    alive.remove(target)
        for target in alive:
            if target.name in (OURS, BEFORE):
                _wait_for_index(target, options, say)
            with _noting(run, say):
                run.skills_placed[target.name] = _placed(target, bench, provider_port)
                bench.load(target, BY_NAME["short-8"], seconds=0.5)  # warms it up
        _rounds(run, bench, alive, options, give_up, say)
        for target in alive:
            if target.name == OURS:
                with _noting(run, say):
                    _check_record(run, target)
                with _noting(run, say):
                    _measure_memory(run, bench, target, options, say)
    return run


@contextlib.contextmanager
def _noting(run: Run, say: Say) -> Iterator[None]:
    """A target that breaks costs its own number, not the whole run."""
    try:
        yield
    except (LoadFailedError, StartError, OSError, http.client.HTTPException) as problem:
        run.notes.append(str(problem).partition("\n")[0] or repr(problem))
        say(f"{problem!r}")


def _stop_all(targets: Sequence[Target]) -> None:
    for target in targets:
        target.stop()


def _start(run: Run, target: Target, options: Options, say: Say) -> bool:
    """Cold starts, the last of which is left running; False and a note where it cannot run here."""
    first = bodies.chat()
    try:
        for again in range(options.cold_starts):
            wait_for_quiet(options.patience_s)
            started = target.start(first)
            run.starts.append(started)
            say(
                f"{target.name} answers after {started.healthy_s:.2f} s with"
                f" {started.pss_mb:.0f} MB"
            )
            if again + 1 < options.cold_starts:
                target.stop()
    except (MissingToolError, StartError) as problem:
        run.notes.append(f"{target.name} left out: {str(problem).splitlines()[0]}")
        say(f"{target.name} left out: {problem}")
        target.stop()
        return False
    return True


def _wait_for_index(target: Target, options: Options, say: Say) -> None:
    """Wait until the library is embedded, which a new home does once: its processor time must not
    be counted as the requests'.
    """
    before, give_up = cpu_s(target.pid), time.monotonic() + _INDEX_LIMIT_S
    while time.monotonic() < give_up:
        status, body = request(target.port, "GET", "/api/status")
        skills = json.loads(body).get("skills", {}) if status == 200 else {}
        if not _is_indexing(skills):
            break
        time.sleep(0.5)
    say(
        f"{target.name} has embedded {options.skills:,} skills after"
        f" {cpu_s(target.pid) - before:.0f} s of processor time"
    )


def _is_indexing(skills: object) -> bool:
    """Whether the status of a program says that it embeds its library. Programs that do not search
    by meaning say nothing of it, or something else.
    """
    retrieval = skills.get("retrieval") if isinstance(skills, dict) else None
    state = retrieval.get("state") if isinstance(retrieval, dict) else None
    return isinstance(state, str) and state.startswith(("idle", "starting", "indexing"))


def _placed(target: Target, bench: Bench, provider_port: int) -> int:
    """How many skills of the library the provider finds in a request that came through the
    target.
    """
    body = bench.bodies["keep"].read_bytes()
    status, _ = request(target.port, "POST", CHAT, body)
    if status != 200:
        raise StartError(f"{target.name} answered the second request with {status}")
    _, kept = request(provider_port, "GET", "/kept")
    return kept.count(SIGN.encode())


def _order(
    suites: Sequence[str], targets: Sequence[Target], rounds: int
) -> Iterator[tuple[int, Suite, Target]]:
    """Slot by slot; every second round goes through the targets backwards, so that no one always
    follows the same.
    """
    for round_ in range(rounds):
        for suite in (suite for suite in SUITES if suite.name in suites):
            for target in targets if round_ % 2 == 0 else reversed(targets):
                if suite.only is None or target.name in suite.only:
                    yield round_, suite, target


def _rounds(
    run: Run, bench: Bench, targets: Sequence[Target], options: Options, give_up: float, say: Say
) -> None:
    begun = -1
    for round_, suite, target in _order(options.suites, targets, options.rounds):
        if round_ > begun and round_ and time.monotonic() > give_up:
            run.notes.append(
                f"stopped after {round_} of {options.rounds} rounds: the time allowed was over"
            )
            return
        begun = round_
        wait_for_quiet(options.patience_s)
        with _noting(run, say):
            slot = bench.slot(target, suite, round_, options.seconds)
            run.slots.append(slot)
            say(_line(slot))


def _line(slot: Slot) -> str:
    p50 = slot.load.latency_us.p50
    half = "–" if p50 is None else f"{p50 / 1000:.2f}"
    rate = f"{slot.load.rps:10,.1f}/s  p50 {half} ms  {slot.cpu_us:,.0f} µs"
    return f"round {slot.round + 1}  {slot.suite:18} {slot.target:8} {rate}" + (
        f"  {slot.load.failed} failed" if slot.load.failed else ""
    )


def _check_record(run: Run, target: Target) -> None:
    """Asks our proxy how many turns it has on record, against how many good answers the load
    clients counted.
    """
    run.answered = sum(slot.load.ok for slot in run.slots if slot.target == target.name)
    status, body = request(target.port, "GET", "/api/status")
    counts = json.loads(body).get("counts", {}) if status == 200 else {}
    run.recorded = counts.get("turns")


def _measure_memory(run: Run, bench: Bench, target: Target, options: Options, say: Say) -> None:
    """Only for ours, in a fresh process: at their speed the peers would need an hour for as many
    requests.
    """
    if not options.memory_requests:
        return
    target.stop()
    started = target.start(bodies.chat())
    _wait_for_index(target, options, say)
    for point in memory_points(
        bench, target, started, requests=options.memory_requests, overload_s=options.overload_s
    ):
        run.memory.append(point)
        say(
            f"memory of {target.name}, {point.when}: {point.pss_mb:.1f} MB after {point.requests:,}"
            " requests"
        )


def _facts(options: Options) -> dict[str, str]:
    kilobytes = next(
        line.split()[1]
        for line in Path("/proc/meminfo").read_text().splitlines()
        if line.startswith("MemTotal")
    )
    versions = {
        name: version for name in peers.REQUIREMENTS if (version := peers.installed_version(name))
    }
    program = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin")
    web = (
        subprocess.run([program, "-v"], capture_output=True, text=True, check=False).stderr.strip()
        if program
        else "no nginx"
    )
    return {
        "date": time.strftime("%Y-%m-%d %H:%M %Z"),
        "command": options.command,
        "machine": (
            f"{_processor_name()}, {os.cpu_count()} cores, {int(kilobytes) / 2**20:.0f} GB,"
            f" {_system()}"
        ),
        "load average at the start": " ".join(f"{value:.2f}" for value in os.getloadavg()),
        "versions": ", ".join(
            [
                f"Python {sys.version.split()[0]}",
                web,
                *(f"{name} {version}" for name, version in versions.items()),
            ]
        ),
        "library": f"{options.skills:,} skills",
        "slots": f"{options.rounds} rounds of {options.seconds:g} s",
    }


def _system() -> str:
    return f"{platform.system()} {platform.release().partition('-')[0]}"


def _processor_name() -> str:
    listed = (
        subprocess.run(["lscpu"], capture_output=True, text=True, check=False).stdout
        if shutil.which("lscpu")
        else ""
    )
    names = [
        line.partition(":")[2].strip()
        for line in listed.splitlines()
        if line.startswith("Model name")
    ]
    return names[0] if names else platform.machine()
