"""A stand-in for AutoResearchClaw, run as a program: its command line, configuration, requests and
files, and none of its code.

Whatever it does towards the outside was read in the public source (several versions) or seen on the
wire (e2e23c9). What it does inside is nothing: a stage is done when it was answered, unless a word
is missing that the script beside the program asks for."""

import argparse
import hashlib
import json
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.tests.research.arc_stand_in_client import Ask, Client, ask_judges, end_session
from bench.tests.research.arc_stand_in_config import Config, load

log = logging.getLogger(__name__)

NAMES = (
    "TOPIC_INIT",
    "PROBLEM_DECOMPOSE",
    "SEARCH_STRATEGY",
    "LITERATURE_COLLECT",
    "LITERATURE_SCREEN",
    "KNOWLEDGE_EXTRACT",
    "SYNTHESIS",
    "HYPOTHESIS_GEN",
    "EXPERIMENT_DESIGN",
    "CODE_GENERATION",
    "RESOURCE_PLANNING",
    "EXPERIMENT_RUN",
    "ITERATIVE_REFINE",
    "RESULT_ANALYSIS",
    "RESEARCH_DECISION",
    "PAPER_OUTLINE",
    "PAPER_DRAFT",
    "PEER_REVIEW",
    "PAPER_REVISION",
    "QUALITY_GATE",
    "KNOWLEDGE_ARCHIVE",
    "EXPORT_PUBLISH",
    "CITATION_VERIFY",
)
GATES = (5, 9, 20)
CODING, DECIDING = 10, 15
BACK_TO = {"pivot": 8, "refine": 13}
MOST_PIVOTS = 2
DOLLARS_A_CALL = 0.25

# What each stage asks, in as few of its words as tell it apart, and as often as it was seen to ask.
ASKS: dict[int, tuple[Ask, ...]] = {
    1: (Ask("Create a SMART research goal.", capture="stage_call_with_skill_overlay"),),
    2: (
        Ask("Decompose this research problem into sub-questions."),
        Ask("Evaluate this research topic.", is_main=False),
    ),
    3: (Ask("Create a merged search strategy.", json_mode=True, capture="stage_call_json_mode"),),
    4: (Ask("Generate candidate papers.", json_mode=True),),
    5: (Ask("Perform merged relevance+quality screening.", json_mode=True),),
    6: (Ask("Extract structured knowledge cards.", json_mode=True),),
    7: (Ask("Produce merged synthesis output.", max_tokens=8192),),
    8: (
        Ask("Two unconventional hypotheses.", is_main=False),
        Ask("Two well-grounded hypotheses.", is_main=False),
        Ask("Two contrarian hypotheses.", is_main=False),
        Ask("Unite the hypotheses generated from three sides.", is_main=False),
    ),
    9: (Ask("Design an experiment plan."),),
    10: (
        Ask("Draw an IMPLEMENTATION BLUEPRINT of the experiment."),
        Ask("Generate the Python file `main.py`.", is_main=False),
    ),
    11: (Ask("Create schedule JSON.", json_mode=True),),
    # As long as nothing becomes better, the next round asks the same.
    13: (
        Ask("Improve the experiment code.", is_main=False),
        Ask("Improve the experiment code.", is_main=False),
    ),
    14: (
        Ask("See the results from an optimistic perspective.", is_main=False),
        Ask("Critically scrutinize the experiment results.", is_main=False),
        Ask("Audit the experimental methodology.", is_main=False),
        Ask("Unite the analyses from three different perspectives.", is_main=False),
    ),
    15: (Ask("Look at the analysis and make one of three decisions."),),
    16: (Ask("Create a detailed paper outline.", max_tokens=8192),),
    17: (
        Ask("Write the following sections.", max_tokens=12000, is_main=False),
        Ask("You are continuing a paper.", max_tokens=12000, is_main=False),
        Ask("You are completing a paper.", max_tokens=12000, is_main=False),
    ),
    18: (Ask("Simulate peer review.", max_tokens=8192),),
    19: (Ask("Revise the paper draft.", max_tokens=16384),),
    20: (Ask("Evaluate revised paper quality.", json_mode=True),),
    21: (Ask("Write retrospective archive."),),
    22: (Ask("Format revised paper."), Ask("Describe a picture of it.", is_main=False)),
}
REPAIR = Ask("What you wrote has validation errors.", is_main=False)


@dataclass(frozen=True)
class Script:
    """What this test wants: the word without which a stage fails, where recorded requests lie,
    whose skills are brought along.
    """

    needs: dict[int, str] = field(default_factory=dict)
    captures: Path | None = None
    overlays: bool = False

    @staticmethod
    def beside(program: Path) -> "Script":
        told: dict[str, Any] = json.loads((program.parent / "script.json").read_text())
        captures = told.get("captures")
        needs = {int(stage): word for stage, word in told.get("needs", {}).items()}
        return Script(needs, Path(captures) if captures else None, bool(told.get("overlays")))


