"""The adapter for AutoResearchClaw: its configuration, its artefacts, its requests. The real program is not run here."""

import json
from pathlib import Path

import pytest
import yaml

from metaclaw.bench.conditions import CONDITIONS
from metaclaw.bench.research.arc_requests import classify
from metaclaw.bench.research.autoresearchclaw import KEY_ENV, configuration, environment, find_program, merged, read_artefacts
from metaclaw.bench.research.settings import Job, ResearchSettings
from metaclaw.bench.research.stages import Stage
from metaclaw.bench.running.api import Api
from metaclaw.bench.running.plan import Endpoint
from metaclaw.bench.running.proxy import Front
from metaclaw.domain.chat import Json
from metaclaw.errors import ConfigError

PROXY = "http://127.0.0.1:30000"


def job_in(folder: Path, condition: str = "skills", template: Path | None = None) -> Job:
    settings = ResearchSettings(
        folder, Endpoint("http://127.0.0.1:9/v1", "worker"), autoresearchclaw=folder / "researchclaw", template=template
    )
    front = Front(Api(PROXY, "the-key"), "worker")
    return Job(settings, CONDITIONS[condition], 1, 2, front, folder / "home", folder / "run-2")


def at(tree: dict[str, Json], *path: str) -> Json:
    value: Json = tree
    for name in path:
        assert isinstance(value, dict)
        value = value[name]
    return value


def test_every_address_in_the_configuration_is_the_proxys(tmp_path: Path) -> None:
    tree = configuration(job_in(tmp_path), "step sizes", tmp_path / "bin" / "researchclaw")
    assert at(tree, "llm", "base_url") == f"{PROXY}/k/the-key/v1"
    # Stages are asked below the address as it is; the session's end gets /v1 by itself.
    assert at(tree, "metaclaw_bridge", "proxy_url") == f"{PROXY}/k/the-key"
    assert at(tree, "metaclaw_bridge", "fallback_url") == f"{PROXY}/k/the-key/v1"
    assert at(tree, "llm", "fallback_models") == []
    assert at(tree, "metaclaw_bridge", "prm", "enabled") is False
    assert at(tree, "experiment", "opencode", "enabled") is False
    assert at(tree, "experiment", "repair", "use_opencode") is False
    assert at(tree, "experiment", "cli_agent", "provider") == "llm"
    addresses = [word for word in yaml.safe_dump(tree).split() if "://" in word]
    assert addresses
    assert all(address.startswith(PROXY) for address in addresses)


def test_a_template_that_gives_experiments_to_another_agent_is_refused(tmp_path: Path) -> None:
    template = tmp_path / "template.yaml"
    template.write_text("experiment: {mode: agentic}\nllm: {api_key: sk-mine}\n")
    with pytest.raises(ConfigError, match="past the proxy"):
        configuration(job_in(tmp_path, template=template), "step sizes", tmp_path / "researchclaw")
    template.write_text("experiment: {mode: docker}\nllm: {api_key: sk-mine}\n")
    assert at(configuration(job_in(tmp_path, template=template), "x", tmp_path / "researchclaw"), "llm", "api_key") == ""


def test_the_fields_it_cannot_do_without_are_there(tmp_path: Path) -> None:
    tree = configuration(job_in(tmp_path), "step sizes", tmp_path / "researchclaw")
    for path in (
        "project.name",
        "research.topic",
        "runtime.timezone",
        "notifications.channel",
        "knowledge_base.root",
        "llm.api_key_env",
    ):
        assert at(tree, *path.split("."))


def test_its_lessons_become_skills_of_the_run_only_where_the_condition_has_skills(tmp_path: Path) -> None:
    program = tmp_path / "researchclaw"
    with_skills, without = (configuration(job_in(tmp_path, name), "t", program) for name in ("skills", "baseline"))
    assert at(with_skills, "metaclaw_bridge", "lesson_to_skill", "enabled") is True
    assert at(with_skills, "metaclaw_bridge", "skills_dir") == str(tmp_path / "home" / "skills")
    assert at(without, "metaclaw_bridge", "lesson_to_skill", "enabled") is False


