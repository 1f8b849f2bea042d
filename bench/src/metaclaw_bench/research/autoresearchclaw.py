"""Driving the real AutoResearchClaw, which the user has installed, as a client of our proxy, and
counting what it did.

It gets a configuration that leads every request to the proxy, and a home folder of its own: its
bridge reads skills from a fixed place below the home, past the proxy. Its own lessons are written
where the proxy of the run looks for skills, so that they are placed at its stages like any other
skill, except under a condition without skills."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import anyio
import yaml
from msgspec.structs import replace as replace_fields

from metaclaw.plugin import ConfigError
from metaclaw_bench.json_types import Json
from metaclaw_bench.process_guard import ProcessGuard
from metaclaw_bench.research.arc_artefacts import Left, read_artefacts
from metaclaw_bench.research.arc_config import configuration, environment, foundation
from metaclaw_bench.research.arc_lessons import Lessons, skills_in, take_in
from metaclaw_bench.research.arc_requests import Counted, count_requests
from metaclaw_bench.research.pipeline import Progress
from metaclaw_bench.research.records import Record, RunRecord
from metaclaw_bench.research.settings import Job, ResearchSettings
from metaclaw_bench.research.stages import LAST_STAGE
from metaclaw_bench.running.api import at


def check(settings: ResearchSettings) -> None:
    """Raise ConfigError for a program or a template that cannot be used, before anything is
    started.
    """
    if settings.autoresearchclaw is not None:
        foundation(settings)


async def drive(job: Job, progress: Progress) -> Sequence[Record]:
    """One run of the real program."""
    program, _ = foundation(job.settings)
    topic = job.settings.topic(job.seed, job.number)
    config, artefacts = _prepare(job, topic)
    known = skills_in(job.home / "skills")
    name = f"autoresearchclaw {job.condition.name} seed {job.seed} run {job.number}"
    progress(f"{name}: {topic}")
    status = await _run(program, config, artefacts, topic, job)
    turns = await job.ledger.new_turns()
    counted = count_requests([await job.front.api.get("turns", str(turn["id"])) for turn in turns])
    left = judged(read_artefacts(artefacts, status, job.folder / "output.log"), counted)
    lessons = take_in(job.home / "skills", known)
    progress(f"{name}: {left.ending}{left.why and f' ({left.why})'}")
    for fault in lessons.unusable:
        progress(f"{name}: a lesson is lost: {fault}")
    record = _record(job, topic, left, counted, lessons)
    return [
        replace_fields(
            record,
            tokens_in=_tokens(turns, "input_tokens"),
            tokens_out=_tokens(turns, "output_tokens"),
        )
    ]


def _tokens(turns: Sequence[Mapping[str, Json]], name: str) -> int | None:
    """The tokens of all answered turns; None where one was not counted."""
    counts = [at(dict(turn), "usage", name) for turn in turns if turn.get("end") == "completed"]
    known = [count for count in counts if isinstance(count, int)]
    return sum(known) if known and len(known) == len(counts) else None


def judged(left: Left, counted: Counted) -> Left:
    """What the files say in the light of what was asked: a stage fills in a template where it has
    no model to ask, and is done.
    """
    if not counted.are_there:
        return replace(
            left, ending="broken", why=_also(left.why, "it asked the proxy nothing at all")
        )
    if left.ending == "failed" and counted.cut_off:
        return replace(
            left,
            ending="broken",
            why=_also(left.why, "the last thing it asked was not answered by the provider"),
        )
    if not counted.are_known:
        unknown = (
            f"{counted.unclassified} of its requests are of no stage known here, so that retries"
            " are not counted"
        )
        return replace(left, why=_also(left.why, unknown))
    return left


def _also(why: str, more: str) -> str:
    return f"{why}; {more}" if why else more


def _prepare(job: Job, topic: str) -> tuple[Path, Path]:
    """Its configuration, readable by its owner alone, and a new folder: what an earlier run left
    would be taken for this one's.
    """
    artefacts, config = job.folder / "artefacts", job.folder / "config.yaml"
    artefacts.mkdir(parents=True)
    config.touch(0o600)
    config.write_text(yaml.safe_dump(configuration(job, topic), sort_keys=False), encoding="utf-8")
    return config, artefacts


async def _run(program: Path, config: Path, artefacts: Path, topic: str, job: Job) -> int | None:
    """Its exit status; None where it was stopped because it took too long."""
    child, guard = _spawn(program, config, artefacts, topic, job), ProcessGuard()
    try:
        with guard.hold(child.pid), anyio.move_on_after(job.settings.longest_s):
            while child.poll() is None:
                await anyio.sleep(0.05)
        return child.poll()
    finally:
        _end(child)
        guard.close()


def _spawn(
    program: Path, config: Path, artefacts: Path, topic: str, job: Job
) -> "subprocess.Popen[bytes]":
    home = job.folder / "home"
    home.mkdir(parents=True, exist_ok=True)
    command = [
        str(program),
        "run",
        "--config",
        str(config),
        "--output",
        str(artefacts),
        "--topic",
        topic,
    ]
    command += ["--auto-approve", "--skip-preflight"]
    env = environment(os.environ, home, job.front.api.key)
    try:
        with (job.folder / "output.log").open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=job.folder,
                env=env,
                start_new_session=True,
            )
    except OSError as error:
        raise ConfigError(
            f"{program} cannot be started: {error}; is the Python in its first line still there?"
        ) from error


def _end(child: "subprocess.Popen[bytes]") -> None:
    """Nothing of it is left, whatever it started."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _record(job: Job, topic: str, left: Left, counted: Counted, lessons: Lessons) -> RunRecord:
    return RunRecord(
        pipeline="autoresearchclaw",
        condition=job.condition.name,
        seed=job.seed,
        run=job.number,
        simulated=job.is_simulated,
        topic=topic,
        scorable=int(LAST_STAGE),
        completed=left.completed,
        attempts=counted.attempts if counted.are_known else None,
        retries=counted.retries if counted.are_known else None,
        refines=left.refines,
        rollbacks=0,
        ending=left.ending,
        why=left.why,
        unclassified=counted.unclassified,
        lessons=lessons.names,
    )
