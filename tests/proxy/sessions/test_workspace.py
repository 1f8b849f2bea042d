"""The project of a session: from the header, else from the working directory that agents put into
their prompts.
"""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from metaclaw.domain.chat import Wire
from metaclaw.domain.ids import new_turn_id
from metaclaw.domain.turn import Origin, Scope, SessionTrace, TurnEnd
from metaclaw.proxy.sessions import Origins
from tests.support.cases import each

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)


def origins() -> Origins:
    return Origins(now=lambda: NOW)


def ask(
    known: Origins,
    system: str,
    *users: str,
    headers: dict[str, str] | None = None,
    answers: str = "very well",
) -> Origin:
    messages: list[Any] = [{"role": "system", "content": system}] if system else []
    for number, words in enumerate(users):
        messages += [{"role": "assistant", "content": answers}] if number else []
        messages.append({"role": "user", "content": words})
    origin = known.identify(
        Wire.CHAT, headers or {}, {"model": "m", "messages": messages, "max_tokens": 100}
    )
    known.finished(origin, new_turn_id(), TurnEnd.COMPLETED)
    return origin


@each(
    ("text", "workspace"),
    [
        (
            "<env>\n  Working directory: /home/ann/shop\n  Is directory a git repo: yes\n</env>",
            "/home/ann/shop",
        ),
        (
            " - Primary working directory: /home/ann/my shop/\n - Is a git repository: true",
            "/home/ann/my shop",
        ),
        (
            "## Workspace\nYour working directory is: /home/ann/.openclaw/workspace\nTreat this",
            "/home/ann/.openclaw/workspace",
        ),
        ("Current Working Directory (/srv/shop) Files", "/srv/shop"),
        ("Workspace root folder: ~/shop\n", "~/shop"),
        ("Workspace Path: C:\\Users\\ann\\shop\n", "C:\\Users\\ann\\shop"),
        ("I'm currently working in the directory: /home/ann/shop\n", "/home/ann/shop"),
        ("<env>\r\n  Working directory: /home/ann/shop\r\n</env>", "/home/ann/shop"),
        ("# Environment\n- **Working directory**: `/home/ann/shop`\n", "/home/ann/shop"),
        ("You may change the working directory. Use the current directory for /tmp files.", None),
        ("Paths are relative to the working directory, such as src/main.py.", None),
        (
            (
                "For example, if the project root is /path/to/project/ and the file is foo/bar.txt,"
                " use the whole path."
            ),
            None,
        ),
        ("If the project root is: /path/to/project", None),
        ("Call it with a path, as in Working directory: /tmp/x", None),
        ('A call looks like {"cwd": "/path/to/project", "command": "ls"}', None),
        ('{"cwd": "/path/to/project", "command": "ls"}', None),
        ("The workspace: /path/to/project is an example, not yours.", None),
        ("Working directory: src/shop\n", None),
        ("x" * 200_000, None),
    ],
)
def test_the_working_directory_in_an_agents_system_text_is_the_project(
    text: str, workspace: str | None
) -> None:
    origin = ask(origins(), f"You are a coding agent.\n{text}\nBe brief.", "fix the tests")
    assert origin.scope == Scope(None, workspace)


RECORDED: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "captures" / "environments.json").read_text()
)
WIRES = {
    "/v1/chat/completions": Wire.CHAT,
    "/v1/responses": Wire.RESPONSES,
    "/v1/messages": Wire.MESSAGES,
}


@each("recorded", RECORDED, ids=[recorded["client"] for recorded in RECORDED])
def test_the_project_of_every_recorded_agent_is_the_directory_that_it_was_started_in(
    recorded: dict[str, Any],
) -> None:
    headers = {"user-agent": recorded["user_agent"]}
    origin = origins().identify(WIRES[recorded["path"]], headers, recorded["body"])
    assert (origin.agent, origin.scope.workspace) == (recorded["agent"], recorded["project"])
    assert origin.task in ("say hello and run one command", "make it print hello")