@dataclass(frozen=True)
class Result:
    stage: int
    status: str = "done"
    decision: str = "proceed"
    error: str | None = None


@dataclass
class Pipeline:
    """One run. `execute` calls itself where a decision leads back, so its end is said once for each
    time.
    """

    config: Config
    client: Client | None
    script: Script
    folder: Path
    run_id: str
    auto_approve: bool

    def execute(self, from_stage: int = 1) -> list[Result]:
        results: list[Result] = []
        for stage in range(from_stage, len(NAMES) + 1):
            if stage in self.config.skip_stages:
                results.append(Result(stage, decision="skipped"))
                continue
            if self._is_too_dear():
                log.warning("[%s] the budget is used up", self.run_id)
                break
            result = self._perform(stage)
            results.append(result)
            log.info(
                "[%s] Stage %02d %s: %s %s",
                self.run_id,
                stage,
                NAMES[stage - 1],
                result.status,
                result.error or "",
            )
            if result.status == "done":
                self._checkpoint(stage)
            if (
                stage == DECIDING
                and result.decision in BACK_TO
                and len(self._history()) < MOST_PIVOTS
            ):
                self._lead_back(result.decision)
                results += self.execute(BACK_TO[result.decision])
                break
            if result.status != "done":
                break
        self._finish(results, from_stage)
        return results

    def _perform(self, stage: int) -> Result:
        place = self.folder / f"stage-{stage:02d}"
        place.mkdir(parents=True, exist_ok=True)
        try:
            result = self._ask_all(stage)
        except RuntimeError as error:
            result = Result(stage, "failed", "retry", str(error))
        judge = self.config.prm
        if (
            result.status == "done"
            and judge.enabled
            and judge.api_base
            and judge.key
            and stage in judge.gate_stages
        ):
            score = ask_judges(judge, stage, self.script.captures)
            _write(
                place / "prm_score.json",
                {"stage": stage, "prm_score": score, "model": judge.model, "votes": judge.votes},
            )
            if score == -1:
                result = Result(stage, "failed", "retry", "the judges refused it")
        if stage in GATES and not self.auto_approve:
            result = Result(stage, "blocked_approval", "block", result.error)
        self._write_down(place, result)
        return result

    def _ask_all(self, stage: int) -> Result:
        if self.client is None:
            return Result(stage)  # a template is filled in, and the stage counts as done
        said = ""
        for ask in ASKS.get(stage, ()):
            said = self._ask(stage, ask)
        word = self.script.needs.get(stage)
        if stage == CODING and word is not None and word not in said:
            said = self._ask(stage, REPAIR)
        if word is not None and word not in said:
            return Result(stage, "failed", "retry", f"nothing of stage {stage} can be used")
        if stage == DECIDING:
            found = next((one for one in BACK_TO if one.upper() in said), "proceed")
            return Result(stage, decision=found)
        return Result(stage)

    def _ask(self, stage: int, ask: Ask) -> str:
        assert self.client is not None
        context = (
            f"Topic: {self.config.topic}\nCycle: {len(self._history()) + 1}\nStage {stage} asks"
            " this.\n"
        )
        overlay = "".join(self._overlay()) if ask.is_main else ""
        return self.client.chat(
            ask, f"You take part in a study as number {stage}.", context, overlay
        )

    def _overlay(self) -> Iterator[str]:
        """Up to five whole skill files, from a fixed place below the home; or from where lessons
        are written, if a test says so.
        """
        folder = (
            Path(self.config.skills_dir)
            if self.script.overlays
            else Path.home() / ".metaclaw" / "skills"
        )
        found = [path.read_text().strip() for path in sorted(folder.glob("arc-*/SKILL.md"))][:5]
        if found:
            yield (
                "\n\n## Learned Skills from Prior Runs\n"
                + "\n".join(found)
                + "\n\nMake use of them.\n"
            )

    def _is_too_dear(self) -> bool:
        asked = 0 if self.client is None else self.client.asked
        return (
            self.config.max_budget_usd > 0 and asked * DOLLARS_A_CALL > self.config.max_budget_usd
        )

    def _history(self) -> list[dict[str, object]]:
        path = self.folder / "decision_history.json"
        history: list[dict[str, object]] = json.loads(path.read_text()) if path.exists() else []
        return history

    def _lead_back(self, decision: str) -> None:
        history, target = self._history(), BACK_TO[decision]
        history.append(
            {
                "decision": decision,
                "rollback_target": NAMES[target - 1],
                "rollback_stage_num": target,
                "timestamp": _now(),
            }
        )
        _write(self.folder / "decision_history.json", history)
        for stage in range(target, DECIDING + 1):
            place = self.folder / f"stage-{stage:02d}"
            if place.exists():
                place.rename(self.folder / f"stage-{stage:02d}_v{len(history)}")

    def _write_down(self, place: Path, result: Result) -> None:
        name = f"{result.stage:02d}-{NAMES[result.stage - 1].lower()}"
        told = {
            "stage_id": name,
            "run_id": self.run_id,
            "status": result.status,
            "error": result.error,
        }
        _write(
            place / "decision.json",
            {**told, "decision": result.decision, "output_artifacts": [], "ts": _now()},
        )
        _write(
            place / "stage_health.json",
            {**told, "duration_sec": 0.0, "artifacts_count": 0, "timestamp": _now()},
        )

    def _checkpoint(self, stage: int) -> None:
        told = {"run_id": self.run_id, "timestamp": _now()}
        last = {"last_completed_stage": stage, "last_completed_name": NAMES[stage - 1]}
        _write(self.folder / "checkpoint.json", {**last, **told})
        _write(
            self.folder / "heartbeat.json",
            {"pid": 1, "last_stage": stage, "last_stage_name": NAMES[stage - 1], **told},
        )

    def _finish(self, results: Sequence[Result], from_stage: int) -> None:
        count = [one.status for one in results].count
        last = results[-1] if results else Result(from_stage, "no_stages")
        summary = {
            "run_id": self.run_id,
            "stages_executed": len(results),
            **{
                f"stages_{one}": count(status)
                for one, status in (("done", "done"), ("paused", "paused"), ("failed", "failed"))
            },
            "stages_blocked": count("blocked_approval"),
            "degraded": False,
            "from_stage": from_stage,
            "final_stage": last.stage,
            "final_status": last.status,
            "generated": _now(),
            "content_metrics": {},
        }
        _write(self.folder / "pipeline_summary.json", summary)
        lessons = list(_lessons(results))
        if lessons:
            (self.folder / "evolution").mkdir(exist_ok=True)
            with (self.folder / "evolution" / "lessons.jsonl").open("a") as file:
                file.writelines(
                    json.dumps({"severity": one[0], "description": one[1], "run_id": self.run_id})
                    + "\n"
                    for one in lessons
                )
        if self.config.bridge_enabled:
            if lessons and self.config.lessons_enabled and self.client is not None:
                self._make_skills([text for _, text in lessons])
            end_session(self.config, self.run_id, self.folder)

    def _make_skills(self, lessons: Sequence[str]) -> None:
        assert self.client is not None
        ask = Ask("What went wrong:", json_mode=True, max_tokens=3000, capture="lesson_to_skill")
        try:
            said = json.loads(
                self.client.chat(
                    ask, "You are a skill designer for an AI agent system.", "\n".join(lessons), ""
                )
            )
        except (RuntimeError, ValueError):
            return
        for skill in said[: self.config.most_skills] if isinstance(said, list) else ():
            name = re.sub(r"[^a-z0-9-]", "-", skill["name"].lower()).strip("-")
            path = Path(self.config.skills_dir).expanduser() / name / "SKILL.md"
            path.parent.mkdir(parents=True, exist_ok=True)
            head = (
                f"name: {name}\ndescription: {skill['description']}\ncategory:"
                f" {skill['category']}\n"
            )
            path.write_text(f"---\n{head}---\n{skill['content']}\n")


