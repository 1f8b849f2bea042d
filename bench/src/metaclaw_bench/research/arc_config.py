"""What AutoResearchClaw is run with: a configuration in which whatever asks a model asks the proxy,
and an environment.

Its loader takes the keys it knows and passes over all others, so what shuts a door of a newer
version does no harm in an older one.

Traps of its bridge, met here: the address has no `/v1` for stages and gets one for the session's
end, which comes without credentials (so the key is in the address); and any HTTP error makes it go
to `fallback_url`, which therefore is the proxy too."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import yaml

from metaclaw.plugin import ConfigError
from metaclaw_bench.json_types import Json
from metaclaw_bench.research.settings import Job, ResearchSettings

PROGRAM: Final = "researchclaw"
KEY_ENV: Final = "METACLAW_RESEARCH_KEY"
_PLACES: Final = (PROGRAM, f"bin/{PROGRAM}", f".venv/bin/{PROGRAM}", f"venv/bin/{PROGRAM}")
_AGENT_MODES: Final = ("agentic", "collider_agent", "biology_agent", "stat_agent")
_SKIPPING: Final = ("skip_stages", "inject_artifacts")
_SECOND_MODEL: Final = (
    "critic_model",
    *(f"reviewer_{one}" for one in ("model", "provider", "base_url", "api_key", "api_key_env")),
)
_DOORS: Final = ("_API_KEY", "_AUTH_TOKEN", "_BASE_URL", "_API_BASE")
_NEAR: Final = "127.0.0.1,localhost"
_OWNERS: Final = {"XDG_CACHE_HOME": ".cache", "DOCKER_CONFIG": ".docker"}
_USUAL: Final[Mapping[str, Json]] = {
    "runtime": {"timezone": "UTC"},
    "notifications": {"channel": "console"},
    "knowledge_base": {"backend": "markdown"},
    "experiment": {"mode": "sandbox"},
    # Its own gate by a judge. Where the owner wants it, the judge is asked through the proxy, too.
    "metaclaw_bridge": {"prm": {"enabled": False}},
}


def find_program(path: Path) -> Path:
    """Its command: the file named, or the usual place of it below a folder. Raises ConfigError."""
    candidates = [path] if path.is_file() else [path / place for place in _PLACES]
    found = next((one for one in candidates if _is_program(one)), None)
    if found is None:
        raise ConfigError(
            f"there is no program {PROGRAM} at {path}: install AutoResearchClaw, and name its"
            " command or the folder it is in"
        )
    return found.absolute()


def read_template(path: Path | None) -> dict[str, Json]:
    """What the owner's configuration says. Raises ConfigError where it cannot be used here."""
    if path is None:
        return {}
    try:
        value = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(
            f"{path} is no configuration of AutoResearchClaw that can be read: {error}"
        ) from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} is no configuration of AutoResearchClaw: it holds no settings")
    _refuse(value)
    return value


def foundation(settings: ResearchSettings) -> tuple[Path, dict[str, Json]]:
    """The program, and what holds for all of its runs: what is usual, and the owner's template.
    Raises ConfigError.
    """
    assert settings.autoresearchclaw is not None
    program = find_program(settings.autoresearchclaw)
    tree = merged(_USUAL, read_template(settings.template))
    return program, merged(
        {"experiment": {"sandbox": {"python_path": _python_for(tree, program)}}}, tree
    )


def configuration(job: Job, topic: str) -> dict[str, Json]:
    """The configuration of a run: whatever leads to a model leads to the proxy, whatever the
    template says.
    """
    return merged(foundation(job.settings)[1], _ours(job, topic))


