"""Driving the real AutoResearchClaw, which the user has installed, as a client of our proxy, and counting what it did.

It gets a configuration that leads every request to the proxy, and a home folder of its own: its bridge reads skills from a fixed
place below the home, past the proxy. Its own lessons are written where the proxy of the run looks for skills, so that they are
placed at its stages like any other skill, except under a condition without skills.

Traps of its bridge, met here: the address has no `/v1` for stages and gets one for the session's end, which comes without
credentials (so the key is in the address); and any HTTP error makes it go to `fallback_url`, which therefore is the proxy too.
"""

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
import yaml
from anyio.to_thread import run_sync

from metaclaw.bench.leash import Leash
from metaclaw.bench.research.arc_requests import Counted, count_requests
from metaclaw.bench.research.metrics import MOST_REFINES
from metaclaw.bench.research.pipeline import Progress
from metaclaw.bench.research.records import Ending, Record, RunRecord
from metaclaw.bench.research.settings import Job
from metaclaw.bench.research.stages import LAST_STAGE
from metaclaw.domain.chat import Json
from metaclaw.errors import ConfigError
from metaclaw.store import LedgerReader, RecordedTurn, TurnRow, open_database

PROGRAM: Final = "researchclaw"
KEY_ENV: Final = "METACLAW_RESEARCH_KEY"
_PLACES: Final = (PROGRAM, f"bin/{PROGRAM}", f".venv/bin/{PROGRAM}", f"venv/bin/{PROGRAM}")
_AGENT_MODES: Final = ("agentic", "collider_agent", "biology_agent", "stat_agent")
_DOORS: Final = ("_API_KEY", "_AUTH_TOKEN", "_BASE_URL")
_AT_ONCE: Final = 500
_TAIL_CHARS: Final = 400


@dataclass(frozen=True, slots=True)
class Left:
    """What a run left behind: how far it came, how often a decision led back, and why it ended where it did not reach its end."""

    completed: int
    refines: int
    ending: Ending
    why: str = ""


async def drive(job: Job, progress: Progress) -> Sequence[Record]:
    """One run of the real program."""
    assert job.settings.autoresearchclaw is not None
    program = find_program(job.settings.autoresearchclaw)
    topic = job.settings.topic(job.seed, job.number)
    artefacts = job.folder / "artefacts"
    config = job.folder / "config.yaml"
    artefacts.mkdir(parents=True, exist_ok=True)
    config.write_text(yaml.safe_dump(configuration(job, topic, program), sort_keys=False), encoding="utf-8")
    config.chmod(0o600)
    before = await run_sync(_newest, job.home)
    progress(f"autoresearchclaw {job.condition.name} seed {job.seed} run {job.number}: {topic}")
    status = await _run(program, config, artefacts, topic, job)
    counted = await run_sync(lambda: count_requests(_recorded(job.home, before)))
    return [_record(job, topic, read_artefacts(artefacts, status, job.folder / "output.log"), counted)]


def find_program(path: Path) -> Path:
    """Its command: the file named, or the usual place of it below a folder. Raises ConfigError."""
    candidates = [path] if path.is_file() else [path / place for place in _PLACES]
    found = next((one for one in candidates if one.is_file() and os.access(one, os.X_OK)), None)
    if found is None:
        raise ConfigError(
            f"there is no program {PROGRAM} at {path}: install AutoResearchClaw, and name its command or the folder it is in"
        )
    return found.absolute()


def configuration(job: Job, topic: str, program: Path) -> dict[str, Json]:
    """The configuration of a run: the owner's template, if there is one, and whatever leads to a model leading to the proxy."""
    address = f"{job.front.api.url}/k/{job.front.api.key}"
    ours: dict[str, Json] = {
        "project": {"name": f"metaclaw-bench-{job.condition.name}-{job.seed}-{job.number}", "mode": "full-auto"},
        "research": {"topic": topic},
        "llm": {
            "provider": "openai-compatible",
            "base_url": f"{address}/v1",
            "wire_api": "chat_completions",
            "api_key_env": KEY_ENV,
            # Where there is one, it is taken before the environment's; the owner's own has no business here.
            "api_key": "",
            "primary_model": job.front.model,
            "fallback_models": [],
        },
        "metaclaw_bridge": {
            "enabled": True,
            "proxy_url": address,
            "skills_dir": str(job.home / "skills"),
            "fallback_url": f"{address}/v1",
            "fallback_api_key": job.front.api.key,
            "prm": {"enabled": False},
            "lesson_to_skill": {"enabled": job.condition.skills},
        },
        # Neither another agent nor an image model: they would ask providers of their own, past the proxy.
        "experiment": {
            "opencode": {"enabled": False},
            "repair": {"use_opencode": False},
            "cli_agent": {"provider": "llm"},
            "figure_agent": {"nano_banana_enabled": False},
        },
        "knowledge_base": {"root": str(job.folder / "knowledge")},
    }
    usual: dict[str, Json] = {
        "runtime": {"timezone": "UTC"},
        "notifications": {"channel": "console"},
        "knowledge_base": {"backend": "markdown"},
        "experiment": {"mode": "sandbox", "sandbox": {"python_path": str(program.with_name("python3"))}},
    }
    below = merged(usual, _template(job.settings.template))
    _refuse_agents(below)
    return merged(below, ours)


def _refuse_agents(tree: Mapping[str, Json]) -> None:
    experiment = tree.get("experiment")
    mode = experiment.get("mode") if isinstance(experiment, dict) else None
    if mode in _AGENT_MODES:
        raise ConfigError(
            f"experiment.mode {mode} lets another agent experiment, past the proxy; choose sandbox or docker in the template"
        )