def test_an_owners_template_is_kept_but_never_leads_past_the_proxy(tmp_path: Path) -> None:
    template = tmp_path / "mine.yaml"
    mine = {
        "research": {"topic": "mine", "quality_threshold": 4.0},
        "llm": {"base_url": "https://api.example.com/v1", "fallback_models": ["other"], "timeout_sec": 60},
        "metaclaw_bridge": {"enabled": False, "fallback_url": "https://api.example.com/v1"},
        "experiment": {"mode": "docker", "opencode": {"enabled": True}},
    }
    template.write_text(yaml.safe_dump(mine))
    tree = configuration(job_in(tmp_path, template=template), "step sizes", tmp_path / "researchclaw")
    assert at(tree, "research") == {"topic": "step sizes", "quality_threshold": 4.0}
    assert at(tree, "llm", "timeout_sec") == 60
    assert at(tree, "experiment", "mode") == "docker"
    assert "api.example.com" not in yaml.safe_dump(tree)


def test_a_template_that_is_none_is_named_with_what_is_wrong(tmp_path: Path) -> None:
    template = tmp_path / "mine.yaml"
    template.write_text("- a list\n")
    with pytest.raises(ConfigError, match="it holds no settings"):
        configuration(job_in(tmp_path, template=template), "t", tmp_path / "researchclaw")


def test_the_tree_above_wins_and_what_it_does_not_say_stays() -> None:
    assert merged({"a": {"x": 1, "y": 2}, "b": 1}, {"a": {"x": 3}, "b": {"c": 4}}) == {"a": {"x": 3, "y": 2}, "b": {"c": 4}}


def test_the_program_gets_no_key_but_the_proxys_and_a_home_of_its_own(tmp_path: Path) -> None:
    owners = {
        "PATH": "/bin",
        "HOME": "/home/me",
        "OPENAI_API_KEY": "sk",
        "PRM_API_KEY": "sk",
        "ANTHROPIC_AUTH_TOKEN": "sk",
        "OPENAI_BASE_URL": "https://elsewhere/v1",
        "METACLAW_HOME": "/home/me/.metaclaw",
    }
    assert environment(owners, tmp_path, "the-key") == {"PATH": "/bin", "HOME": str(tmp_path), KEY_ENV: "the-key"}


def test_the_program_is_found_by_its_own_path_or_in_the_folder_it_was_installed_in(tmp_path: Path) -> None:
    program = tmp_path / ".venv" / "bin" / "researchclaw"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    with pytest.raises(ConfigError, match="there is no program researchclaw"):
        find_program(tmp_path)
    program.chmod(0o755)
    assert find_program(tmp_path) == find_program(program) == program