def _ours(job: Job, topic: str) -> dict[str, Json]:
    address = f"{job.front.api.url}/k/{job.front.api.key}"
    return {
        "project": {
            "name": f"metaclaw-bench-{job.condition.name}-{job.seed}-{job.number}",
            "mode": "full-auto",
        },
        "research": {"topic": topic},
        "llm": {
            "provider": "openai-compatible",
            "base_url": f"{address}/v1",
            "wire_api": "chat_completions",
            "api_key_env": KEY_ENV,
            # Where there is one, it is taken before the environment's; the owner's own has no
            # business here.
            "api_key": "",
            "primary_model": job.front.model,
            "fallback_models": [],
            # A second model for reviews would be asked at an address of its own, and would not be
            # the one under test.
            **dict.fromkeys(_SECOND_MODEL, ""),
        },
        "metaclaw_bridge": {
            "enabled": True,
            "proxy_url": address,
            "skills_dir": str(job.home / "skills"),
            "fallback_url": f"{address}/v1",
            "fallback_api_key": job.front.api.key,
            "prm": {
                "api_base": f"{address}/v1",
                "api_key": job.front.api.key,
                "model": job.front.model,
            },
            "lesson_to_skill": {"enabled": job.condition.skills},
        },
        "experiment": {
            # Neither another agent nor an image model: they would ask providers of their own, past
            # the proxy.
            "opencode": {"enabled": False},
            "repair": {"use_opencode": False},
            # The budget is the whole run's, five dollars by its own price list if nobody says
            # otherwise; then it just stops.
            "cli_agent": {"provider": "llm", "max_budget_usd": 0},
            "figure_agent": {"nano_banana_enabled": False},
        },
        # A person who is asked outranks --auto-approve, and there is none here.
        "hitl": {"enabled": False},
        "knowledge_base": {"root": str(job.folder / "knowledge")},
    }


def merged(below: Mapping[str, Json], above: Mapping[str, Json]) -> dict[str, Json]:
    """Two trees of settings as one; where both say something, the one above counts. A section left
    empty says nothing.
    """
    tree = dict(below)
    for name, value in above.items():
        under = tree.get(name)
        if isinstance(under, dict) and (value is None or isinstance(value, dict)):
            tree[name] = merged(under, value or {})
        else:
            tree[name] = value
    return tree


def environment(env: Mapping[str, str], home: Path, key: str) -> dict[str, str]:
    """The owner's environment without any provider's key or address and without our own settings,
    with a home of the run's own.

    What was downloaded once and how Docker is reached stay those of the owner's home. The proxy is
    never asked through another proxy, and what the program prints is in its log even if it is
    killed."""
    kept = {
        name: value
        for name, value in env.items()
        if not name.endswith(_DOORS) and not name.startswith("METACLAW_")
    }
    for name, folder in _OWNERS.items() if "HOME" in env else ():
        kept.setdefault(name, f"{env['HOME']}/{folder}")
    direct = ",".join(filter(None, (kept.get("no_proxy") or kept.get("NO_PROXY"), _NEAR)))
    return {
        **kept,
        "HOME": str(home),
        KEY_ENV: key,
        "no_proxy": direct,
        "NO_PROXY": direct,
        "PYTHONUNBUFFERED": "1",
    }


def _refuse(template: Mapping[str, Json]) -> None:
    mode = _section(template, "experiment").get("mode")
    if mode in _AGENT_MODES:
        raise ConfigError(
            f"experiment.mode {mode} lets another agent experiment, past the proxy; choose sandbox"
            " or docker in the template"
        )
    runtime = _section(template, "runtime")
    if skipped := [name for name in _SKIPPING if runtime.get(name)]:
        raise ConfigError(
            f"runtime.{skipped[0]} in the template: a stage that nobody did would be counted as"
            " done; leave it out"
        )


def _section(tree: Mapping[str, Json], name: str) -> Mapping[str, Json]:
    value = tree.get(name)
    return value if isinstance(value, dict) else {}


def _python_for(tree: Mapping[str, Json], program: Path) -> Json:
    """Which Python runs experiments: the owner's choice, else the one the program itself was
    installed for. Raises ConfigError.
    """
    experiment = _section(tree, "experiment")
    chosen = _section(experiment, "sandbox").get("python_path")
    if chosen or experiment.get("mode") != "sandbox":
        return chosen
    found = next((one for one in _interpreters(program) if _is_program(one)), None)
    if found is None:
        raise ConfigError(
            f"no Python lies beside {program}: say which one runs experiments, as"
            " experiment.sandbox.python_path"
        )
    return str(found)


def _interpreters(program: Path) -> Iterator[Path]:
    """Where a program's own Python may lie: beside it, beside what it is a link to (as installers
    of programs make), or in its first line."""
    yield program.with_name("python3")
    yield program.resolve().with_name("python3")
    with program.open("rb") as file:
        first = file.readline(512)
    if first.startswith(b"#!/") and b"python" in first:
        yield Path(os.fsdecode(first[2:].strip()))


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
