"""The adapter for AutoResearchClaw: what it is run with, and what its requests are taken for. The
real program is not run here.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from bench.tests.research.arc_stand_in_config import Config, load
from metaclaw.plugin import ConfigError
from metaclaw_bench.conditions import CONDITIONS
from metaclaw_bench.json_types import Json
from metaclaw_bench.research.arc_config import (
    KEY_ENV,
    configuration,
    environment,
    find_program,
    merged,
)
from metaclaw_bench.research.arc_requests import classify
from metaclaw_bench.research.autoresearchclaw import drive
from metaclaw_bench.research.running import run_research
from metaclaw_bench.research.settings import Job, ResearchSettings
from metaclaw_bench.research.stages import Stage
from metaclaw_bench.running.api import Api
from metaclaw_bench.running.plan import Endpoint
from metaclaw_bench.running.proxy import Front
from metaclaw_bench.running.turns import Ledger
from tests.support.cases import each

Env = pytest.MonkeyPatch

pytestmark = pytest.mark.anyio

PROXY = "http://127.0.0.1:30000"


def job_in(folder: Path, condition: str = "skills", template: object = None) -> Job:
    """A run of a program that is installed in a folder, with a configuration of the owner's to
    begin with.
    """
    program = folder / "bin" / "researchclaw"
    if not program.exists():
        program.parent.mkdir()
        for path in (program, program.with_name("python3")):
            path.touch(0o755)
    if template is not None:
        (folder / "mine.yaml").write_text(
            template if isinstance(template, str) else yaml.safe_dump(template)
        )
    mine = None if template is None else folder / "mine.yaml"
    settings = ResearchSettings(
        folder, Endpoint("http://127.0.0.1:9/v1", "worker"), autoresearchclaw=program, template=mine
    )
    front = Front(Api(PROXY, "the-key"), "worker")
    return Job(
        settings,
        CONDITIONS[condition],
        1,
        2,
        front,
        Ledger(front.api),
        folder / "home",
        folder / "run-2",
    )


def configured(folder: Path, condition: str = "skills", template: object = None) -> dict[str, Json]:
    return configuration(job_in(folder, condition, template), "step sizes")


def loaded(folder: Path, template: object = None) -> Config:
    """What the program's own loader makes of it."""
    (folder / "config.yaml").write_text(yaml.safe_dump(configured(folder, template=template)))
    return load(folder / "config.yaml")


def at(tree: dict[str, Json], *path: str) -> Json:
    value: Json = tree
    for name in path:
        assert isinstance(value, dict)
        value = value[name]
    return value


HOSTILE = {
    "project": {"mode": "docs-first"},
    "research": {"topic": "mine", "quality_threshold": 4.0},
    "llm": {
        "provider": "anthropic",
        "base_url": "https://api.example.com/v1",
        "wire_api": "responses",
        "api_key": "sk-mine",
        "primary_model": "large",
        "fallback_models": ["other"],
        "timeout_sec": 60,
        "critic_model": "critic",
        "reviewer_model": "reviewer",
        "reviewer_provider": "anthropic",
        "reviewer_base_url": "https://api.example.com/v1",
        "reviewer_api_key": "sk-mine",
    },
    "metaclaw_bridge": {
        "enabled": False,
        "proxy_url": "https://api.example.com",
        "skills_dir": "~/.metaclaw/skills",
        "fallback_url": "https://api.example.com/v1",
        "fallback_api_key": "sk-mine",
        "prm": {
            "enabled": True,
            "api_base": "https://api.example.com/v1",
            "api_key": "sk-mine",
            "votes": 5,
        },
    },
    "experiment": {
        "mode": "docker",
        "opencode": {"enabled": True},
        "cli_agent": {"provider": "codex", "max_budget_usd": 1.0},
        "figure_agent": {"nano_banana_enabled": True},
    },
    "hitl": {"enabled": True, "mode": "co-pilot"},
}