def _lessons(results: Sequence[Result]) -> Iterator[tuple[str, str]]:
    for one in results:
        name = NAMES[one.stage - 1].lower()
        if one.status == "failed" and one.error:
            yield "error", f"Stage {name} failed: {one.error[:300]}"
        if one.decision in BACK_TO:
            yield "warning", f"The decision was {one.decision.upper()}"


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def main(arguments: Sequence[str], program: Path) -> int:
    """The command. `program` is the file it was called by; what it is to do lies beside it."""
    parser = argparse.ArgumentParser(prog="researchclaw")
    run = parser.add_subparsers(dest="command", required=True).add_parser("run")
    for short, name in (("-t", "--topic"), ("-c", "--config"), ("-o", "--output")):
        run.add_argument(short, name)
    run.add_argument("--from-stage")
    for name in (
        "--auto-approve",
        "--skip-preflight",
        "--resume",
        "--skip-noncritical-stage",
        "--no-graceful-degradation",
    ):
        run.add_argument(name, action="store_true")
    told = parser.parse_args(arguments)
    logging.basicConfig(stream=sys.stdout, level=logging.INFO)
    config = load(Path(told.config), told.topic)
    folder = Path(told.output)
    folder.mkdir(parents=True, exist_ok=True)
    script = Script.beside(program)
    client = Client.of(config, folder, script.captures)
    if not told.skip_preflight and client is not None:
        client.chat(Ask("ping", max_tokens=1), "", "", "")
    auto = (told.auto_approve or config.mode == "full-auto") and not config.hitl_enabled
    run_id = f"rc-{datetime.now(UTC):%Y%m%d-%H%M%S}-{hashlib.sha256(config.topic.encode()).hexdigest()[:6]}"
    results = Pipeline(config, client, script, folder, run_id, auto).execute()
    failed = sum(one.status == "failed" for one in results)
    log.info("%d stages, %d failed", len(results), failed)
    return 0 if failed == 0 else 1
