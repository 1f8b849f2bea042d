"""Tool calls of all agents for checks: by class, with their commands or files."""

import json
from pathlib import Path
from typing import Any

import pytest

from metaclaw.checks.calls import seen_calls
from metaclaw.domain.chat import ToolCall
from metaclaw.domain.check import CLIENT_TOOLS, ToolClass, tool_class
from metaclaw.domain.verdict import Outcome
from metaclaw.proxy.sessions.recognition import CLIENTS
from metaclaw.skills import parse_check, run_check, sample_answer
from tests.checks.spellings import EDITS, SHELLS, call, edit_call, shell_call
from tests.support.cases import each

FORCE = r"not in calls of shell: ^git push\b.*--force\b"


@each("spelling", SHELLS)
def test_a_command_is_seen_in_every_spelling(spelling: str) -> None:
    check = parse_check(FORCE)
    assert (
        run_check(check, [shell_call(spelling, 'git push --force origin "main"')]) is Outcome.FAIL
    )
    assert run_check(check, [shell_call(spelling, "git push origin main")]) is Outcome.PASS


@each("spelling", EDITS)
def test_a_change_of_a_file_is_seen_in_every_spelling(spelling: str) -> None:
    path, text = (
        parse_check(r"not in calls of edit: \A\S*uv\.lock\n"),
        parse_check("not in calls of edit: forbidden = 1"),
    )
    (seen,) = {
        text
        for one in seen_calls(edit_call(spelling, "a/uv.lock", "x = 1\nforbidden = 1\n"))
        for text in one.texts
    }
    assert seen.splitlines()[0] == "a/uv.lock"
    assert "old text" not in seen
    assert run_check(path, [edit_call(spelling, "a/uv.lock", "x = 1\n")]) is Outcome.FAIL
    assert run_check(path, [edit_call(spelling, "a/main.py", "uv.lock\n")]) is Outcome.PASS
    assert (
        run_check(text, [edit_call(spelling, "a/main.py", "x = 1\nforbidden = 1\n")])
        is Outcome.FAIL
    )
    assert run_check(text, [edit_call(spelling, "a/main.py", "x = 1\n")]) is Outcome.PASS


@each(
    ("arguments", "texts"),
    [
        ({"command": "cd x && git push"}, ["cd x && git push"]),
        ({"command": ["bash", "-lc", "git push"]}, ["bash -lc 'git push'"]),
        ({"command": '["bash", "-lc", "git push"]'}, ["bash -lc 'git push'"]),
        (
            {"command": ["git", "commit", "-m", "fix: two words"]},
            ["git commit -m 'fix: two words'"],
        ),
        ({"command": "git", "args": ["push", "--force"]}, ["git push --force"]),
        ({"commands": ["git add .", "git push"]}, ["git add .\ngit push"]),
        ({"command": 'sudo bash -c "git push"'}, ['sudo bash -c "git push"']),
        ({"command": 'cd x && bash -c "git push"'}, ['cd x && bash -c "git push"']),
        ({"command": "echo 'an open quote"}, ["echo 'an open quote"]),
        ({"command": "git push", "description": "rm -rf"}, ["git push"]),
        ({"chars": "y\n"}, ["y\n"]),
        ({}, []),
    ],
)
def test_the_commands_of_a_call_are_its_texts(arguments: dict[str, Any], texts: list[str]) -> None:
    assert [text for one in seen_calls(call("bash", arguments)) for text in one.texts] == texts


@each(
    "command",
    [
        "bash -lc 'cd x && git push'",
        ["bash", "-lc", "git push"],
        "/bin/sh -c \"bash -c 'git push'\"",
    ],
)
def test_a_command_for_a_shell_is_read_without_the_shell(command: object) -> None:
    check = parse_check("not in calls of shell: ^git push$")
    assert run_check(check, [call("bash", {"command": command})]) is Outcome.FAIL


def test_several_files_of_a_patch_are_looked_at_one_by_one() -> None:
    patch = (
        "*** Begin Patch\n*** Add File: a.ts\n+new\n*** Update File: b.ts\n@@\n-old\n+newer\n***"
        " Delete File: c.js\n*** End Patch"
    )
    (seen,) = seen_calls(call("apply_patch", {"input": patch}))
    assert seen.texts == ("a.ts\nnew\n", "b.ts\nnewer\n", "c.js\n")


def test_an_editor_that_only_shows_a_file_reads_it() -> None:
    assert tool_class("str_replace_editor", {"command": "view"}) is ToolClass.READ
    assert tool_class("str_replace_editor", {"command": "create"}) is ToolClass.EDIT
    assert tool_class("mcp__files__write_file") is ToolClass.EDIT
    assert tool_class("functions.exec_command") is ToolClass.SHELL
    assert tool_class("send_mail") is None


def test_calls_are_found_by_several_classes_and_by_name() -> None:
    shell, edit = shell_call("Bash", "deploy token"), edit_call("Write", "a.py", "token")
    assert run_check(parse_check("not in calls of shell|edit: token"), [edit]) is Outcome.FAIL
    assert run_check(parse_check("not in calls of shell|edit: token"), [shell]) is Outcome.FAIL
    assert (
        run_check(parse_check("not in calls of read|web: token"), [shell, edit]) is Outcome.UNKNOWN
    )
    assert (
        run_check(
            parse_check("not in calls of exec: token"), [shell_call("tool_call", "deploy token")]
        )
        is Outcome.FAIL
    )
    assert (
        run_check(parse_check("not in calls: token"), [shell_call("tool_call", "deploy token")])
        is Outcome.FAIL
    )