@pytest.mark.parametrize(
    "template",
    [None, HOSTILE, {"llm": None, "experiment": None, "metaclaw_bridge": None, "hitl": None}],
)
def test_whatever_asks_a_model_asks_the_proxy_and_nobody_is_waited_for(
    tmp_path: Path, template: object, monkeypatch: Env
) -> None:
    monkeypatch.setenv(KEY_ENV, "the-key")
    config = loaded(tmp_path, template)
    assert (config.provider, config.wire_api, config.model, config.fallback_models) == (
        "openai-compatible",
        "chat_completions",
        "worker",
        (),
    )
    # Stages are asked below the address as it is; the session's end gets /v1 by itself, and has no
    # key but the address's.
    assert (config.bridge_enabled, config.proxy_url) == (True, f"{PROXY}/k/the-key")
    assert {config.base_url, config.fallback_url, config.prm.api_base} == {f"{PROXY}/k/the-key/v1"}
    assert {config.key, config.fallback_key, config.prm.key} == {"the-key"}
    assert (config.reviewer, config.prm.model) == (("", ""), "worker")
    assert (config.opencode, config.image_model, config.coder) == (False, False, "llm")
    assert (config.mode, config.hitl_enabled, config.max_budget_usd) == ("full-auto", False, 0.0)
    assert config.skills_dir == str(tmp_path / "home" / "skills")
    written = (tmp_path / "config.yaml").read_text()
    assert "api.example.com" not in written
    assert "sk-mine" not in written


def test_what_else_a_template_says_is_kept(tmp_path: Path) -> None:
    tree = configured(tmp_path, template=HOSTILE)
    assert at(tree, "research") == {"topic": "step sizes", "quality_threshold": 4.0}
    assert at(tree, "llm", "timeout_sec") == 60
    assert at(tree, "experiment", "mode") == "docker"
    assert (
        at(tree, "metaclaw_bridge", "prm", "enabled"),
        at(tree, "metaclaw_bridge", "prm", "votes"),
    ) == (True, 5)


def test_without_a_template_experiments_run_in_its_own_python_and_no_judge_is_a_gate(
    tmp_path: Path,
) -> None:
    config = loaded(tmp_path)
    assert (config.experiment_mode, config.python_path) == (
        "sandbox",
        str(tmp_path / "bin" / "python3"),
    )
    assert config.prm.enabled is False


def test_a_program_that_is_a_link_brings_the_python_it_was_installed_with(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    link = tmp_path / "links" / "researchclaw"
    link.parent.mkdir()
    link.symlink_to(tmp_path / "bin" / "researchclaw")
    linked = replace(job, settings=replace(job.settings, autoresearchclaw=link))
    assert at(configuration(linked, "x"), "experiment", "sandbox", "python_path") == str(
        tmp_path / "bin" / "python3"
    )


def test_a_program_without_a_python_beside_it_names_one_in_its_first_line_or_the_owner_does(
    tmp_path: Path,
) -> None:
    job = job_in(tmp_path)
    (tmp_path / "bin" / "python3").unlink()
    (tmp_path / "bin" / "researchclaw").write_text(f"#!{sys.executable}\n")
    assert at(configuration(job, "x"), "experiment", "sandbox", "python_path") == sys.executable
    (tmp_path / "bin" / "researchclaw").write_text("#!/usr/bin/env python3\n")
    with pytest.raises(ConfigError, match=r"experiment\.sandbox\.python_path"):
        configuration(job, "x")
    mine = {"experiment": {"sandbox": {"python_path": "/opt/python3"}}}
    assert (
        at(configured(tmp_path, template=mine), "experiment", "sandbox", "python_path")
        == "/opt/python3"
    )


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ({"experiment": {"mode": "agentic"}}, "past the proxy"),
        ({"runtime": {"skip_stages": [12]}}, "counted as done"),
        ({"runtime": {"inject_artifacts": {"stage-01/goal.md": "x"}}}, "counted as done"),
        ("- a list\n", "it holds no settings"),
        ("a: [", "can be read"),
    ],
)
async def test_a_template_that_would_spoil_a_measurement_is_refused_before_anything_is_started(
    tmp_path: Path, template: object, why: str
) -> None:
    settings = replace(job_in(tmp_path, template=template).settings, out=tmp_path / "out")
    with pytest.raises(ConfigError, match=why):
        await run_research(settings)
    assert not (tmp_path / "out").exists()


async def test_what_a_run_that_broke_off_has_left_is_not_taken_for_a_new_one(
    tmp_path: Path,
) -> None:
    left = tmp_path / "out" / "skills" / "seed-1" / "run-1" / "artefacts"
    left.mkdir(parents=True)
    (left / "pipeline_summary.json").write_text('{"final_stage": 23, "final_status": "done"}')
    settings = replace(job_in(tmp_path).settings, out=tmp_path / "out")
    with pytest.raises(ConfigError, match="was not finished"):
        await run_research(settings)


