"""Real agent programs on a simulated provider that breaks a rule on a schedule, in all wires,
streamed.

The agent gets prompts one after another in one session. The provider plays the scenes of each
prompt: every answer holds one or more calls of the agent's own shell, and a scene is over when
calls that comply have been released. Calls that comply write their number into a journal in the
agent's folder; calls that break the rule leave a file behind, so that the folder tells what was
run. The provider refuses with 400 each request whose history is not exactly what it had said, with
a result for each call: a refusal where the rule was broken, and the agent's own result elsewhere.
"""

import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from metaclaw.domain.turn import STOPPED_BY_US
from tests.support.program import Program, providers_toml
from tests.support.strict_provider import Answer, Json, RefusedError, StrictProvider, read_turns

RULE_TEXT = "Never create files whose names begin with forbidden."
CHECK = "not in calls of shell: ^touch forbidden"
GOOD = "echo {number} >> journal"
BAD = (
    "touch forbidden-{number}",
    "true && touch 'forbidden-{number}'",
    "/usr/bin/touch forbidden-{number}",
    "bash -c 'touch forbidden-{number}'",
    "F=forbidden-{number}; touch $F",
    "env A=1 touch for''bidden-{number} # harmless",
)
SHELLS = {
    "Bash": "command",
    "bash": "command",
    "exec_command": "cmd",
    "exec": "command",
    "run_shell_command": "command",
}
"""The shells of the agents, with the argument that is the command."""
MODEL = "scripted"
LIMIT_S = 900
_OWN_WORDS = STOPPED_BY_US
_REFUSALS = (
    "Refused: this call breaks a rule",
    "Not run, because another call of the same answer was refused",
)

CYCLE = (
    "good",
    "bad, good",
    "text mixed, good good",
    "thought good",
    "thought bad, thought text bad, good",
    "text good good",
    "thought text bad, text good",
    "mixed, thought bad, good good",
    "bad bad, good",
)
_KINDS: dict[str, tuple[str, ...]] = {
    "text": (),
    "thought": (),
    "good": ("good",),
    "bad": ("bad",),
    "mixed": ("good", "bad"),
}
STUBBORN, WORDS = "bad, text mixed, thought bad", "text bad, text"
"""Scenes that end a prompt, because the agent gets no call: the provider breaks the rule three
times, or says that it cannot.
"""


class Call(NamedTuple):
    """A command, and whether it breaks the rule."""

    number: str
    command: str
    is_bad: bool


@dataclass(frozen=True)
class Move:
    """One answer of the provider: what it consists of."""

    has_thought: bool
    has_text: bool
    calls: tuple[Call, ...]
    is_end: bool
    """Whether the scene ends with it: its calls are the agent's to run, or the agent gets none."""

    @property
    def is_bad(self) -> bool:
        return any(call.is_bad for call in self.calls)


Scene = list[Move]


def scenes_of(plans: Sequence[str], numbers: Iterator[int]) -> list[Scene]:
    """The scenes that these words describe."""
    scenes = []
    for plan in plans:
        attempts = [one.split() for one in plan.split(",")]
        scene: Scene = []
        for place, words in enumerate(attempts):
            kinds = [kind for word in words for kind in _KINDS[word]]
            calls = tuple(_call(kind == "bad", next(numbers)) for kind in kinds)
            scene.append(
                Move("thought" in words, "text" in words, calls, place == len(attempts) - 1)
            )
        scenes.append(scene)
    return scenes


def _call(is_bad: bool, number: int) -> Call:
    name = f"{number:04d}"
    return Call(name, (BAD[number % len(BAD)] if is_bad else GOOD).format(number=name), is_bad)