def merged(below: Mapping[str, Json], above: Mapping[str, Json]) -> dict[str, Json]:
    """Two trees of settings as one; where both say something, the one above counts."""
    tree = dict(below)
    for name, value in above.items():
        under = tree.get(name)
        tree[name] = merged(under, value) if isinstance(under, dict) and isinstance(value, dict) else value
    return tree


def environment(env: Mapping[str, str], home: Path, key: str) -> dict[str, str]:
    """The owner's environment without any provider's key or address and without our own settings, with a home of the run's own."""
    kept = {name: value for name, value in env.items() if not name.endswith(_DOORS) and not name.startswith("METACLAW_")}
    return {**kept, "HOME": str(home), KEY_ENV: key}


def read_artefacts(folder: Path, status: int | None, log: Path) -> Left:
    """What a run's files say. `status` is how the program ended, None where it took too long."""
    history = _json_in(folder / "decision_history.json")
    refines = min(len(history), MOST_REFINES) if isinstance(history, list) else 0
    summary = _json_in(folder / "pipeline_summary.json")
    if not isinstance(summary, dict):
        checkpoint = _json_in(folder / "checkpoint.json")
        reached = checkpoint.get("last_completed_stage") if isinstance(checkpoint, dict) else None
        why = "it took too long" if status is None else f"it ended with status {status} and left no pipeline_summary.json"
        return Left(_within(reached), refines, "broken", f"{why}; the end of its output: {_tail(log)}")
    completed = _completed(summary)
    is_whole = completed == int(LAST_STAGE)
    why = "" if is_whole else f"final stage {summary.get('final_stage')}: {summary.get('final_status')}"
    return Left(completed, refines, "completed" if is_whole else "failed", why)


def _completed(summary: Mapping[str, Json]) -> int:
    """How many different stages were done. `stages_done` counts a stage each time it was, so it is only asked where a version does
    not say how far the run came."""
    final = summary.get("final_stage")
    if not isinstance(final, int):
        return _within(summary.get("stages_done"))
    reached = final if summary.get("final_status") == "done" else final - 1
    failed = summary.get("stages_failed")
    skipped = failed if isinstance(failed, int) and summary.get("final_status") == "done" else 0
    return _within(reached - skipped)


def _within(number: Json) -> int:
    return max(0, min(number, int(LAST_STAGE))) if isinstance(number, int) else 0


async def _run(program: Path, config: Path, artefacts: Path, topic: str, job: Job) -> int | None:
    """Its exit status; None where it was stopped because it took too long."""
    child, leash = _spawn(program, config, artefacts, topic, job), Leash()
    try:
        with leash.hold(child.pid), anyio.move_on_after(job.settings.longest_s):
            while child.poll() is None:
                await anyio.sleep(0.05)
        return child.poll()
    finally:
        _end(child)
        leash.close()


def _spawn(program: Path, config: Path, artefacts: Path, topic: str, job: Job) -> "subprocess.Popen[bytes]":
    home = job.folder / "home"
    home.mkdir(parents=True, exist_ok=True)
    command = [str(program), "run", "--config", str(config), "--output", str(artefacts), "--topic", topic]
    command += ["--auto-approve", "--skip-preflight"]
    with (job.folder / "output.log").open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=job.folder,
            env=environment(os.environ, home, job.front.api.key),
            start_new_session=True,
        )


def _end(child: "subprocess.Popen[bytes]") -> None:
    """Nothing of it is left, whatever it started."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _record(job: Job, topic: str, left: Left, counted: Counted) -> RunRecord:
    return RunRecord(
        pipeline="autoresearchclaw",
        condition=job.condition.name,
        seed=job.seed,
        run=job.number,
        simulated=job.is_simulated,
        topic=topic,
        scorable=int(LAST_STAGE),
        completed=left.completed,
        attempts=counted.attempts or None,
        retries=counted.retries if counted.attempts else None,
        refines=left.refines,
        rollbacks=0,
        ending=left.ending,
        why=left.why,
        unclassified=counted.unclassified,
    )


def _recorded(home: Path, after: int) -> list[RecordedTurn]:
    """The turns behind a cursor, whole, oldest first. Blocks."""
    with _ledger(home) as reader:
        return [turn for row in _rows(reader, after) if (turn := reader.turn(row.id)) is not None]


def _newest(home: Path) -> int:
    """The cursor of the last turn there is. Blocks."""
    with _ledger(home) as reader:
        return max((row.seq for row in _rows(reader, 0)), default=0)


def _rows(reader: LedgerReader, after: int) -> Iterator[TurnRow]:
    while rows := reader.turns_after(after, _AT_ONCE):
        yield from rows
        after = rows[-1].seq


@contextmanager
def _ledger(home: Path) -> Iterator[LedgerReader]:
    database = open_database(f"sqlite:///{home}/ledger.db")
    try:
        yield LedgerReader(database)
    finally:
        database.close()


def _template(path: Path | None) -> dict[str, Json]:
    if path is None:
        return {}
    try:
        value = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} is no configuration of AutoResearchClaw that can be read: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} is no configuration of AutoResearchClaw: it holds no settings")
    return value


def _json_in(path: Path) -> Json:
    try:
        value: Json = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value


def _tail(log: Path) -> str:
    return log.read_text("utf-8", "replace")[-_TAIL_CHARS:] if log.is_file() else ""