def test_its_lessons_become_skills_of_the_run_only_where_the_condition_has_skills(
    tmp_path: Path,
) -> None:
    with_skills, without = (configured(tmp_path, name) for name in ("skills", "baseline"))
    assert at(with_skills, "metaclaw_bridge", "lesson_to_skill", "enabled") is True
    assert at(with_skills, "metaclaw_bridge", "skills_dir") == str(tmp_path / "home" / "skills")
    assert at(without, "metaclaw_bridge", "lesson_to_skill", "enabled") is False


def test_the_tree_above_wins_and_what_it_does_not_say_stays() -> None:
    assert merged({"a": {"x": 1, "y": 2}, "b": 1}, {"a": {"x": 3}, "b": {"c": 4}}) == {
        "a": {"x": 3, "y": 2},
        "b": {"c": 4},
    }
    assert merged({"a": {"x": 1}}, {"a": None}) == {"a": {"x": 1}}, "an empty section says nothing"


def test_the_program_gets_no_key_but_the_proxys_and_a_home_of_its_own_and_reaches_the_proxy_directly(
    tmp_path: Path,
) -> None:
    owners = {
        "PATH": "/bin",
        "HOME": "/home/me",
        "OPENAI_API_KEY": "sk",
        "PRM_API_KEY": "sk",
        "ANTHROPIC_AUTH_TOKEN": "sk",
        "OPENAI_BASE_URL": "https://elsewhere/v1",
        "OPENAI_API_BASE": "https://elsewhere/v1",
        "METACLAW_HOME": "/home/me/.metaclaw",
        "http_proxy": "http://office:3128",
        "NO_PROXY": "intranet",
        "XDG_CACHE_HOME": "/caches",
    }
    near = "intranet,127.0.0.1,localhost"
    ours = {
        "HOME": str(tmp_path),
        KEY_ENV: "the-key",
        "no_proxy": near,
        "NO_PROXY": near,
        "PYTHONUNBUFFERED": "1",
    }
    still = {
        "PATH": "/bin",
        "http_proxy": "http://office:3128",
        "XDG_CACHE_HOME": "/caches",
        "DOCKER_CONFIG": "/home/me/.docker",
    }
    assert environment(owners, tmp_path, "the-key") == {**still, **ours}


def test_the_program_is_found_by_its_own_path_or_in_the_folder_it_was_installed_in(
    tmp_path: Path,
) -> None:
    program = tmp_path / ".venv" / "bin" / "researchclaw"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    with pytest.raises(ConfigError, match="there is no program researchclaw"):
        find_program(tmp_path)
    program.chmod(0o755)
    assert find_program(tmp_path) == find_program(program) == program


async def test_a_program_whose_python_is_gone_is_named(tmp_path: Path) -> None:
    job = job_in(tmp_path)
    (tmp_path / "bin" / "researchclaw").write_text("#!/gone/bin/python3\n")
    (tmp_path / "home").mkdir()
    with pytest.raises(ConfigError, match="researchclaw cannot be started"):
        await drive(job, lambda line: None)