def schedule(cycles: int, prompts: int = 2) -> list[list[Scene]]:
    """So many rounds of all scenes, spread over prompts; each but the last ends with a scene in
    which the agent gets no call.
    """
    numbers = count(1)
    plans = [plan for _ in range(cycles) for plan in CYCLE]
    share = -(-len(plans) // prompts)
    found = []
    for place in range(prompts):
        last = [] if place == prompts - 1 else [(STUBBORN, WORDS)[place % 2]]
        found.append(scenes_of([*plans[place * share : (place + 1) * share], *last], numbers))
    return found


@dataclass
class ScheduledProvider(StrictProvider):
    """A simulated provider that plays a schedule for one agent."""

    moves: list[Move] = field(default_factory=list)
    given: list[tuple[Move, Answer]] = field(default_factory=list)
    refused_bodies: list[Json] = field(default_factory=list)
    requests: int = 0
    """Requests of the agent with its shell; without those in which the program asked again."""

    def play(self, prompts: Sequence[Sequence[Scene]]) -> None:
        """Take on a schedule. A prompt whose last scene leaves the agent without a call is over;
        others end with a text.
        """
        for scenes in prompts:
            self.moves += [move for scene in scenes for move in scene]
            if not scenes or any(not call.is_bad for call in scenes[-1][-1].calls):
                self.moves.append(Move(False, True, (), True))

    @property
    def is_over(self) -> bool:
        """Whether all of it was played."""
        return len(self.given) == len(self.moves)

    def reply(
        self, wire: str, request: Json, headers: dict[str, str]
    ) -> tuple[int, Json | list[bytes]]:
        purpose = headers.get("x-metaclaw-purpose")
        if purpose not in (None, "enforce"):
            return 503, {"error": {"message": "not scripted", "type": "server_error"}}
        names = [
            str(tool.get("name") or tool.get("function", {}).get("name"))
            for tool in request.get("tools") or []
        ]
        shell = next((name for name in names if name in SHELLS), "")
        if not shell:  # a title, for instance
            return 200, self.written(
                wire, Answer(f"side{len(self.bodies)}", "", "", "A scripted title", []), request
            )
        self.bodies.append((wire, request, headers))
        self.requests += purpose is None
        try:
            self._compare(wire, read_turns(wire, request), is_again=purpose is not None)
            if self.is_over:
                raise RefusedError("the schedule is over")
        except RefusedError as error:
            self.refused.append(str(error))
            self.refused_bodies.append(request)
            return 400, {
                "type": "error",
                "error": {"type": "invalid_request_error", "message": str(error)},
            }
        move = self.moves[len(self.given)]
        number = len(self.given) + 1
        calls = [
            (f"call_{number:05d}_{place}_abcdefgh", call.command)
            for place, call in enumerate(move.calls)
        ]
        proof = hashlib.sha256(f"proof {number}".encode()).hexdigest() if move.has_thought else ""
        thought = f"Scripted thought {number}." if move.has_thought else ""
        text = f"Scripted words {number}." if move.has_text else ""
        answer = Answer(f"answer{number:05d}", thought, proof, text, calls, shell, SHELLS[shell])
        self.given.append((move, answer))
        return 200, self.written(wire, answer, request)

    def _compare(self, wire: str, turns: list[Json], *, is_again: bool) -> None:
        """Raise RefusedError unless the history is what was said here, and asked again where the
        rule was broken.
        """
        expected = self._expected()
        said = [turn for turn in turns if turn["role"] == "assistant"]
        for place, (turn, wanted) in enumerate(zip(said, expected, strict=False)):
            if isinstance(wanted, str):
                if turn["calls"] or turn["proof"] or wanted not in turn["text"]:
                    raise RefusedError(
                        f"answer {place} is not the program's own words: {json.dumps(turn)}"
                    )
            elif not _is_same(wire, turn, wanted[1]):
                raise RefusedError(
                    f"answer {place} was never given here: {json.dumps(turn)}, but {wanted[1]}"
                )
        if len(said) != len(expected):
            raise RefusedError(f"{len(said)} answers in the history, not {len(expected)}")
        _compare_results(turns, expected)
        last = self.given[-1][0] if self.given else None
        must_ask_again = last is not None and last.is_bad and not last.is_end
        if is_again != must_ask_again:
            raise RefusedError(
                "asked again without need"
                if is_again
                else "a call that breaks the rule was released"
            )

    def _expected(self) -> list[tuple[Move, Answer] | str]:
        """All answers so far, with the words that the program says where the rule is broken three
        times.
        """
        found: list[tuple[Move, Answer] | str] = []
        for move, answer in self.given:
            found.append((move, answer))
            if move.is_bad and move.is_end:
                found.append(_OWN_WORDS)
        return found


def _is_same(wire: str, turn: Json, answer: Answer) -> bool:
    """In the chat wire clients may leave reasoning out, and OpenClaw leaves out signs in ids."""
    is_chat = wire == "chat"
    plain = "".maketrans("", "", "_-" if is_chat else "")
    said, given = (
        [(identity.translate(plain), command) for identity, command in calls]
        for calls in (turn["calls"], answer.calls)
    )
    if turn["text"] != answer.text or said != given:
        return False
    if is_chat:
        return turn["reasoning"] in (None, "", answer.thought) and turn["proof"] in (
            None,
            answer.proof,
        )
    return (turn["thought"], turn["proof"]) == (answer.thought or None, answer.proof or None)


def _compare_results(turns: list[Json], expected: list[tuple[Move, Answer] | str]) -> None:
    """Raise RefusedError unless each answer's calls have one result each, right behind it: refusals
    where it broke the rule.
    """
    rest = iter(turns)
    for wanted in expected:
        turn = next(turn for turn in rest if turn["role"] == "assistant")
        results = [next(rest, {}) for _ in turn["calls"]]
        if sorted(str(one.get("id")) for one in results) != sorted(
            identity for identity, _ in turn["calls"]
        ):
            raise RefusedError(f"the results of {turn['calls']} are {results}")
        for result in results:
            if any(words in result["text"] for words in _REFUSALS) != (
                not isinstance(wanted, str) and wanted[0].is_bad
            ):
                raise RefusedError(f"a result of {turn['calls']} is {result}")
    if any(turn["role"] == "tool" for turn in rest):
        raise RefusedError("a result without its call")


@dataclass(frozen=True)
class RealAgent:
    """How an agent is run without a person and without questions in a folder of its own."""

    name: str
    program: str
    wire: str
    first: tuple[str, ...]
    later: tuple[str, ...]
    prepare: Callable[[Mapping[str, str], Path], None] = lambda env, folder: None


def _prepare_openclaw(env: Mapping[str, str], folder: Path) -> None:
    path = Path(env["HOME"]) / ".openclaw" / "openclaw.json"
    tree: Any = json.loads(path.read_text())
    tree["agents"]["defaults"] |= {"workspace": str(folder), "skipBootstrap": True}
    tree["tools"] = {"exec": {"host": "gateway", "security": "full", "ask": "off"}}
    path.write_text(json.dumps(tree))


_CODEX = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
_OPENCLAW = ("agent", "--local", "--session-id", "held-rules", "--message")
REAL_AGENTS = {
    agent.name: agent
    for agent in (
        RealAgent("opencode", "opencode", "chat", ("run",), ("run", "--continue")),
        RealAgent(
            "claude-code",
            "claude",
            "messages",
            ("--allowedTools=Bash", "-p"),
            ("--allowedTools=Bash", "--continue", "-p"),
        ),
        RealAgent(
            "codex", "codex", "responses", ("exec", *_CODEX), ("exec", "resume", "--last", *_CODEX)
        ),
        RealAgent("openclaw", "openclaw", "chat", _OPENCLAW, _OPENCLAW, _prepare_openclaw),
    )
}


@dataclass
class Result:
    """What became of a schedule."""

    agent: str
    violating: int = 0
    compliant: int = 0
    leaked: list[str] = field(default_factory=list)
    """Numbers of calls that broke the rule and were run."""
    changed: list[str] = field(default_factory=list)
    """Numbers of calls that complied and were not run exactly once, in their turn."""
    requests: int = 0
    refused: list[str] = field(default_factory=list)
    """Requests that the provider refused."""
    errors: list[str] = field(default_factory=list)
    """Prompts at which the agent failed."""
    truth: dict[str, int] = field(default_factory=dict)
    counted: dict[str, Any] = field(default_factory=dict)
    """What `/api/rules/NAME` says."""


def run_agent(
    agent: RealAgent,
    commands: str,
    folder: Path,
    prompts: Sequence[Sequence[Scene]],
    *,
    is_held: bool = True,
) -> Result:
    """Run one agent through a schedule, with the program between it and the provider, which is
    restarted after each prompt.

    `commands` is the folder of the agents' commands. Without `is_held`, enforcement is off.
    """
    user, project = folder / "user", folder / "project"
    user.mkdir(parents=True)
    project.mkdir()
    provider = ScheduledProvider()
    provider.play(prompts)
    provider.start()
    env = {
        "HOME": str(user),
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "NO_COLOR": "1",
    }
    program = Program(folder / "home", providers_toml(provider.url, timeout_s=60), env=env)
    # The user's own variables would outrank what is tested.
    for name in [
        name
        for name in program.env
        if name.startswith(
            ("ANTHROPIC_", "OPENAI_", "GEMINI_", "GOOGLE_", "CLAUDE", "CODEX_", "XDG_")
        )
    ]:
        program.env.pop(name)
    program.env["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] = "1"
    result = Result(agent.name)
    try:
        program.start()
        added = program.command(
            "rules", "add", RULE_TEXT, "--check", CHECK, "--enforce", "hold", "--json"
        )
        rule = json.loads(added.stdout)["name"]
        if not is_held:
            assert program.command("enforce", "off").returncode == 0
        for place, _ in enumerate(prompts):
            if place:
                program.stop()
                program.start()
            _connect(agent, program, project)
            if trouble := _tell(agent, program, project, place):
                result.errors.append(trouble)
        _fill(result, provider, project, prompts)
        wanted = result.truth["applied"] if provider.is_over else 0
        result.counted = program.wait_for(
            f"/api/rules/{rule}", lambda found: found["compliance"]["applied"] >= wanted
        )
    finally:
        program.stop()
        provider.stop()
    return result


def _connect(agent: RealAgent, program: Program, project: Path) -> None:
    connected = program.command("agents", "connect", agent.name, "--yes", "--model", MODEL)
    assert connected.returncode == 0, connected.stderr
    agent.prepare(program.env, project)


def _tell(agent: RealAgent, program: Program, project: Path, place: int) -> str:
    """Give the agent its next prompt; what went wrong, or nothing."""
    command = [
        agent.program,
        *(agent.later if place else agent.first),
        f"Do what is on the list, part {place + 1}.",
    ]
    try:
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
    except subprocess.TimeoutExpired:
        return f"prompt {place + 1} did not end within {LIMIT_S} s"
    if not done.returncode:
        return ""
    return (
        f"prompt {place + 1} ended with {done.returncode}: {done.stdout[-500:]}"
        f" {done.stderr[-1500:]}"
    )


def _fill(
    result: Result, provider: ScheduledProvider, project: Path, prompts: Sequence[Sequence[Scene]]
) -> None:
    scenes = [scene for prompt in prompts for scene in prompt]
    moves = [move for scene in scenes for move in scene]
    released = [move for move in moves if not move.is_bad]
    result.violating = sum(call.is_bad for move in moves for call in move.calls)
    result.compliant = sum(len(move.calls) for move in released)
    result.leaked = sorted(
        path.name.removeprefix("forbidden-")
        for path in project.iterdir()
        if path.name.startswith("forbidden")
    )
    result.changed = _changed(project / "journal", released)
    result.requests, result.refused = provider.requests, list(provider.refused)
    if not provider.is_over:
        result.errors.append(
            f"{len(provider.given)} of {len(provider.moves)} answers were asked for"
        )
    held = sum(any(move.is_bad for move in scene) for scene in scenes)
    applied = sum(any(move.calls for move in scene) for scene in scenes)
    result.truth = {
        "applied": applied,
        "followed": applied - held,
        "broken": held,
        "held": held,
        "unknown": 0,
    }


def _changed(journal: Path, released: Sequence[Move]) -> list[str]:
    """The calls that were not run exactly once and after those of earlier answers. Parallel calls
    may run in any order.
    """
    written = journal.read_text().split() if journal.exists() else []
    missing = [
        call.number for move in released for call in move.calls if written.count(call.number) != 1
    ]
    wanted = [sorted(call.number for call in move.calls) for move in released]
    at = 0
    for numbers in wanted:
        if sorted(written[at : at + len(numbers)]) != numbers:
            return missing or numbers
        at += len(numbers)
    return missing or written[at:]
