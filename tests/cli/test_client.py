"""Commands as clients of the API: light beside a running proxy, the same without one, and plain
about a proxy of another version.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from metaclaw import __version__
from metaclaw.domain.ids import new_session_id
from tests.cli.program import metaclaw
from tests.cli.recorded import candidate, keep, record, skill, turn
from tests.cli.scripted import scripted
from tests.support.program import NOT_LEARNING, UNREACHABLE, Program

HEAVY = (
    "sqlalchemy",
    "pydantic",
    "msgspec",
    "anyio",
    "asyncio",
    *(
        f"metaclaw.{package}"
        for package in ("api", "app", "config", "learn", "proxy", "skills", "store", "train")
    ),
)
STATUS = {
    "version": __version__,
    "mode": "skills_only",
    "uptime_s": 1.0,
    "degraded": False,
    "problems": [],
    "summary": [],
    "questions": [],
    "counts": {"candidates": None},
    "learning": {"pending": None},
}
WHY = {
    **{"turn": "t_1", "kind": "main", "at": "2026-11-16T00:00:00+00:00"},
    "scope": {"user": None, "workspace": None},
    **{name: [] for name in ("considered", "placed", "listed", "not_placed")},
    **{name: [] for name in ("reminded", "reminders_left_out", "enforced", "broken", "forgotten")},
}
ANSWERS: dict[str, tuple[int, dict[str, Any]]] = {
    "GET /api/status": (200, STATUS),
    "GET /api/rules": (200, {"rules": [], "skipped": []}),
    "GET /api/lessons": (200, {"lessons": []}),
    "GET /api/skills": (200, {"folder": "/skills", "skills": [], "skipped": []}),
    "GET /api/sessions?limit=20&kind=main&detail=verdicts": (
        200,
        {"sessions": [], "total": 0, "hidden": 0},
    ),
    "GET /api/turns": (200, {"turns": [{"id": "t_1", "session": "s_1"}]}),
    "GET /api/turns/t_1/why": (200, WHY),
    "GET /api/cost?days=7": (200, {"budget": {"words": ["nothing used"]}, "days": []}),
    "GET /api/candidates?limit=50": (200, {"candidates": []}),
    "GET /api/policy?limit=20": (200, {"policy_version": 0, "versions": []}),
    "GET /api/enforce": (200, {"on": True, "held_rules": []}),
    "GET /api/windows": (200, {"open": False, "reason": "none", "signals": []}),
    "POST /api/undo": (200, {"undone": {"reason": "x"}, "removed": [], "restored": []}),
    "POST /api/feedback": (200, {"turn": "t_1", "verdict": None}),
}
COMMANDS = (
    *(
        "status",
        "rules list",
        "lessons list",
        "skills list",
        "sessions list",
        "why --last",
        "cost",
        "enforce",
    ),
    *("candidates list", "policy list", "windows", "undo", "feedback --last pass"),
)


def test_a_command_beside_a_running_proxy_imports_nothing_of_it(home: Path) -> None:
    script = (
        "import sys; from metaclaw.cli import main\n"
        f"codes = [main(line.split()) for line in {COMMANDS!r}]\n"
        f"print(codes, [name for name in sys.modules if name in {HEAVY!r}])"
    )
    with scripted(home, ANSWERS):
        done = subprocess.run(
            [sys.executable, "-c", script],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            env={**os.environ, "METACLAW_HOME": str(home)},
        )
    assert done.stdout.splitlines()[-1] == f"{[0] * len(COMMANDS)} []", done.stderr


def files_of(home: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(home)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in home.rglob("*")
        if path.is_file()
    }


def test_reading_without_a_proxy_touches_no_file_of_the_home(home: Path) -> None:
    one = turn(new_session_id())
    record(home, one)
    keep(home, candidate(skill("uses-a-host"), one.id))
    metaclaw("rules", "add", "Use uv.")
    edited = home / "skills" / "by-hand" / "SKILL.md"
    edited.parent.mkdir()
    edited.write_text("---\nname: by-hand\ndescription: When asked.\n---\n\nAnswer.\n")
    before = files_of(home)
    for line in (
        *("rules", "rules show use-uv", "rules list --retired", "rules export", "rules examples"),
        *("skills list", "skills show by-hand", "skills history", "sessions list", "enforce"),
        *("sessions show --last", "sessions search words", "why --last", "cost", "policy show"),
        *("candidates list", "candidates show c_uses-a-host", "policy list"),
    ):
        done = metaclaw(*line.split())
        assert done.code == 0, (line, done.err)
        assert files_of(home) == before, line


@pytest.mark.parametrize(
    ("answers", "unknown"),
    [
        (
            {"GET /api/rules": (404, {"error": {"message": "nothing is served at /api/rules"}})},
            "this request (GET /api/rules: nothing is served at /api/rules)",
        ),
        (
            {"GET /api/rules": (405, {"error": {"message": "/api/rules takes POST, not GET"}})},
            "this request (GET /api/rules: /api/rules takes POST, not GET)",
        ),
        ({"GET /api/rules": (200, {"rules": []})}, "the field skipped"),
    ],
)
def test_a_proxy_of_another_version_is_named_with_the_remedy(
    home: Path, answers: dict[str, tuple[int, dict[str, Any]]], unknown: str
) -> None:
    with scripted(home, {"GET /": (200, {"version": "0.1.0"}), **answers}):
        done = metaclaw("rules", "list")
    assert (done.code, done.err) == (
        1,
        f"metaclaw: the running proxy is version 0.1.0 and does not know {unknown}; restart it"
        " with: metaclaw restart\n",
    )


def test_a_command_prints_the_same_with_and_without_a_proxy(home: Path) -> None:
    one = turn(new_session_id())
    record(home, one)
    keep(home, candidate(skill("uses-a-host"), one.id))
    for text in ("Use uv.", "Never force-push."):
        metaclaw("rules", "add", text)
    metaclaw("rules", "remove", "use-uv", "--yes")
    lines = (
        *("rules", "rules show never-force-push", "rules list --retired", "skills list"),
        *("skills show never-force-push", "skills history", "sessions list", "why --last"),
        *("sessions show --last", "candidates list", "candidates show c_uses-a-host", "enforce"),
        "policy list",
    )
    alone = {line: metaclaw(*line.split(), "--json") for line in lines}
    served = Program(home, UNREACHABLE, env=NOT_LEARNING).start()
    try:
        assert {line: metaclaw(*line.split(), "--json") for line in lines} == alone
        assert metaclaw("undo").out == (
            "Undone: removed the rule use-uv.\n  + use-uv (rule, in force again): Use uv.\n"
        )
    finally:
        served.stop()
    assert [one["name"] for one in metaclaw("rules", "--json").facts["rules"]] == [
        "never-force-push",
        "use-uv",
    ]