def test_the_simulated_researcher_cannot_stand_behind_the_real_program(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a real model"):
        ResearchSettings(tmp_path, autoresearchclaw=tmp_path)


@each(
    ("prompt", "stage", "is_repair"),
    [
        ("Create a SMART research goal in markdown.\nTopic: x", Stage.TOPIC_INIT, False),
        (
            "Some preamble.\n\nDesign an experiment plan as YAML.\nRequired keys: a",
            Stage.EXPERIMENT_DESIGN,
            False,
        ),
        ("Generate at least 2 falsifiable hypotheses from synthesis.", Stage.HYPOTHESIS_GEN, False),
        (
            "The file `main.py` in the experiment project has validation errors. Fix ALL issues",
            Stage.CODE_GENERATION,
            True,
        ),
        ("The following experiment code crashed during execution.\n", Stage.CODE_GENERATION, True),
        (
            "Fix all validation issues in main.py and return corrected Python code only.",
            Stage.ITERATIVE_REFINE,
            True,
        ),
        ("Improve the experiment code based on prior run results.", Stage.ITERATIVE_REFINE, False),
        (
            "Make a PROCEED or PIVOT decision from analysis.\nAnalysis: Simulate peer review",
            Stage.RESEARCH_DECISION,
            False,
        ),
        (
            (
                "Revise the paper draft to address all review comments.\nReviews:\nCreate schedule"
                " JSON"
            ),
            Stage.PAPER_REVISION,
            False,
        ),
        (
            "Based on the analysis, make one of three decisions:\n- **PROCEED**",
            Stage.RESEARCH_DECISION,
            False,
        ),
        (
            "Rules of style.\n" * 1000 + "Write a full paper draft section by section",
            Stage.PAPER_DRAFT,
            False,
        ),
        (
            "Analyze run metrics.\nRun context:\nmain.py crashed during execution",
            Stage.RESULT_ANALYSIS,
            False,
        ),
        ("# EXPERIMENT REPAIR TASK\n\nThe last run failed.", Stage.ITERATIVE_REFINE, True),
        ("Output ONLY valid YAML. Nothing else.\nTopic: x", Stage.EXPERIMENT_DESIGN, True),
        (
            "Your generated code has CRITICAL issues that must be mended.",
            Stage.CODE_GENERATION,
            True,
        ),
        ("Fix the runtime error in `main.py` at line 3.", Stage.CODE_GENERATION, True),
        (
            "What it printed: " + "x" * 300 + "it crashed during execution\n\nAnalyze run metrics",
            Stage.RESULT_ANALYSIS,
            False,
        ),
        (
            "CRITICAL LENGTH REQUIREMENT: 900 words.\n\nRevise the paper draft",
            Stage.PAPER_REVISION,
            True,
        ),
        (
            "Rules.\nYou are continuing a paper. So far:\n\nTHE PREVIOUS RESPONSE VIOLATED a rule",
            Stage.PAPER_DRAFT,
            True,
        ),
    ],
)
def test_a_request_is_known_by_the_task_that_comes_first_in_it(
    prompt: str, stage: Stage, is_repair: bool
) -> None:
    found = classify(prompt)
    assert found is not None
    assert (found.stage, found.is_repair) == (stage, is_repair)


@each(
    ("system", "prompt", "stage", "is_repair"),
    [
        (
            "You are an expert academic paper analyst.  Decide.",
            "Research topic: x\nHypothesis: y",
            Stage.RESULT_ANALYSIS,
            False,
        ),
        (
            "You are an expert scientific visualization advisor.",
            "Research topic: x\nDomain: y",
            Stage.RESULT_ANALYSIS,
            False,
        ),
        (
            "You are an expert scientific visualization programmer.",
            "Style preamble: a",
            Stage.RESULT_ANALYSIS,
            False,
        ),
        (
            "You are an expert scientific visualization programmer.",
            "Chart type: bar\n\nPREVIOUS ATTEMPT FAILED REVIEW. Fix these issues:",
            Stage.RESULT_ANALYSIS,
            True,
        ),
        (
            "You are an expert reviewer of scientific figures.",
            "Chart title: Create schedule JSON",
            Stage.RESULT_ANALYSIS,
            False,
        ),
        (
            "You are a meticulous experiment code reviewer.",
            "Is it right?",
            Stage.CODE_GENERATION,
            False,
        ),
        (
            "You are a scientific code reviewer checking alignment.",
            "Topic: x",
            Stage.CODE_GENERATION,
            False,
        ),
        (
            "You are a code reviewer.",
            "Examine this experiment code: x",
            Stage.CODE_GENERATION,
            False,
        ),
    ],
)
def test_figure_agents_and_code_reviewers_are_known_by_their_role(
    system: str, prompt: str, stage: Stage, is_repair: bool
) -> None:
    found = classify(prompt, system)
    assert found is not None
    assert (found.stage, found.is_repair) == (stage, is_repair)


def test_a_request_that_is_not_known_is_not_guessed() -> None:
    assert classify("Say hello.") is None
    assert classify("x" * 30_000 + "Create a SMART research goal") is None


def test_a_recorded_stage_request_of_the_real_program_is_recognised(shared: Path) -> None:
    captures = shared / "captures"
    found = {}
    for path in sorted(captures.glob("autoresearchclaw-*__stage_call_*.json")):
        (asked,) = [
            one["content"]
            for one in json.loads(path.read_text())["body"]["messages"]
            if one["role"] == "user"
        ]
        found[path.stem.partition("__")[2]] = classify(asked)
    if not found:
        pytest.skip(f"no captures of AutoResearchClaw in {captures}")
    assert {name: one.stage if one else None for name, one in found.items()} == {
        "stage_call_json_mode": Stage.SEARCH_STRATEGY,
        "stage_call_with_skill_overlay": Stage.TOPIC_INIT,
    }
