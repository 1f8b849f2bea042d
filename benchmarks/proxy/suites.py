"""The loads, and running one of them on one target as a measured slot."""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from .procfs import Usage
from .results import LoadOutput, Slot
from .targets import CHAT, KEY, MESSAGES, Target


@dataclass(frozen=True, slots=True)
class Suite:
    """A kind of load: which client, which body, how many at once."""

    name: str
    title: str
    program: str
    body: str
    concurrency: int
    path: str = CHAT
    only: frozenset[str] | None = None  # targets that can take part, None for all


# LiteLLM would translate the Anthropic wire for this provider and the authors' proxy has no such
# route.
_SPEAKS_MESSAGES = frozenset({"direct", "nginx", "ours"})

SUITES = (
    Suite("short-1", "1 kB request, one client", "load", "short", 1),
    Suite("short-8", "1 kB request, 8 clients", "load", "short", 8),
    Suite("short-64", "1 kB request, 64 clients", "load", "short", 64),
    Suite("long-8", "200 kB conversation, 8 clients", "load", "long", 8),
    Suite("paced-32", "32 streams of 64 tokens, one each 5 ms", "streams", "paced", 32),
    Suite("burst-8", "8 streams of 64 tokens in a burst", "streams", "burst", 8),
    Suite(
        "messages-8",
        "Anthropic wire, 1 kB request, 8 clients",
        "load",
        "messages",
        8,
        MESSAGES,
        _SPEAKS_MESSAGES,
    ),
    Suite(
        "messages-paced-32",
        "Anthropic wire, 32 paced streams",
        "streams",
        "messages-paced",
        32,
        MESSAGES,
        _SPEAKS_MESSAGES,
    ),
)
# Enough of the above to see every goal's number in a minute.
QUICK = ("short-1", "short-8", "short-64", "long-8", "paced-32")
BY_NAME: Mapping[str, Suite] = {suite.name: suite for suite in SUITES}


class LoadFailedError(Exception):
    """The load client itself could not run."""


@dataclass(frozen=True, slots=True)
class Bench:
    """The tools in place: compiled programs and written bodies."""

    programs: Mapping[str, Path]
    bodies: Mapping[str, Path]

    def load(
        self, target: Target, suite: Suite, *, seconds: float, requests: int = 0
    ) -> LoadOutput:
        """Runs the load client once and advances the target's numbering."""
        with self.loading(target, suite, seconds=seconds, requests=requests) as client:
            return self.finished(client, target, suite)

    def loading(
        self, target: Target, suite: Suite, *, seconds: float, requests: int = 0
    ) -> subprocess.Popen[bytes]:
        """Starts the load client without waiting for it."""
        command = [
            str(self.programs[suite.program]),
            "-p",
            str(target.port),
            "-u",
            suite.path,
            "-b",
            str(self.bodies[suite.body]),
        ]
        command += [
            "-k",
            KEY,
            "-c",
            str(suite.concurrency),
            "-d",
            str(seconds),
            "-s",
            str(target.sequence),
        ]
        command += ["-n", str(requests)] if requests else []
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def finished(self, client: subprocess.Popen[bytes], target: Target, suite: Suite) -> LoadOutput:
        """Waits for a load client and reads what it found."""
        out, errors = client.communicate()
        if client.returncode:
            raise LoadFailedError(
                f"{target.name} {suite.name}: {errors.decode(errors='replace').strip()}"
            )
        load = msgspec.json.decode(out, type=LoadOutput)
        target.sequence += load.ok + load.failed + suite.concurrency
        return load

    def slot(self, target: Target, suite: Suite, round_: int, seconds: float) -> Slot:
        """One measured slot: the load, the target's processor time, what others used meanwhile."""
        before = Usage.now(target.pid)
        load = self.load(target, suite, seconds=seconds)
        after = Usage.now(target.pid)
        cpu_us = (after.target_s - before.target_s) / max(1, load.ok + load.bad) * 1e6
        return Slot(target.name, suite.name, round_, load, cpu_us, after.foreign_since(before))
