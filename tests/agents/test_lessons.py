"""Lessons with the real programs: what failed in two sessions of a project fails in no third one.

The agents run real commands in a real project. The provider is scripted: it makes the call that
fails and then the one that works, and the latter at once where the lesson stands in its prompt.
`make test-agents` runs them; with METACLAW_TEST_FIGURES, the figures are added to that file."""

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from tests.support.agent_schedule import REAL_AGENTS, SHELLS, RealAgent
from tests.support.program import PATIENCE_S, Program, providers_toml
from tests.support.strict_provider import Answer, Json, StrictProvider, read_turns

COMMANDS = os.environ.get("METACLAW_TEST_AGENTS", "")
FIGURES = os.environ.get("METACLAW_TEST_FIGURES", "")
AGENTS = {**REAL_AGENTS, "qwen-code": RealAgent("qwen-code", "qwen", "chat", ("--yolo", "-p"), ())}
MODEL = "scripted"
LIMIT_S = 300
TASKS = (
    "Print the report and see that all targets run.",
    "We need the numbers for Monday. Make sure that all is well.",
    "What does the ledger say today?",
    "Run what there is to run.",
)
pytestmark = pytest.mark.of_target("test-agents", bool(COMMANDS))


@dataclass(frozen=True)
class Failure:
    """A command that fails in the project, the one that works, and the lesson about it."""

    failing: str
    working: str
    lesson: str


FAILURES = (
    Failure(
        "python3 report.py",
        "PYTHONPATH=lib python3 report.py",
        "Run report.py with PYTHONPATH=lib, because its modules are there.",
    ),
    Failure("make tests", "make check", "The target of make is check: run `make check`."),
)


@dataclass
class LearningProvider(StrictProvider):
    """The scripted model in all its roles."""

    ran: list[str] = field(default_factory=list)
    """The commands that the agent was told to run in the present session."""
    evolved: list[str] = field(default_factory=list)

    def reply(
        self, wire: str, request: Json, headers: dict[str, str]
    ) -> tuple[int, Json | list[bytes]]:
        self.bodies.append((wire, request, headers))
        purpose = headers.get("x-metaclaw-purpose")
        identity = f"answer{len(self.bodies):05d}"
        tools = [
            str(tool.get("name") or tool.get("function", {}).get("name"))
            for tool in request.get("tools") or []
        ]
        shell = next((name for name in tools if name in SHELLS), "")
        if purpose is not None or not shell:
            words = self._own(purpose, json.dumps(request)) if purpose else "A title"
            return 200, self.written(wire, Answer(identity, "", "", words, []), request)
        done = sum(turn["role"] == "tool" for turn in read_turns(wire, request))
        command = self._next(done, json.dumps(request))
        if not command:
            return 200, self.written(wire, Answer(identity, "", "", "All done.", []), request)
        calls = [(f"call_{len(self.bodies):05d}_abcdefgh", command)]
        answer = Answer(identity, "", "", "", calls, shell, SHELLS[shell])
        return 200, self.written(wire, answer, request)

    def _next(self, done: int, prompt: str) -> str:
        """The next command of the session, which has made so many calls; none if it is over."""
        del self.ran[done:]
        for failure in FAILURES:
            if failure.working not in self.ran:
                has_failed = failure.failing in self.ran
                knows = has_failed or json.dumps(failure.lesson)[1:-1] in prompt
                self.ran.append(failure.working if knows else failure.failing)
                return self.ran[-1]
        return ""

    def _own(self, purpose: str, prompt: str) -> str:
        """The answer to a question of the program."""
        if purpose == "evolve":
            self.evolved.append(prompt)
            asked = [one for one in FAILURES if one.working in prompt]
            lines = [
                {"name": f"line-{place}", "kind": "lesson", "trigger": "Always", "text": one.lesson}
                for place, one in enumerate(asked)
            ]
            return json.dumps({"skills": lines})
        if purpose == "listen":
            return json.dumps({"items": [], "correction": None})
        if purpose == "confirm":
            return json.dumps(
                {"by_person": True, "lasting": True, "relation": "new", "target": None}
            )
        return json.dumps({"outcome": "unknown", "score": 0.0, "reason": "scripted", "scores": []})


