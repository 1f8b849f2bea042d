"""Somebody comes back while the trainer works: how soon it stands still, and whether their answer
is later for it.

    python -m benchmarks.presence [--trials 40] [--keys 20] [--tokens 24] [--json] [--assert-goals]

The real program with the real 135M model, which serves and is trained in windows (`[policy] mode =
"auto"`), under an X server of its own (Xvfb; keys are pressed by xdotool). After two seconds
without anybody a window opens and the trainer goes on where it was.

- A *busy* trial asks for a streamed answer while the trainer works. *Free* is when the trainer's
  processes used processor time for the last time, counted from the moment the request is sent.
- A *quiet* trial presses a key first, so that the trainer stands still, and asks a second later:
  the same answer without training.
- A *key* trial presses a key while the trainer works, and asks nothing.

Busy and quiet trials take turns, so both see the same machine. That the trainer goes on after each
is part of every trial: it is waited for until it has used processor time again. At the end the
journal of the run says whether it is still the same one."""

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from benchmarks.engine import machine
from metaclaw.engine import MODEL_ID
from tests.support.program import Program

GOALS = {
    "free_p99_s": 1.0,
    "key_p99_s": 1.0,
    "first_token_p50_ratio": 1.1,
    "first_token_p99_ratio": 1.5,
}
ROOT = Path(__file__).resolve().parents[1]
_CONFIG = """
[policy]
mode = "auto"
lora_rank = 8
batch_turns = 8
group_size = 8
steps = 1000
max_new_tokens = 32
kl_limit = 100.0

[schedule]
sleep = []
idle_minutes = 0.034
min_window_minutes = 0.01
cooldown_minutes = 0.0
max_load = 0
max_temperature_c = 0
"""
_SKILL = """---
name: animals
description: When asked to describe an animal
check: 'pattern: are'
---
Begin every answer with the animal and the word are.
"""
_ANIMALS = (
    "cats",
    "dogs",
    "owls",
    "bats",
    "ants",
    "bees",
    "cows",
    "pigs",
    "hens",
    "rats",
    "elks",
    "newts",
    "toads",
    "frogs",
    "crabs",
)
_WORKING_S = 0.3
"""So much processor time within a second: the trainer is at work."""
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Samples:
    """Seconds, by what was measured."""

    free: list[float] = field(default_factory=list)
    key: list[float] = field(default_factory=list)
    busy_first: list[float] = field(default_factory=list)
    quiet_first: list[float] = field(default_factory=list)
    busy_whole: list[float] = field(default_factory=list)
    quiet_whole: list[float] = field(default_factory=list)
    resumed: list[float] = field(default_factory=list)


class Trainer:
    """The trainer's processes, seen from outside: their processor clocks."""

    def __init__(self, program: int) -> None:
        self._program = program

    def spent_s(self) -> float:
        """Processor time so far of every process of the trainer."""
        return sum(
            _spent_s(process)
            for process in _descendants(self._program)
            if "training" in _command(process)
        )

    def wait_until_working(self, within_s: float) -> float:
        """Until it uses the processor; how long that took."""
        began = time.monotonic()
        while time.monotonic() - began < within_s:
            before = self.spent_s()
            time.sleep(1.0)
            if self.spent_s() - before >= _WORKING_S:
                return time.monotonic() - began
        raise TimeoutError(f"the trainer did not work within {within_s:.0f} s")


class Watch:
    """Notes when the trainer last used the processor, in a thread, until it has stood still for a
    while.
    """

    def __init__(self, trainer: Trainer, still_s: float = 0.6, longest_s: float = 10.0) -> None:
        self._trainer, self._still_s, self._longest_s = trainer, still_s, longest_s
        self.began = time.monotonic()
        self._last = self.began
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        spent = self._trainer.spent_s()
        while (
            now := time.monotonic()
        ) - self._last < self._still_s and now - self.began < self._longest_s:
            time.sleep(0.005)
            if (later := self._trainer.spent_s()) != spent:
                spent, self._last = later, time.monotonic()

    def free_s(self) -> float:
        """Seconds from the beginning to the last sign of work, at least one tick of the clock that
        tells.
        """
        self._thread.join()
        return max(self._last - self.began, _TICK_S)


def _spent_s(process: int) -> float:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) * _TICK_S


def _command(process: int) -> str:
    try:
        return (
            Path(f"/proc/{process}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")
        )
    except OSError:
        return ""


def _descendants(process: int) -> Iterator[int]:
    try:
        children = [
            int(child)
            for task in Path(f"/proc/{process}/task").iterdir()
            for child in (task / "children").read_text().split()
        ]
    except OSError:
        return
    for child in children:
        yield child
        yield from _descendants(child)


@contextmanager
def screen() -> Iterator[str]:
    """An X server nobody looks at; its display."""
    here, there = os.pipe()
    command = ["Xvfb", "-displayfd", str(there), "-screen", "0", "320x240x8", "-nolisten", "tcp"]
    server = subprocess.Popen(command, pass_fds=(there,), stderr=subprocess.DEVNULL)
    os.close(there)
    try:
        yield ":" + os.read(here, 16).decode().strip()
    finally:
        os.close(here)
        server.kill()
        server.wait()


