"""AutoResearchClaw's whole way: our real program before a scripted provider, and a faithful
stand-in driven as the user's own.
"""

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest
import yaml

from metaclaw.domain.turn import Turn, TurnKind
from metaclaw.skills import remove_blocks
from metaclaw.store import LedgerReader, open_database
from metaclaw_bench.conditions import CONDITIONS
from metaclaw_bench.research import (
    ResearchResult,
    ResearchSettings,
    RunRecord,
    read_research,
    run_research,
)
from metaclaw_bench.research.arc_requests import classify
from metaclaw_bench.research.metrics import composite, measure
from metaclaw_bench.research.stages import Stage
from metaclaw_bench.running.plan import Endpoint, Patience
from metaclaw_bench.simulated.model import Broken, Prompt, Said, Thought
from metaclaw_bench.simulated.server import serving

pytestmark = [pytest.mark.anyio, pytest.mark.slow, pytest.mark.usefixtures("forked_proxies")]

ROOT = Path(__file__).resolve().parents[3]
RULE = "Begin the file with a function called main."
LESSON = {
    "name": "arc-python-file",
    # The program writes this into a front matter as it is, where a colon and a space are no words
    # of a text any more.
    "description": (
        "When generating the Python file of an experiment: what it must hold, and a blueprint of it"
    ),
    "category": "coding",
    "content": RULE,
}
WRITES_CODE = ("Generate the Python file", "has validation errors")


@dataclass
class Scripted:
    """A provider: code is good where the rule is in the prompt, the first decision is to refine,
    and `broken` fails once each.
    """

    asked: list[Prompt] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)

    def answer(self, prompt: Prompt) -> Thought:
        if prompt.purpose is not None:
            return Said("I cannot tell.")
        self.asked.append(prompt)
        text = prompt.text
        if fault := next((words for words in self.broken if words in text), None):
            self.broken.discard(fault)
            return Broken(429)
        if "skill designer" in text:
            return Said(json.dumps([LESSON]))
        if "quality reviewer for an automated" in text:
            return Said("Score: 1\nGood.")
        if any(words in text for words in WRITES_CODE):
            return Said("def main(): ..." if RULE in text else "print('hello')")
        return Said(
            "## Decision\nREFINE"
            if "make one of three" in text and "Cycle: 1" in text
            else "Here it is."
        )


def installed(folder: Path, **script: object) -> Path:
    """The stand-in as a command, with what it is to do beside it and the recorded requests where
    there are any.
    """
    shared = Path(os.environ.get("METACLAW_SHARED", ROOT.parent / "shared")) / "captures"
    program = folder / "bin" / "researchclaw"
    program.parent.mkdir(parents=True)
    lines = ("import sys", "from pathlib import Path", f"sys.path.insert(0, {str(ROOT)!r})")
    run = (
        "from bench.tests.research.arc_stand_in import main",
        "sys.exit(main(sys.argv[1:], Path(__file__)))",
    )
    program.write_text("\n".join((f"#!{sys.executable}", *lines, *run, "")))
    program.chmod(0o755)
    captures = str(shared) if shared.is_dir() else None
    (program.parent / "script.json").write_text(json.dumps({"captures": captures, **script}))
    return program


async def researched(
    folder: Path, mind: Scripted, program: Path, *conditions: str, runs: int = 2, **template: object
) -> ResearchResult:
    (folder / "mine.yaml").write_text(yaml.safe_dump(template))
    async with serving(mind) as url:
        settings = ResearchSettings(
            folder / "out",
            Endpoint(url, "worker", is_simulated=True),
            conditions=tuple(CONDITIONS[name] for name in conditions),
            seeds=(1,),
            runs=runs,
            autoresearchclaw=program,
            template=folder / "mine.yaml" if template else None,
            patience=Patience(calm_s=1.0, most_s=400.0),
            sets=("skills.retrieval=words",),
        )
        return await run_research(settings)


def turns_of(folder: Path, condition: str) -> list[Turn]:
    database = open_database(f"sqlite:///{folder}/out/{condition}/seed-1/home/ledger.db")
    try:
        reader = LedgerReader(database)
        found = (reader.turn(row.id) for row in reader.turns_after(0, 1000))
        return [one.turn for one in found if one is not None]
    finally:
        database.close()


def calls_of(folder: Path, condition: str, run: int) -> Counter[str]:
    path = folder / "out" / condition / "seed-1" / f"run-{run}" / "artefacts" / "calls.jsonl"
    return Counter(json.loads(line)["via"] for line in path.read_text().splitlines())


def counts(run: RunRecord) -> tuple[object, ...]:
    return run.ending, run.completed, run.attempts, run.retries, run.refines, run.unclassified


def user_text(turn: Turn) -> str:
    (user,) = [
        one["content"]
        for one in json.loads(turn.exchange.request)["messages"]
        if one["role"] == "user"
    ]
    return str(user)


def code_prompts(mind: Scripted) -> Iterator[str]:
    return (prompt.text for prompt in mind.asked if WRITES_CODE[0] in prompt.text)


