"""The folder of a run: what is written there while it runs, and from where it goes on after an
interruption.

    run.json                             the plan, versions, the data's digest before and after
    rounds.jsonl                         plan, rounds and events, a line each (`bench/records.py`)
    <day>/<group>/<round>/infer_result.json   each answer in the published layout, for the published scorer
    workspaces/<day>.tar.gz              what the agent left behind
    home/, proxy.log                     the proxy's home folder and what it said
    after/<day>/                         a copy of the home at that day's end: the newest one only

A day is done in the moment its copy of the home is there. Until then nothing of it counts: a
resumed run throws away what an interrupted day has written, puts the home back to the last day's
end and begins that day anew."""

import json
import shutil
import sys
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from metaclaw.plugin import ConfigError, __version__
from metaclaw_bench.json_types import Json
from metaclaw_bench.records import (
    EventRecord,
    PlanRecord,
    Record,
    RoundRecord,
    read_records,
    write_records,
)
from metaclaw_bench.running.plan import Plan, Stage
from metaclaw_bench.running.proxy import Place
from metaclaw_bench.sandbox import NO_COMMANDS, NOT_OURS, strongest

ROUNDS: Final = "rounds.jsonl"
RUN: Final = "run.json"
# What belongs to a running process.
_NOT_KEPT: Final = frozenset({"run", "logs", "ledger.db-shm"})