class World:
    """The program, a keyboard, and somebody who asks."""

    def __init__(self, program: Program, display: str, tokens: int) -> None:
        assert program.process is not None
        self._program, self._display, self._tokens = program, display, tokens
        self._numbers = itertools.count()
        self._client = httpx.Client(timeout=120)
        self.trainer = Trainer(program.process.pid)

    def press(self) -> None:
        """One key."""
        subprocess.run(
            ["xdotool", "key", "a"], env={**os.environ, "DISPLAY": self._display}, check=True
        )

    def ask(self) -> tuple[float, float]:
        """One streamed answer: seconds to its first token, and to its end."""
        number = next(self._numbers)
        body = {
            "model": "any",
            "messages": [
                {
                    "role": "user",
                    "content": (
                        f"Describe the animal called {_ANIMALS[number % len(_ANIMALS)]}, number"
                        f" {number}."
                    ),
                }
            ],
            "max_tokens": self._tokens,
            "temperature": 0,
            "stream": True,
        }
        headers = self._program.auth | {
            "X-Session-Id": f"session-{number}",
            "X-Session-Done": "true",
        }
        began = time.monotonic()
        first: float | None = None
        with self._client.stream(
            "POST", f"{self._program.url}/v1/chat/completions", json=body, headers=headers
        ) as answer:
            answer.raise_for_status()
            for line in answer.iter_lines():
                if (
                    first is None
                    and '"content":"' in line.replace(" ", "")
                    and '"content":""' not in line.replace(" ", "")
                ):
                    first = time.monotonic() - began
        if first is None:
            raise RuntimeError("an answer without a token")
        return first, time.monotonic() - began


def measure(world: World, trials: int, keys: int) -> Samples:
    """All trials; busy and quiet ones take turns."""
    samples = Samples()
    for number in range(trials):
        samples.resumed.append(world.trainer.wait_until_working(120))
        if number % 2:
            world.press()
            time.sleep(1.0)
            first, whole = world.ask()
            samples.quiet_first.append(first)
            samples.quiet_whole.append(whole)
        else:
            watch = Watch(world.trainer)
            first, whole = world.ask()
            samples.busy_first.append(first)
            samples.busy_whole.append(whole)
            samples.free.append(watch.free_s())
        _show(f"trial {number + 1} of {trials}")
    for number in range(keys):
        samples.resumed.append(world.trainer.wait_until_working(120))
        watch = Watch(world.trainer)
        world.press()
        samples.key.append(watch.free_s())
        _show(f"key {number + 1} of {keys}")
    return samples


def run(trials: int, keys: int, tokens: int, model: Path) -> dict[str, object]:
    """The whole measurement."""
    with tempfile.TemporaryDirectory() as folder, screen() as display:
        home = Path(folder) / "home"
        (home / "skills" / "animals").mkdir(parents=True)
        (home / "skills" / "animals" / "SKILL.md").write_text(_SKILL)
        shutil.copytree(model, home / "models" / MODEL_ID)
        program = Program(home, _CONFIG, env={"DISPLAY": display}).start()
        try:
            program.wait_for(
                "/api/status", lambda status: status["engine"]["state"] == "ready", within_s=120
            )
            world = World(program, display, tokens)
            for _ in range(20):
                world.ask()
            samples = measure(world, trials, keys)
            training = program.get("/api/status")["training"]
        finally:
            program.stop()
    return {
        "machine": machine(),
        "trials": trials,
        "keys": keys,
        "tokens": tokens,
        "training": training,
        **figures(samples),
    }


def figures(samples: Samples) -> dict[str, object]:
    """Percentiles, and ratios of busy to quiet."""
    found: dict[str, object] = {}
    for name in (
        "free",
        "key",
        "busy_first",
        "quiet_first",
        "busy_whole",
        "quiet_whole",
        "resumed",
    ):
        values = sorted(getattr(samples, name))
        if values:
            found[f"{name}_p50_s"], found[f"{name}_p99_s"], found[f"{name}_most_s"] = (
                _at(values, 0.5),
                _at(values, 0.99),
                values[-1],
            )
    for share in ("p50", "p99"):
        for what in ("first", "whole"):
            busy, quiet = found.get(f"busy_{what}_{share}_s"), found.get(f"quiet_{what}_{share}_s")
            if isinstance(busy, float) and isinstance(quiet, float):
                found[f"{what if what == 'whole' else 'first_token'}_{share}_ratio"] = busy / quiet
    return found


def _at(values: Sequence[float], share: float) -> float:
    return values[min(len(values) - 1, round(share * (len(values) - 1)))]


def _show(text: str) -> None:
    print(f"\r{text}   ", end="", file=sys.stderr, flush=True)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.presence", description=(__doc__ or "").partition("\n\n")[0]
    )
    parser.add_argument(
        "--trials", type=int, default=40, help="answers, every second one beside training [40]"
    )
    parser.add_argument("--keys", type=int, default=20, help="keys pressed [20]")
    parser.add_argument("--tokens", type=int, default=24, help="tokens of an answer, at most [24]")
    parser.add_argument(
        "--folder", type=Path, default=ROOT / ".cache" / "engine" / MODEL_ID, help="the model"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of lines")
    parser.add_argument(
        "--assert-goals", action="store_true", help="exit status 1 where a goal is missed"
    )
    options = parser.parse_args()
    result = run(options.trials, options.keys, options.tokens, options.folder)
    print(file=sys.stderr)
    if options.json:
        print(json.dumps(result, indent=1))
    else:
        for name, value in result.items():
            print(f"{name}: {value:.3f}" if isinstance(value, float) else f"{name}: {value}")
    missed = [
        name
        for name, goal in GOALS.items()
        if isinstance(value := result.get(name), float) and value > goal
    ]
    for name in missed:
        print(f"missed: {name} is {result[name]:.3f}, the goal is {GOALS[name]}", file=sys.stderr)
    return 1 if missed and options.assert_goals else 0


if __name__ == "__main__":
    sys.exit(main())