def test_qwen_code_in_several_directories_belongs_to_the_first() -> None:
    setup = (
        "This is the Qwen Code. We are setting up the context for our chat.\nI'm currently working"
        " in the following directories:\n"
    )
    messages: list[Any] = [{"role": "system", "content": "You are Qwen Code, an agent."}]
    messages += [
        {"role": "user", "content": f"{setup}  - /home/ann/shop\n  - /home/ann/lib\n"},
        {"role": "user", "content": "fix it"},
    ]
    assert (
        origins().identify(Wire.CHAT, {}, {"model": "m", "messages": messages}).scope.workspace
        == "/home/ann/shop"
    )


@pytest.mark.parametrize("agent", ["Claude Code", "Codex", "Qwen Code"])
def test_a_directory_line_of_another_kind_is_no_project_of_a_known_agent(agent: str) -> None:
    headers = {
        "user-agent": {
            "Claude Code": "claude-cli/2.1",
            "Codex": "codex_exec/1",
            "Qwen Code": "QwenCode/1",
        }[agent]
    }
    assert (
        ask(
            origins(),
            "Project root: /path/to/project\nWorkspace: /tmp\n",
            "fix it",
            headers=headers,
        ).scope.workspace
        is None
    )


def test_an_environment_that_stands_in_a_message_of_its_own_counts() -> None:
    environment = (
        "<environment_context>\n  <cwd>/home/ann/shop</cwd>\n "
        " <shell>bash</shell>\n</environment_context>"
    )
    messages: list[Any] = [
        {"role": "user", "content": environment},
        {"role": "user", "content": "fix the tests"},
    ]
    origin = origins().identify(Wire.CHAT, {}, {"model": "m", "messages": messages})
    assert origin.scope.workspace == "/home/ann/shop"


def test_an_environment_in_a_system_message_behind_the_first_words_counts() -> None:
    environment = (
        "# Environment\nYou have been invoked here:\n - Primary working directory: /home/ann/shop\n"
    )
    messages: list[Any] = [
        {"role": "user", "content": "fix the tests"},
        {"role": "system", "content": environment},
    ]
    origin = origins().identify(
        Wire.MESSAGES, {}, {"model": "m", "max_tokens": 9, "messages": messages}
    )
    assert origin.scope.workspace == "/home/ann/shop"


@pytest.mark.parametrize(
    "words", ["Working directory: /tmp/evil\nfix it", "see:\n> <cwd>/tmp/evil</cwd>\nfix it"]
)
def test_a_directory_in_a_persons_words_is_no_project(words: str) -> None:
    assert ask(origins(), "You are careful.", words).scope.workspace is None


def test_the_header_comes_before_the_prompt() -> None:
    origin = ask(
        origins(),
        "Working directory: /home/ann/shop\n",
        "fix it",
        headers={"x-workspace-id": "lab", "x-user-id": "ann"},
    )
    assert origin.scope == Scope("ann", "lab")


def test_a_session_keeps_its_project_and_is_found_again_after_a_restart() -> None:
    known, system = origins(), "Working directory: /home/ann/shop\n"
    first = ask(known, system, "fix it")
    assert ask(known, system, "fix it", "and now the docs").session == first.session
    again = origins()
    trace = SessionTrace(
        first.session,
        None,
        first.agent,
        first.scope,
        first.head,
        0,
        new_turn_id(),
        NOW - timedelta(seconds=1),
    )
    again.restore([trace])
    later = ask(again, system, "fix it", "and now the docs")
    assert (later.session, later.scope) == (first.session, Scope(None, "/home/ann/shop"))


def test_a_session_that_began_with_a_side_turn_learns_its_project_from_its_first_main_turn() -> (
    None
):
    known, headers = origins(), {"x-session-id": "talk"}
    assert (
        ask(
            known, "Write a title.", "fix it", headers={**headers, "x-turn-type": "side"}
        ).scope.workspace
        is None
    )
    assert (
        ask(known, "Working directory: /home/ann/shop\n", "fix it", headers=headers).scope.workspace
        == "/home/ann/shop"
    )


def test_the_same_key_in_two_named_directories_is_two_sessions() -> None:
    known = origins()
    one, other = (
        ask(known, "Be brief.", "fix it", headers={"x-session-id": "talk", "x-workspace-id": path})
        for path in ("/a", "/b")
    )
    assert one.session != other.session
    assert (one.scope.workspace, other.scope.workspace) == ("/a", "/b")
