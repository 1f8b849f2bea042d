"""Writes a skill library of any size, always the same one; a few of its skills suit the benchmark's
prompt.
"""

from collections.abc import Iterator
from pathlib import Path

# Stands in every body, so that a request the provider got shows whether a skill was placed in it.
SIGN = "Kept by the benchmark library."

_PLANTED = (
    (
        "alembic-required-column",
        "adding a required column to a populated table in an alembic migration",
    ),
    ("alembic-backfill-in-batches", "filling old rows in batches during an alembic migration"),
    (
        "alembic-test-the-downgrade",
        "writing a test that runs the upgrade and the downgrade of an alembic migration",
    ),
)
_THINGS = (
    "nginx", "redis", "kafka", "terraform", "kubernetes", "react", "webpack", "pandas", "numpy", "ffmpeg", "latex", "excel", "grpc",
    "graphql", "celery", "rabbitmq", "prometheus", "grafana", "ansible", "docker", "jenkins", "gradle", "swift", "kotlin", "unity",
    "blender", "calendar", "invoice", "newsletter", "podcast", "recipe", "travel", "garden", "budget", "lecture", "interview",
    "contract", "museum", "bicycle", "telescope",
)  # fmt: skip
_TASKS = (
    "setup", "upgrade", "backup", "restore", "profiling", "logging", "alerting", "caching", "packaging", "signing", "translation",
    "indexing", "archiving", "scheduling", "reviewing", "formatting", "validation", "throttling", "monitoring", "documenting",
    "estimating", "debugging", "exporting", "importing", "cleaning",
)  # fmt: skip


def skills(count: int) -> Iterator[tuple[str, str]]:
    """Yields `count` names with their descriptions, those that suit the prompt first."""
    yield from _PLANTED[:count]
    for i in range(count - len(_PLANTED)):
        thing, task = _THINGS[i % len(_THINGS)], _TASKS[i // len(_THINGS) % len(_TASKS)]
        part = i // (len(_THINGS) * len(_TASKS))
        yield (
            f"{thing}-{task}-{part}",
            f"{task} for {thing}, case {part}, when somebody asks for {thing} {task}",
        )


def _text(name: str, description: str) -> str:
    topic = name.replace("-", " ")
    return f"""---
name: {name}
description: Use for {description}.
category: coding
---

# {topic.capitalize()}

{SIGN} It covers {description}.

1. **Look first.** Write down what the present state of {topic} is and what must not change.
2. **Make the smallest step.** One change at a time, each of which can be taken back.
3. **Check.** Run what proves the step, read its whole output, and only then go on.
4. **Tell.** Say in two lines what was done for {topic} and what is left.

Avoid doing several of these at once: when {topic} breaks, nobody can tell which step it was.
"""


def write_library(folder: Path, count: int) -> None:
    """Writes `count` skills as `folder/<name>/SKILL.md`."""
    for name, description in skills(count):
        home = folder / name
        home.mkdir(parents=True)
        (home / "SKILL.md").write_text(_text(name, description))
