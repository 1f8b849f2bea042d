"""Research through the real proxy: what one run is told, the next one does; and a stand-in for AutoResearchClaw, counted."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from metaclaw.bench.conditions import CONDITIONS
from metaclaw.bench.policies.minds import Prompt, Said, Thought
from metaclaw.bench.policies.serving import serving
from metaclaw.bench.research import Habits, ResearchSettings, RunRecord, read_research, run_research
from metaclaw.bench.research.records import AttemptRecord
from metaclaw.bench.running.plan import Endpoint, Patience
from metaclaw.errors import ConfigError

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

QUICK = Patience(calm_s=1.0, most_s=400.0)

STAND_IN = '''#!{python}
"""Behaves as AutoResearchClaw does towards a proxy: no session, a repair, a repetition, a lesson, a session's end."""
import json, os, sys, urllib.request
from pathlib import Path

import yaml

said = dict(zip(sys.argv[2::2], sys.argv[3::2]))
assert sys.argv[1] == "run" and "--auto-approve" in sys.argv, sys.argv
assert not [name for name in os.environ if name.endswith("_API_KEY")], "a provider's key came along"
config = yaml.safe_load(Path(said["--config"]).read_text())
bridge, llm = config["metaclaw_bridge"], config["llm"]
run_dir = Path(said["--output"])


def post(url, body, headers):
    request = urllib.request.Request(url, json.dumps(body).encode(), {{"Content-Type": "application/json", **headers}})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def ask(system, user):
    messages = [{{"role": "system", "content": system}}, {{"role": "user", "content": user}}]
    headers = {{
        "Authorization": "Bearer " + os.environ[llm["api_key_env"]],
        "User-Agent": "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7)",
        "Accept-Encoding": "identity",
    }}
    return post(bridge["proxy_url"] + "/chat/completions", {{"model": llm["primary_model"], "messages": messages}}, headers)


topic = config["research"]["topic"]
ask("You are a planner.", "Create a SMART research goal in markdown.\\nTopic: " + topic)
ask("You are a strategist.", "Decompose this research problem into sub-questions.\\nTopic: " + topic)
ask("You are a strategist.", "Decompose this research problem into sub-questions.\\nTopic: " + topic)
ask("You write code.", "Generate a Python experiment project for " + topic)
ask("You fix code.", "The file `main.py` in the experiment project has validation errors.")
ask("You are helpful.", "Name a colour.")
if bridge["lesson_to_skill"]["enabled"]:
    ask("You are a skill designer for an AI agent system.", "Make skills of these lessons.")
    skill = Path(bridge["skills_dir"]) / "arc-experiment-code" / "SKILL.md"
    skill.parent.mkdir(parents=True, exist_ok=True)
    head = "name: arc-experiment-code\\ndescription: When generating a Python experiment project"
    skill.write_text("---\\n" + head + "\\n---\\nValidate main.py.\\n")
end = {{"model": "session-end", "messages": [{{"role": "user", "content": "session complete"}}], "max_tokens": 1}}
post(bridge["proxy_url"] + "/v1/chat/completions", end, {{"X-Session-Id": "arc-run", "X-Session-Done": "true"}})
(run_dir / "decision_history.json").write_text(json.dumps([{{"decision": "refine"}}]))
summary = {{"stages_executed": 26, "stages_done": 26, "stages_failed": 0, "final_stage": 23, "final_status": "done"}}
(run_dir / "pipeline_summary.json").write_text(json.dumps(summary))
'''


@dataclass
class Agreeable:
    """Says the same to everything, and remembers what it was shown."""

    shown: list[str]

    def answer(self, prompt: Prompt) -> Thought:
        self.shown.append(prompt.text)
        return Said("Here it is.")


def by_run(runs: tuple[RunRecord, ...], value: Callable[[RunRecord], object]) -> dict[tuple[str, int], object]:
    return {(run.condition, run.run): value(run) for run in runs}


async def test_with_skills_the_second_run_is_told_nothing_twice_and_without_them_everything_again(tmp_path: Path) -> None:
    # A researcher who keeps exactly the rules that stand in its prompt: what must happen is known in advance.
    settings = ResearchSettings(tmp_path / "out", seeds=(1,), runs=2, habits=Habits(told=1.0, untold=0.0), patience=QUICK)
    result = await run_research(settings)
    assert {(run.ending, run.unlearned) for run in result.runs} == {("completed", ())}
    assert all(run.simulated for run in result.runs)
    assert by_run(result.runs, lambda run: (run.retries, run.refines)) == {
        ("baseline", 1): (23, 1),
        ("baseline", 2): (23, 1),
        ("skills", 1): (23, 1),
        ("skills", 2): (0, 0),
    }
    attempts = [one for one in read_research(result.records) if isinstance(one, AttemptRecord)]
    assert not any(one.skills for one in attempts if one.condition == "baseline")
    assert all(one.skills for one in attempts if (one.condition, one.run) == ("skills", 2))
    (later,) = [one for one in result.comparisons if one.metric == "retry_rate" and one.from_run == 2]
    assert (later.baseline_mean, later.other_mean) == (23 / 47, 0.0)
    with pytest.raises(ConfigError, match="is there already"):
        await run_research(settings)


async def test_a_stand_in_for_autoresearchclaw_is_driven_through_the_proxy_and_counted(tmp_path: Path) -> None:
    program = tmp_path / "researchclaw"
    program.write_text(STAND_IN.format(python=sys.executable))
    program.chmod(0o755)
    mind = Agreeable([])
    async with serving(mind) as url:
        settings = ResearchSettings(
            tmp_path / "out",
            Endpoint(url, "worker", is_simulated=True),
            conditions=(CONDITIONS["baseline"], CONDITIONS["skills"]),
            seeds=(1,),
            autoresearchclaw=program,
            patience=QUICK,
        )
        result = await run_research(settings)
    assert [run.why for run in result.runs] == [""] * 4
    assert {run.pipeline for run in result.runs} == {"autoresearchclaw"}
    # Five requests of known stages, a repair and a repetition among them, and one that nobody knows. Lessons are no stage's.
    for run in result.runs:
        assert (run.completed, run.attempts, run.retries, run.refines, run.unclassified) == (23, 5, 2, 1, 1)
    assert not any("session complete" in text for text in mind.shown)
    placed = [text for text in mind.shown if "Generate a Python experiment project" in text and "Validate main.py" in text]
    assert len(placed) == 1, "the lesson of the first run stands at its stage in the second, under the condition with skills alone"
    assert [path.name for path in (tmp_path / "out" / "skills" / "seed-1" / "home" / "skills").iterdir()] == ["arc-experiment-code"]
