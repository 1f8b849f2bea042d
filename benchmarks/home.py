"""A home for a measured program: its configuration, its skills, and the embedded model, put there
without converting it again.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from metaclaw.engine import MODEL_ID
from metaclaw.engine.convert import ensure_model
from tests.support.program import Program

READY_S = 300.0
_COMMAND_S = 180.0
_POLL_S = 1.0
_CALM_POLLS = 5
TO_READ = ("turns", "listening", "lessons", "evolutions")


@dataclass(frozen=True, slots=True)
class Machine:
    """Where programs run: with which Python, from which model folder, with how many threads each (0
    decides by the machine).
    """

    model: Path
    python: str = sys.executable
    threads: int = 0
    keep: Path | None = None
    """Homes are made here and stay; else they are temporary."""
    is_embedded: bool = True
    """The model is put into each home; else the configuration names its folder."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables for the programs."""


class CommandProgram(Program):
    """The program as a user starts it: a command of its own, with a Python that may be another than
    this one.
    """

    def __init__(self, python: str, home: Path, config: str, *, env: Mapping[str, str]) -> None:
        super().__init__(home, config, env=env)
        self._command = [python, "-m", "metaclaw"]

    def _launch(self, arguments: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self._command, *arguments],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a metaclaw command on this home."""
        return subprocess.run(
            [*self._command, *arguments],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
        )


def engine_threads(parallel: int) -> int:
    """Threads for the serving engine of each of so many programs; 0 lets a single one decide by the
    machine.
    """
    return 0 if parallel == 1 else max(1, (os.cpu_count() or 1) // parallel)


def find_model(folder: Path, parts: Sequence[Path] = ()) -> Path:
    """The model folder, made now from the parts of a GGUF file (or from the installed weights,
    where none are given) if missing.
    """
    if not parts or (folder / "config.json").is_file():
        return ensure_model(folder, lambda share: None)
    with tempfile.TemporaryDirectory() as place:
        whole = Path(place) / "joined.gguf"
        with whole.open("wb") as out:
            for part in parts:
                with part.open("rb") as piece:
                    shutil.copyfileobj(piece, out)
        return ensure_model(folder, lambda share: None, whole)


@contextmanager
def running(
    machine: Machine,
    name: str,
    *arguments: str,
    config: str = "",
    skills: Mapping[str, str] | None = None,
) -> Iterator[Program]:
    """The program on a new home with these skills (texts of SKILL.md by name), started with these
    arguments and ready to answer.
    """
    with tempfile.TemporaryDirectory(prefix="metaclaw-bench-") as place:
        home = (machine.keep or Path(place)) / name / "home"
        for skill, text in (skills or {}).items():
            folder = home / "skills" / skill
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "SKILL.md").write_text(text, encoding="utf-8")
        if machine.is_embedded:
            _put_model(machine.model, home / "models" / MODEL_ID)
        # As delivered: skills are found by words and, where the model for that is installed, by
        # meaning.
        env = {"METACLAW__SKILLS__RETRIEVAL": "auto", **machine.env}
        program = CommandProgram(
            machine.python, home, f"[engine]\nthreads = {machine.threads}\n{config}", env=env
        )
        try:
            program.start(*arguments, wait_s=READY_S)
            program.wait_for(
                "/api/status", lambda status: status["engine"]["state"] == "ready", within_s=READY_S
            )
            program.wait_for("/api/skills", lambda found: len(found["skills"]) >= len(skills or {}))
            yield program
        finally:
            program.stop()


def _put_model(model: Path, place: Path) -> None:
    """Link the model's files, which the program does not change; copy them where they lie on
    another disk.
    """

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)

    shutil.copytree(model, place, copy_function=link)


def settle(program: Program, within_s: float, kinds: Sequence[str] = TO_READ) -> None:
    """Wait until the program has read all chats, so that every turn may train that will. `kinds` of
    work are waited for.
    """
    calm, deadline = 0, time.monotonic() + within_s
    while calm < 2 and time.monotonic() < deadline:
        pending = program.get("/api/status")["learning"]["pending"] or {"turns": 1}
        calm = 0 if any(pending.get(name) for name in kinds) else calm + 1
        time.sleep(_POLL_S / 4)


def wait_until_judged(
    program: Program, deadline: float, tell: Callable[..., None], known: int = 0
) -> bool:
    """Wait until there are more than the known versions, all judged, and the program rests; False
    where that takes longer. Every change is told.
    """
    last, calm = "", 0
    while time.monotonic() < deadline:
        training, policy = program.get("/api/status")["training"], program.get("/api/policy")
        told = json.dumps(training, sort_keys=True)
        if told != last:
            tell("training", policy_version=policy["policy_version"], **training)
            last = told
        is_judged = len(policy["versions"]) > known and all(
            one["state"] != "candidate" for one in policy["versions"]
        )
        calm = calm + 1 if str(training["state"]).startswith("waiting for turns") else 0
        # A run that came to nothing leaves no version; it rests as well.
        if calm >= (_CALM_POLLS if is_judged else 6 * _CALM_POLLS):
            return True
        time.sleep(_POLL_S)
    return False
