"""Runs of the program under conditions, several at once: their common options, their records, and
chats through the proxy.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from threading import Lock
from typing import Any, Final

import httpx

from benchmarks.home import Machine, engine_threads, find_model
from tests.support.program import Program

ROOT: Final = Path(__file__).resolve().parents[1]
ANSWER_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class RunLog:
    """The records of one run. `write` takes one of them."""

    course: str
    condition: str
    seed: int
    write: Callable[[Mapping[str, object]], None]
    began: float = field(default_factory=time.monotonic)
    sessions: Iterator[int] = field(default_factory=lambda: count(1))

    @property
    def name(self) -> str:
        """The name of the run's records and of its home."""
        return f"{self.course}-{self.condition}-{self.seed}"

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return time.monotonic() - self.began

    def tell(self, kind: str, **facts: object) -> None:
        """Write a record."""
        head = {
            "kind": kind,
            "course": self.course,
            "condition": self.condition,
            "seed": self.seed,
        }
        self.write({**head, "at_s": round(self.seconds, 2), **facts})


@dataclass(frozen=True, slots=True)
class RunJob:
    """A run to do: `go` does it. Runs with the same `file` append their records to it; without one,
    a run has a file of its own, made anew.
    """

    course: str
    condition: str
    seed: int
    go: Callable[[RunLog, Machine], None]
    file: str = ""


@dataclass(frozen=True, slots=True)
class ChatReply:
    """An answer with the headers that say how it was made."""

    text: str
    turn: str
    version: str
    skills: str


def chats(
    log: RunLog,
    program: Program,
    talks: Sequence[Sequence[tuple[str, str]]],
    at_once: int,
    *,
    is_over: bool = True,
    **options: object,
) -> list[ChatReply]:
    """The answer to each talk, a list of roles and texts. Every talk is a session of its own; some
    are asked at once, as agents do. Sessions that are not over teach nothing. `options` are fields
    of the request.
    """

    def ask(http: httpx.Client, talk: Sequence[tuple[str, str]]) -> ChatReply:
        messages = [{"role": role, "content": text} for role, text in talk]
        headers = (
            program.auth
            | {
                "X-Session-Id": f"{log.name}-{next(log.sessions)}",
            }
            | ({"X-Session-Done": "true"} if is_over else {})
        )
        response = http.post(
            f"{program.url}/v1/chat/completions",
            json={"messages": messages, **options},
            headers=headers,
        )
        response.raise_for_status()
        text = str(response.json()["choices"][0]["message"]["content"] or "")
        turn, version, skills = (
            response.headers.get(f"x-metaclaw-{name}", "") for name in ("turn", "policy", "skills")
        )
        return ChatReply(text, turn, version, skills)

    limits = httpx.Limits(max_connections=at_once)
    with httpx.Client(timeout=ANSWER_S, limits=limits) as http, ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(partial(ask, http), talks))


def train(log: RunLog, program: Program, **facts: object) -> bool:
    """`metaclaw policy train`; whether it began."""
    done = program.command("policy", "train", "--json")
    try:
        said: Any = json.loads(done.stdout)
    except ValueError:
        said = done.stdout
    log.tell("train", **facts, status=done.returncode, said=said, errors=done.stderr[-2000:])
    return done.returncode == 0


def add_number_options(parser: argparse.ArgumentParser, defaults: Mapping[str, object]) -> None:
    """Options for the numbers of a run, by their names."""
    for name, value in defaults.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=type(value),
            default=value,
            help=f"[{value}]",
        )


def add_model_options(parser: argparse.ArgumentParser, results: str) -> None:
    """Options for the model, and for the records."""
    parser.add_argument(
        "--model",
        type=Path,
        default=ROOT / ".cache" / "engine" / "smollm2-135m-instruct",
        help="model folder",
    )
    parser.add_argument(
        "--gguf",
        type=Path,
        nargs="+",
        default=[],
        help="make the model folder from this file, or its parts in order",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=ROOT / "benchmarks" / "results" / results,
        help="where records go",
    )
    parser.add_argument(
        "--report",
        action="store_true",
        help="run nothing: make the tables from the records in --out",
    )


def add_run_options(parser: argparse.ArgumentParser, results: str) -> None:
    """The options of runs of the program."""
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--parallel", type=int, default=1, help="so many programs at once [1]")
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="where weights are trained",
    )
    parser.add_argument(
        "--set",
        dest="sets",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="as for `metaclaw start`",
    )
    parser.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a variable of the environment of the programs",
    )
    parser.add_argument(
        "--threads", type=int, help="of the serving engine of each program [all of them, shared]"
    )
    parser.add_argument(
        "--python", default=sys.executable, help="the Python that runs the program [this one]"
    )
    parser.add_argument(
        "--keep", type=Path, help="make the homes in this folder and leave them there"
    )
    add_model_options(parser, results)


def machine_of(given: argparse.Namespace) -> Machine:
    """Where the runs take place; makes the model folder if it is missing."""
    threads = given.threads if given.threads is not None else engine_threads(given.parallel)
    env = dict(one.split("=", 1) for one in given.env)
    model = find_model(given.model, given.gguf)
    return Machine(model, given.python, threads, given.keep, env=env)


def run_all(given: argparse.Namespace, jobs: Sequence[RunJob]) -> int:
    """Do the runs, `--parallel` at once; 1 if one of them failed."""
    machine = machine_of(given)
    return run_jobs(given.out, given.parallel, [(job, machine) for job in jobs])


def run_jobs(out: Path, parallel: int, jobs: Sequence[tuple[RunJob, Machine]]) -> int:
    """Do each run on its machine, so many at once; 1 if one of them failed."""
    out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(parallel) as pool:
        return max(pool.map(lambda job: _run(out, *job), jobs))


def _run(out: Path, job: RunJob, machine: Machine) -> int:
    path = out / f"{job.file or f'{job.course}-{job.condition}-{job.seed}'}.jsonl"
    if not job.file:
        path.unlink(missing_ok=True)
    log = RunLog(job.course, job.condition, job.seed, partial(_append, path))
    status, came_to = 0, "done in"
    try:
        job.go(log, machine)
    except Exception as error:  # one run that fails must not end the others
        log.tell("failed", error=f"{type(error).__name__}: {error}")
        print(f"{log.name}: {error}", file=sys.stderr, flush=True)
        status, came_to = 1, "failed after"
    print(f"{log.name}: {came_to} {log.seconds:.0f} s", file=sys.stderr, flush=True)
    return status


_APPENDING: Final = Lock()


def _append(path: Path, record: Mapping[str, object]) -> None:
    with _APPENDING, path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