def test_the_simulated_researcher_cannot_stand_behind_the_real_program(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a real model"):
        ResearchSettings(tmp_path, autoresearchclaw=tmp_path)


def written(folder: Path, **files: object) -> Path:
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def test_a_stage_that_was_run_again_counts_once(tmp_path: Path) -> None:
    summary = {"stages_executed": 26, "stages_done": 26, "stages_failed": 0, "final_stage": 23, "final_status": "done"}
    written(tmp_path, pipeline_summary=summary, decision_history=[{"decision": "refine"}])
    left = read_artefacts(tmp_path, 0, tmp_path / "output.log")
    assert (left.completed, left.refines, left.ending) == (23, 1, "completed")


@pytest.mark.parametrize(
    ("summary", "completed"),
    [
        ({"stages_done": 16, "stages_failed": 1, "final_stage": 17, "final_status": "failed"}, 16),
        ({"stages_done": 4, "stages_failed": 0, "final_stage": 5, "final_status": "blocked_approval"}, 4),
        ({"stages_done": 22, "stages_failed": 1, "final_stage": 23, "final_status": "done"}, 22),
        ({"stages_done": 18, "stages_executed": 19, "stages_failed": 1}, 18),
        ({"final_stage": 0, "final_status": "no_stages"}, 0),
    ],
)
def test_a_run_that_did_not_reach_its_end_counts_the_stages_before_it(tmp_path: Path, summary: object, completed: int) -> None:
    left = read_artefacts(written(tmp_path, pipeline_summary=summary), 1, tmp_path / "output.log")
    assert (left.completed, left.ending) == (completed, "failed")


def test_a_version_with_more_stages_is_counted_up_to_the_last_that_all_have(tmp_path: Path) -> None:
    left = read_artefacts(written(tmp_path, pipeline_summary={"final_stage": 25, "final_status": "done"}), 0, tmp_path / "log")
    assert (left.completed, left.ending) == (23, "completed")


def test_a_run_without_a_summary_broke_off_and_shows_the_end_of_its_output(tmp_path: Path) -> None:
    log = tmp_path / "output.log"
    log.write_text("Traceback: no module named researchclaw")
    written(tmp_path, checkpoint={"last_completed_stage": 7}, decision_history=[{}, {}, {}])
    left = read_artefacts(tmp_path, 1, log)
    assert (left.completed, left.refines, left.ending) == (7, 2, "broken")
    assert "no module named researchclaw" in left.why
    assert read_artefacts(tmp_path, None, log).why.startswith("it took too long")


@pytest.mark.parametrize(
    ("prompt", "stage", "is_repair"),
    [
        ("Create a SMART research goal in markdown.\nTopic: x", Stage.TOPIC_INIT, False),
        ("Some preamble.\n\nDesign an experiment plan as YAML.\nRequired keys: a", Stage.EXPERIMENT_DESIGN, False),
        ("Generate at least 2 falsifiable hypotheses from synthesis.", Stage.HYPOTHESIS_GEN, False),
        ("The file `main.py` in the experiment project has validation errors. Fix ALL issues", Stage.CODE_GENERATION, True),
        ("The following experiment code crashed during execution.\n", Stage.CODE_GENERATION, True),
        ("Fix all validation issues in main.py and return corrected Python code only.", Stage.ITERATIVE_REFINE, True),
        ("Improve the experiment code based on prior run results.", Stage.ITERATIVE_REFINE, False),
        ("Make a PROCEED or PIVOT decision from analysis.\nAnalysis: Simulate peer review", Stage.RESEARCH_DECISION, False),
        ("Revise the paper draft to address all review comments.\nReviews:\nCreate schedule JSON", Stage.PAPER_REVISION, False),
        ("Based on the analysis, make one of three decisions:\n- **PROCEED**", Stage.RESEARCH_DECISION, False),
        ("Rules of style.\n" * 1000 + "Write a full paper draft section by section", Stage.PAPER_DRAFT, False),
        ("Analyze run metrics.\nRun context:\nmain.py crashed during execution", Stage.RESULT_ANALYSIS, False),
    ],
)
def test_a_request_is_known_by_the_task_that_comes_first_in_it(prompt: str, stage: Stage, is_repair: bool) -> None:
    found = classify(prompt)
    assert found is not None
    assert (found.stage, found.is_repair) == (stage, is_repair)


def test_a_request_that_is_not_known_is_not_guessed() -> None:
    assert classify("Say hello.") is None
    assert classify("x" * 30_000 + "Create a SMART research goal") is None


def test_a_recorded_stage_request_of_the_real_program_is_recognised(shared: Path) -> None:
    captures = shared / "captures"
    found = {}
    for path in sorted(captures.glob("autoresearchclaw-*__stage_call_*.json")):
        (asked,) = [one["content"] for one in json.loads(path.read_text())["body"]["messages"] if one["role"] == "user"]
        found[path.stem.partition("__")[2]] = classify(asked)
    if not found:
        pytest.skip(f"no captures of AutoResearchClaw in {captures}")
    assert {name: one.stage if one else None for name, one in found.items()} == {
        "stage_call_json_mode": Stage.SEARCH_STRATEGY,
        "stage_call_with_skill_overlay": Stage.TOPIC_INIT,
    }
