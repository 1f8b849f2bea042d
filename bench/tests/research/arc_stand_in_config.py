"""How AutoResearchClaw reads its configuration, as far as a run shows it: what it cannot do
without, what it refuses, what it takes for granted. Keys it does not know it passes over."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

REQUIRED = (
    "project.name",
    "research.topic",
    "runtime.timezone",
    "notifications.channel",
    "knowledge_base.root",
    "llm.base_url",
    "llm.api_key_env",
)
KNOWN = {
    "project.mode": ("docs-first", "semi-auto", "full-auto"),
    "knowledge_base.backend": ("markdown", "obsidian"),
    "llm.wire_api": ("chat_completions", "responses"),
    "experiment.mode": (
        "simulated",
        "sandbox",
        "docker",
        "ssh_remote",
        "colab_drive",
        "agentic",
        "collider_agent",
        "biology_agent",
        "stat_agent",
    ),
    "experiment.metric_direction": ("minimize", "maximize"),
    "experiment.cli_agent.provider": ("llm", "claude_code", "codex"),
}


@dataclass(frozen=True)
class Judge:
    """Its own gate: three votes by default, at four stages."""

    enabled: bool
    api_base: str
    key: str
    model: str
    votes: int
    temperature: float
    gate_stages: tuple[int, ...]


@dataclass(frozen=True)
class Config:
    topic: str
    mode: str
    skip_stages: tuple[int, ...]
    provider: str
    base_url: str
    wire_api: str
    key: str
    model: str
    fallback_models: tuple[str, ...]
    reviewer: tuple[str, str]
    experiment_mode: str
    python_path: str
    opencode: bool
    image_model: bool
    coder: str
    max_budget_usd: float
    hitl_enabled: bool
    bridge_enabled: bool
    proxy_url: str
    skills_dir: str
    fallback_url: str
    fallback_key: str
    prm: Judge
    lessons_enabled: bool
    most_skills: int


def load(path: Path, topic: str | None = None) -> Config:
    """What a run would go by. Raises ValueError as the program does, with every fault there is."""
    tree = yaml.safe_load(path.read_text()) or {}
    if not isinstance(tree, dict):
        raise ValueError(f"Config root must be a mapping, got {type(tree).__name__}")
    faults = [f"Missing required field: {key}" for key in REQUIRED if _is_blank(_at(tree, key))]
    faults += [
        f"Invalid {key}: {_at(tree, key)}"
        for key, words in KNOWN.items()
        if _at(tree, key) not in (None, "", *words)
    ]
    if faults:
        raise ValueError("; ".join(faults))
    return _parsed(tree, topic)


def _parsed(tree: dict[str, Any], topic: str | None) -> Config:
    llm, bridge, experiment = (
        tree.get(name) or {} for name in ("llm", "metaclaw_bridge", "experiment")
    )
    sandbox, coder, figures = (
        experiment.get(name) or {} for name in ("sandbox", "cli_agent", "figure_agent")
    )
    lessons = bridge.get("lesson_to_skill") or {}
    budget = coder.get("max_budget_usd")
    return Config(
        topic=topic or tree["research"]["topic"],
        mode=tree["project"].get("mode", "docs-first"),
        skip_stages=tuple(tree["runtime"].get("skip_stages") or ()),
        provider=llm.get("provider", "openai-compatible"),
        base_url=llm["base_url"],
        wire_api=llm.get("wire_api", "chat_completions"),
        key=str(llm.get("api_key") or os.environ.get(llm["api_key_env"], "") or ""),
        model=llm.get("primary_model") or "gpt-4o",
        fallback_models=tuple(llm.get("fallback_models") or ()),
        reviewer=(llm.get("reviewer_model") or "", llm.get("reviewer_base_url") or ""),
        experiment_mode=experiment.get("mode", "simulated"),
        python_path=sandbox.get("python_path", ".venv/bin/python3"),
        opencode=bool((experiment.get("opencode") or {}).get("enabled", True)),
        image_model=bool(figures.get("nano_banana_enabled", True)),
        coder=coder.get("provider", "llm"),
        max_budget_usd=5.0 if budget is None else float(budget),
        hitl_enabled=bool((tree.get("hitl") or {}).get("enabled", False)),
        bridge_enabled=bool(bridge.get("enabled", False)),
        proxy_url=bridge.get("proxy_url", "http://localhost:30000"),
        skills_dir=bridge.get("skills_dir", "~/.metaclaw/skills"),
        fallback_url=bridge.get("fallback_url", ""),
        fallback_key=bridge.get("fallback_api_key", ""),
        prm=_judge(bridge.get("prm") or {}),
        lessons_enabled=bool(lessons.get("enabled", True)),
        most_skills=int(lessons.get("max_skills_per_run", 3)),
    )


def _judge(told: dict[str, Any]) -> Judge:
    return Judge(
        enabled=bool(told.get("enabled", False)),
        api_base=told.get("api_base", ""),
        key=str(told.get("api_key") or os.environ.get(told.get("api_key_env", ""), "") or ""),
        model=told.get("model", "gpt-5.4"),
        votes=int(told.get("votes", 3)),
        temperature=float(told.get("temperature", 0.6)),
        gate_stages=tuple(told.get("gate_stages", (5, 9, 15, 20))),
    )


def _at(tree: dict[str, Any], path: str) -> Any:
    value: Any = tree
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _is_blank(value: object) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())