@pytest.fixture
def provider() -> Iterator[LearningProvider]:
    running = LearningProvider()
    running.start()
    yield running
    running.stop()


@pytest.fixture
def program(provider: LearningProvider, tmp_path: Path) -> Iterator[Program]:
    user = tmp_path / "user"
    user.mkdir()
    env = {
        "HOME": str(user),
        "PATH": f"{COMMANDS}{os.pathsep}{os.environ['PATH']}",
        "NO_COLOR": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    asked = f'provider = "chatonly"\nmodel = "{MODEL}"\n'
    config = f"{providers_toml(provider.url)}[judge]\n{asked}[evolver]\n{asked}"
    running = Program(tmp_path / "home", config, env=env)
    # The user's own variables would outrank what is tested.
    foreign = ("ANTHROPIC_", "OPENAI_", "CLAUDE", "CODEX_", "XDG_")
    for name in [name for name in running.env if name.startswith(foreign) and name not in env]:
        running.env.pop(name)
    yield running.start()
    running.stop()


def make_project(folder: Path) -> Path:
    """A project in which both commands fail at first."""
    (folder / "lib").mkdir(parents=True)
    (folder / "report.py").write_text("import ledger\n\nprint(ledger.VALUE)\n")
    (folder / "lib" / "ledger.py").write_text("VALUE = 7\n")
    (folder / "Makefile").write_text("check:\n\t@echo all checks passed\n")
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    return folder


def session(
    agent: RealAgent, program: Program, provider: LearningProvider, project: Path, task: str
) -> int:
    """One run of the agent, and the end of its session; how many calls failed."""
    provider.ran.clear()
    agent.prepare(program.env, project)
    command = [agent.program, *agent.first, task]
    if "held-rules" in command:  # a session of its own
        command[command.index("held-rules")] = f"task-{len(provider.bodies)}"
    done = subprocess.run(
        command,
        env={**program.env, "PWD": str(project)},
        cwd=project,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, (done.stdout[-500:], done.stderr[-1500:])
    assert {one.working for one in FAILURES} <= set(provider.ran), done.stdout[-1000:]
    for one in program.get("/api/sessions")["sessions"]:
        ended = f"{program.url}/api/sessions/{one['id']}/end"
        httpx.post(ended, headers=program.auth, timeout=PATIENCE_S)
    return sum(one.failing in provider.ran for one in FAILURES)


@pytest.mark.parametrize("name", AGENTS)
def test_what_failed_in_two_sessions_does_not_fail_in_the_third(
    name: str, program: Program, provider: LearningProvider, tmp_path: Path
) -> None:
    agent = AGENTS[name]
    if not (Path(COMMANDS) / agent.program).exists():
        pytest.skip(f"{name} is not installed in {COMMANDS}")
    connected = program.command("agents", "connect", name, "--yes", "--model", MODEL)
    assert connected.returncode == 0, connected.stderr
    project = make_project(tmp_path / "shop")
    failed = [session(agent, program, provider, project, task) for task in TASKS[:2]]
    texts = {one.lesson for one in FAILURES}
    facts = program.wait_for(
        "/api/lessons",
        lambda found: texts <= {one["text"] for one in found["lessons"] if one["state"] == "live"},
    )
    failed += [session(agent, program, provider, project, task) for task in TASKS[2:]]
    elsewhere = session(agent, program, provider, make_project(tmp_path / "other"), TASKS[0])
    if FIGURES:
        with Path(FIGURES).open("a") as file:
            line = {"agent": name, "failing calls": failed, "in another project": elsewhere}
            line["signatures"] = [one["signature"] for one in facts["lessons"]]
            file.write(json.dumps(line) + "\n")
    assert failed == [2, 2, 0, 0]
    assert elsewhere == 2
    assert all("Traceback" not in prompt for prompt in provider.evolved)