async def test_what_a_failed_stage_taught_reaches_the_next_run_and_only_with_skills(
    tmp_path: Path,
) -> None:
    mind = Scripted()
    program = installed(tmp_path, needs={"10": "def main"})
    result = await researched(tmp_path, mind, program, "baseline", "skills")
    # Sixteen requests up to the code, which is mended once and in vain; thirty-nine for all stages,
    # with a second round of three.
    failed = ("failed", 9, 16, 1, 0, 0)
    assert {(run.condition, run.run): counts(run) for run in result.runs} == {
        ("baseline", 1): failed,
        ("baseline", 2): failed,
        ("skills", 1): failed,
        ("skills", 2): ("completed", 23, 39, 0, 1, 1),
    }
    assert [run.why for run in result.runs] == ["final stage 10: failed"] * 3 + [""]
    assert [run.lessons for run in result.runs] == [
        (),
        (),
        (LESSON["name"],),
        (LESSON["name"],),
    ], "of the stage; of the decision"
    died = composite(9 / 23, 1 / 16, 0, is_past_decision=False)
    assert [measure(run).composite for run in result.runs] == [died] * 3 + [composite(1.0, 0.0, 1)]

    # Every stage was asked through the proxy, and nowhere else; the end is said once for each time
    # the pipeline ran into the next.
    assert calls_of(tmp_path, "baseline", 1) == {"primary": 16, "end": 1}
    assert calls_of(tmp_path, "skills", 2) == {"primary": 41, "end": 2}
    asked = sum(
        sum(calls_of(tmp_path, name, run).values())
        for name in ("baseline", "skills")
        for run in (1, 2)
    )
    assert len(mind.asked) == asked - 5, "all but the ends of runs"
    placed = [remove_blocks(text) != text and RULE in text for text in code_prompts(mind)]
    assert placed == [False, False, False, True]


async def test_stage_calls_are_main_turns_of_their_own_and_judges_lessons_and_ends_are_side_turns(
    tmp_path: Path,
) -> None:
    mind = Scripted()
    program = installed(tmp_path, needs={"10": "def main"}, overlays=True)
    bridge = {
        "prm": {"enabled": True, "api_base": "https://api.example.com/v1", "api_key": "sk-mine"}
    }
    result = await researched(
        tmp_path, mind, program, "skills", metaclaw_bridge=bridge, hitl={"enabled": True}
    )
    assert [run.completed for run in result.runs] == [9, 23]
    turns = turns_of(tmp_path, "skills")
    assert {turn.agent for turn in turns} == {"autoresearchclaw"}
    main = [turn for turn in turns if turn.kind is TurnKind.MAIN]
    assert len(main) == 16 + 40
    assert len({turn.session for turn in main}) == len(main), (
        "nothing says that two requests belong together"
    )
    stages = {found.stage for turn in main if (found := classify(user_text(turn))) is not None}
    assert stages == set(Stage) - {Stage.EXPERIMENT_RUN, Stage.CITATION_VERIFY}
    # Three votes at stages 5 and 9 of both runs, 15 (twice) and 20 of the second.
    sides = Counter(turn.kind_reason for turn in turns if turn.kind is TurnKind.SIDE)
    assert sides == {
        "autoresearchclaw-judge": 3 * (2 + 2 + 3),
        "autoresearchclaw-lesson": 2,
        "session-end": 1 + 2,
    }
    assert len({turn.session for turn in turns if turn.kind_reason == "session-end"}) == 2, (
        "one of each run, named by its id"
    )
    assert not any(turn.placements for turn in turns if turn.kind is TurnKind.SIDE)
    assert sum(calls_of(tmp_path, "skills", run)["fallback"] for run in (1, 2)) == 0

    # The client brought the lesson along itself wherever a stage begins. Rules are always placed,
    # so it may stand there twice.
    texts = [prompt.text for prompt in mind.asked]
    assert max(text.count(RULE) for text in texts) <= 2
    brought = [text for text in texts if "## Learned Skills from Prior Runs" in text]
    assert any("IMPLEMENTATION BLUEPRINT" in text for text in brought)
    assert all(RULE in text for text in brought)
    assert [min(1, text.count(RULE)) for text in code_prompts(mind)] == [0, 1]


async def test_the_command_runs_it_and_a_provider_that_fails_once_is_asked_again_through_the_proxy(
    tmp_path: Path,
) -> None:
    program = installed(tmp_path)
    async with serving(Scripted(broken={"Decompose this research problem"})) as url:
        words = (
            f"bench research --provider-url {url} --model worker --conditions baseline --seeds 1"
            " --runs 1 --out out"
        )
        command = [
            sys.executable,
            "-m",
            "metaclaw",
            *words.split(),
            "--autoresearchclaw",
            str(program.parent.parent),
            "--json",
        ]
        ran = await anyio.run_process(command, check=False, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr.decode()
    assert b"run 1: completed" in ran.stderr
    (run,) = [
        one
        for one in read_research(Path(json.loads(ran.stdout)["records"]))
        if isinstance(one, RunRecord)
    ]
    assert counts(run) == ("completed", 23, 39, 0, 1, 1)
    assert calls_of(tmp_path, "baseline", 1) == {"primary": 40, "fallback": 1, "end": 2}
    (unanswered,) = [turn for turn in turns_of(tmp_path, "baseline") if turn.status == 429]
    assert "Decompose" in user_text(unanswered)
