"""Other proxies to compare with, each in its own virtual environment, tuned to do as little as
their settings allow.
"""

import json
import subprocess
import sys
from pathlib import Path

from .bodies import MODEL
from .library import write_library
from .targets import KEY, Launch, Recipe
from .toolchain import MissingToolError

ENVIRONMENTS = Path(__file__).parent.parent / ".peers"

# The authors' package imports torch and openai without naming them.
REQUIREMENTS = {
    "litellm": ("litellm[proxy]",),
    "authors": ("torch==2.13.0", "aiming-metaclaw==0.4.1", "openai", "transformers"),
}
_DISTRIBUTIONS = {"litellm": "litellm", "authors": "aiming-metaclaw"}


def installed_version(name: str) -> str | None:
    """The version of a peer in its environment, None if it is not there."""
    folder = _DISTRIBUTIONS[name].replace("-", "_")
    found = sorted((ENVIRONMENTS / name).glob(f"lib/python*/site-packages/{folder}-*.dist-info"))
    return found[-1].name.removeprefix(f"{folder}-").removesuffix(".dist-info") if found else None


def install(name: str) -> None:
    """Installs a peer into its own environment; takes minutes, needs the network."""
    home = ENVIRONMENTS / name
    if not (home / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    subprocess.run(
        [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", *REQUIREMENTS[name]],
        check=True,
    )


def _program(name: str, command: str) -> str:
    program = ENVIRONMENTS / name / "bin" / command
    if installed_version(name) is None or not program.exists():
        raise MissingToolError(
            f"{name} is not installed: run `python -m benchmarks.proxy --install-peers`"
        )
    return str(program)


def litellm(home: Path, port: int, provider_port: int) -> Launch:
    """LiteLLM's proxy with one worker, one key, no retries, no logging, no spend tracking."""
    deployment = {
        "model": f"openai/{MODEL}",
        "api_base": f"http://127.0.0.1:{provider_port}/v1",
        "api_key": "sk-bench",
    }
    config = {
        "model_list": [{"model_name": MODEL, "litellm_params": deployment}],
        "litellm_settings": {
            "num_retries": 0,
            "telemetry": False,
            "set_verbose": False,
            "turn_off_message_logging": True,
        },
        "general_settings": {
            "master_key": KEY,
            "disable_spend_logs": True,
            "disable_error_logs": True,
        },
        "router_settings": {"num_retries": 0, "disable_cooldowns": True},
    }
    settings = home / "config.yaml"
    settings.write_text(json.dumps(config, indent=1))  # JSON is YAML, and needs no library here
    env = {
        "LITELLM_LOG": "ERROR",
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "PYTHONDONTWRITEBYTECODE": "",
    }
    command = [
        "--config",
        str(settings),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--num_workers",
        "1",
        "--telemetry",
        "False",
    ]
    return Launch([_program("litellm", "litellm"), *command], env)


def authors(skills: int) -> Recipe:
    """The paper's authors' own proxy, serving from a provider with the same library of skills and
    no learning.
    """

    def recipe(home: Path, port: int, provider_port: int) -> Launch:
        program = Path(_program("authors", "metaclaw"))
        base = home / ".metaclaw"
        base.mkdir()
        write_library(base / "skills", skills)
        endpoint = {
            "model_id": MODEL,
            "api_base": f"http://127.0.0.1:{provider_port}/v1",
            "api_key": "sk-bench",
        }
        config = {
            "mode": "skills_only",
            "llm": {"provider": "custom", "auth_method": "api_key", **endpoint},
            "proxy": {"host": "127.0.0.1", "port": port, "api_key": KEY},
            "skills": {
                "enabled": True,
                "dir": str(base / "skills"),
                "retrieval_mode": "template",
                "auto_evolve": False,
            },
            "rl": {"enabled": False},
            "memory": {"enabled": False},
            "scheduler": {"enabled": False},
        }
        (base / "config.yaml").write_text(json.dumps(config, indent=1))
        # It runs `openclaw` at start and would rewrite that agent's settings: with this PATH it
        # finds none.
        env = {
            "PATH": str(program.parent),
            "HF_HUB_OFFLINE": "1",
            "WANDB_DISABLED": "true",
            "PYTHONDONTWRITEBYTECODE": "",
        }
        return Launch([str(program), "start", "--mode", "skills_only", "--port", str(port)], env)

    return recipe


def recipes(skills: int) -> dict[str, Recipe]:
    """Every peer there is, by name."""
    return {"litellm": litellm, "authors": authors(skills)}