@each(
    "name",
    [
        "run",
        "execute",
        "process",
        "ssh_exec",
        "sandbox_exec",
        "docker-exec",
        "RunInSandbox",
        "mcp__box__run",
        "system.run",
    ],
)
@each("key", ["command", "cmd", "script"])
def test_a_tool_that_runs_commands_is_known_by_what_it_takes(name: str, key: str) -> None:
    assert run_check(parse_check(FORCE), [call(name, {key: "git push --force"})]) is Outcome.FAIL
    assert (
        run_check(parse_check(FORCE), [call(name, {key: ["git", "push", "--force"]})])
        is Outcome.FAIL
    )


def test_tools_that_take_something_else_are_of_no_class() -> None:
    for name, arguments in (
        ("process", {"action": "poll", "session_id": "1"}),
        ("execute_sql", {"query": "select 1"}),
        ("todo", {"command": "add"}),
        ("run_tests", {"path": "tests"}),
    ):
        assert tool_class(name, arguments) is None
    assert tool_class("anything", {"command": "git push --force"}) is ToolClass.SHELL


@pytest.mark.parametrize(
    "name",
    ["deploy", "Deploy", "mcp__ops__deploy", "ops.deploy", "functions/deploy", "mcp__ops__Deploy"],
)
def test_a_tool_is_meant_in_every_spelling_of_its_name(name: str) -> None:
    assert (
        run_check(parse_check("not in calls of deploy: prod"), [call(name, {"to": "prod"})])
        is Outcome.FAIL
    )


def test_a_name_means_no_other_tool() -> None:
    check = parse_check("not in calls of deploy: prod")
    for name in ("undeploy", "deploy_status", "pre_deploy"):
        assert run_check(check, [call(name, {"to": "prod"})]) is Outcome.UNKNOWN
    assert (
        run_check(
            parse_check("not in calls of *_deploy: prod"), [call("ops_deploy", {"to": "prod"})]
        )
        is Outcome.FAIL
    )
    assert (
        run_check(
            parse_check("not in calls of mcp__ops__deploy: prod"), [call("deploy", {"to": "prod"})]
        )
        is Outcome.UNKNOWN
    )


def test_a_call_that_wraps_itself_without_end_is_looked_at_in_bounds() -> None:
    arguments: dict[str, Any] = {"command": "git push --force"}
    for _ in range(200):
        arguments = {"id": "tool_call", "args": arguments}
    assert (
        run_check(parse_check(FORCE), [ToolCall("c", "tool_call", json.dumps(arguments))])
        is Outcome.UNKNOWN
    )


@each(
    ("check", "sample", "name", "texts"),
    [
        ("not in calls of shell: x", "git push -f", "bash", ["git push -f"]),
        ("not in calls of shell: x", "```sh\ngit push -f\n```", "bash", ["git push -f"]),
        ("not in calls of shell: x", "$ git push -f", "bash", ["git push -f"]),
        ("not in calls of shell: x", "Runs `git push -f` at once.", "bash", ["git push -f"]),
        ("not in calls of shell: x", "echo `date`", "bash", ["echo `date`"]),
        (
            "not in calls of shell: x",
            '{"name": "exec", "arguments": {"command": "ls"}}',
            "exec",
            ["ls"],
        ),
        ("not in calls of edit: x", "src/a.py\nx = 1", "write", ["src/a.py\nx = 1\n"]),
        ("not in calls of web: x", "https://x.example", "web_fetch", ["https://x.example"]),
        ("not in calls of deploy: x", '{"target": "stage-2"}', "deploy", []),
        ("not in calls: x", "git push -f", "bash", ["git push -f"]),
    ],
)
def test_a_sample_in_words_stands_for_a_call(
    check: str, sample: str, name: str, texts: list[str]
) -> None:
    (part,) = sample_answer(parse_check(check), sample)
    assert isinstance(part, ToolCall)
    assert part.name == name
    assert [text for one in seen_calls(part) for text in one.texts] == texts


def test_no_name_means_different_things_in_two_clients() -> None:
    known: dict[str, ToolClass] = {}
    for table in CLIENT_TOOLS.values():
        for name, kind in table.items():
            assert known.setdefault(name.lower(), kind) is kind, name
    assert set(CLIENT_TOOLS) - {"other"} <= {client.name for client in CLIENTS}


# Tools of real agents that neither run, change, read nor fetch anything by themselves.
NO_CLASS = (
    "Agent ListAgents ReportFindings ScheduleWakeup Skill ToolSearch Workflow"
    " DeferredToolPlaceholder request_user_input multi_agent_v1 get_goal create_goal update_goal"
    " close_agent resume_agent send_input spawn_agent wait_agent clarify cronjob delegate_task"
    " memory process session_search skill_manage skill_view skills_list todo vision_analyze"
    " openclaw sessions_yield tool_call tool_describe tool_search task question skill todowrite"
    " todoread collaboration functions wait"
)


def test_every_tool_that_a_real_agent_offers_has_a_class_or_is_known_to_have_none(
    shared: Path,
) -> None:
    offered: set[str] = set()

    def walk(value: object) -> None:
        if isinstance(value, dict):
            for tool in value["tools"] if isinstance(value.get("tools"), list) else ():
                if isinstance(tool, dict):
                    offered.add(str(tool.get("function", tool).get("name") or tool.get("type")))
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    for path in (shared / "captures").glob("*.json"):
        walk(json.loads(path.read_text()))
    assert len(offered) > 30
    assert {name for name in offered if tool_class(name) is None} <= set(NO_CLASS.split())