@dataclass(frozen=True, slots=True)
class Folder:
    """Where one run writes."""

    root: Path

    @property
    def place(self) -> Place:
        """Where its proxy lives."""
        return Place(self.root / "home", self.root / "proxy.log")

    @property
    def rounds(self) -> Path:
        return self.root / ROUNDS

    def begin(self, plan: Plan, digest: str | None, *, resume: bool) -> tuple[Stage, ...]:
        """Make it ready; the stages that are still to be done. Raises ConfigError where another
        run, or one that may not be gone on with, lies there."""
        known = self._known()
        if known is not None:
            self._must_be_same(known, plan, resume=resume)
        self.root.mkdir(parents=True, exist_ok=True)
        facts = {
            "plan": plan.facts(),
            "version": __version__,
            "python": sys.version.split()[0],
            "digest_before": digest,
        }
        if known is None:
            self._tell({**facts, "digest_after": None, "is_done": False})
        return self._go_on(plan)

    def finish(self, digest: str | None) -> None:
        """All days are done; `digest` is the data's, which must be what it was."""
        before = self._known() or {}
        self._tell({**before, "digest_after": digest, "is_done": True})
        if before.get("digest_before") != digest:
            raise ConfigError(
                f"the benchmark's data has changed during the run ({self.root / RUN}): these scores"
                " are of no one test"
            )

    def keep_day(self, stage: Stage) -> None:
        """The day is done: copy the proxy's home, which must not be running. The copy is there
        whole or not at all. Blocks.
        """
        kept = self.root / "after"
        part = kept / f".{stage.name}.part"
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(self.place.home, part, symlinks=True, ignore=self._passing)
        part.replace(kept / stage.name)
        for old in kept.iterdir():
            if old.name != stage.name:
                shutil.rmtree(old)

    def keep_workspace(self, stage: Stage, workspace: Path) -> None:
        """Archive what the agent left behind, links as links. Blocks."""
        target = self.root / "workspaces" / f"{stage.name}.tar.gz"
        target.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(target, "w:gz") as archive:
            archive.add(workspace, arcname=stage.name)

    def keep_answer(self, stage: Stage, round_id: str, facts: Mapping[str, Json]) -> None:
        """One answer in the published layout."""
        target = self.root / stage.name / stage.day.id / round_id / "infer_result.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(facts, indent=1, ensure_ascii=False), "utf-8")

    def amend(self, change: Callable[[RoundRecord], RoundRecord]) -> None:
        """Write the records anew with each round changed as given."""
        before = read_records(self.rounds)
        write_records(
            self.rounds, [change(one) if isinstance(one, RoundRecord) else one for one in before]
        )

    def _passing(self, folder: str, names: list[str]) -> set[str]:
        return set(_NOT_KEPT & set(names)) if Path(folder) == self.place.home else set()

    def _go_on(self, plan: Plan) -> tuple[Stage, ...]:
        stages = plan.stages
        kept = self.root / "after"
        kept.mkdir(exist_ok=True)
        done = self._days_done(stages)
        self._forget(stages[done:])
        shutil.rmtree(self.place.home, ignore_errors=True)
        if done:
            shutil.copytree(kept / stages[done - 1].name, self.place.home, symlinks=True)
        self._keep_records(plan, stages[:done])
        return stages[done:]

    def rounds_done(self, plan: Plan) -> int:
        """How many rounds of this plan need not be run again; 0 where it was never begun, or
        another run lies there.
        """
        known = self._known()
        if known is None or known.get("plan") != _as_written(plan):
            return 0
        stages = plan.stages
        done = len(stages) if known.get("is_done") else self._days_done(stages)
        return sum(len(stage.day.rounds) for stage in stages[:done])

    def _days_done(self, stages: Sequence[Stage]) -> int:
        return max(
            (
                at
                for at, stage in enumerate(stages, 1)
                if (self.root / "after" / stage.name).is_dir()
            ),
            default=0,
        )

    def _forget(self, stages: Sequence[Stage]) -> None:
        for stage in stages:
            shutil.rmtree(self.root / stage.name, ignore_errors=True)
            (self.root / "workspaces" / f"{stage.name}.tar.gz").unlink(missing_ok=True)

    def _keep_records(self, plan: Plan, done: Sequence[Stage]) -> None:
        """The records of the days that are done, and the plan before them."""
        days = {(stage.phase, stage.day.id) for stage in done}
        before: list[Record] = read_records(self.rounds) if self.rounds.exists() else []
        rounds = {(one.phase, one.day) for one in before if isinstance(one, RoundRecord)} & days
        streamed = {day for phase, day in days if phase == "stream"}
        kept: list[Record] = [plan_record(plan)]
        for one in before:
            if (isinstance(one, RoundRecord) and (one.phase, one.day) in rounds) or (
                isinstance(one, EventRecord) and one.day in streamed
            ):
                kept.append(one)
        write_records(self.rounds, kept)

    def _must_be_same(self, known: Mapping[str, Json], plan: Plan, *, resume: bool) -> None:
        wanted, there = _as_written(plan), known.get("plan")
        if there != wanted:
            names = [
                name
                for name in wanted
                if not isinstance(there, dict) or there.get(name) != wanted[name]
            ]
            raise ConfigError(
                f"{self.root} holds another run: it differs in {', '.join(names) or 'more'} (see"
                f" {RUN} there); choose another --out"
            )
        if known.get("is_done"):
            raise ConfigError(
                f"{self.root} holds this run already, done; choose another --out, or delete it to"
                " run it again"
            )
        if not resume:
            raise ConfigError(
                f"{self.root} holds the beginning of this run; go on with --resume, or choose"
                " another --out"
            )

    def _known(self) -> dict[str, Json] | None:
        try:
            found = json.loads((self.root / RUN).read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ConfigError(
                f"{self.root / RUN} is no JSON ({error}); choose another --out"
            ) from error
        return found if isinstance(found, dict) else None

    def _tell(self, facts: Mapping[str, Json]) -> None:
        aside = self.root / f"{RUN}.part"
        aside.write_text(json.dumps(facts, indent=1, ensure_ascii=False), "utf-8")
        aside.replace(self.root / RUN)


def is_done(root: Path, plan: Plan) -> bool:
    """Whether this very run lies there complete."""
    known = Folder(root)._known()
    return (
        known is not None
        and known.get("is_done") is True
        and known.get("plan") == _as_written(plan)
    )


def _as_written(plan: Plan) -> dict[str, Json]:
    """A plan's facts as they are read back from JSON."""
    facts: dict[str, Json] = json.loads(json.dumps(plan.facts()))
    return facts


def sandbox_of(agent: str) -> str:
    """What keeps an agent of this name from the answers, in a word: a strength of our sandbox, or
    `not ours`. Blocks a moment.
    """
    match agent.partition(",")[0]:
        case "built-in":
            return strongest().value
        case "direct":
            return NO_COMMANDS
        case _:
            return NOT_OURS


def plan_record(plan: Plan) -> PlanRecord:
    """What the run set out to do, as a record."""
    counts = {
        phase: sum(len(one.day.rounds) for one in plan.stages if one.phase == phase)
        for phase in ("stream", "again", "held_out")
    }
    judged = "" if plan.judged_by is None else f", judged by {plan.judged_by}"
    words = f"{plan.agent} agent, model {plan.provider.model}{judged}"
    return PlanRecord(
        **plan.made,
        words=words,
        sandbox=sandbox_of(plan.agent),
        **counts,
    )


def share_models(out: Path, home: Path) -> None:
    """Let the embedded model's weights lie once for all runs below `out`, outside every home that
    is copied.
    """
    models = out / "models"
    models.mkdir(parents=True, exist_ok=True)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not (home / "models").exists():
        (home / "models").symlink_to(models.resolve())
