"""A person's rules on the real program: from the command line into the next prompt, and out of it
again; told as it happens.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import httpx
import pytest

from tests.support.program import NOT_LEARNING, PATIENCE_S, Program, providers_toml
from tests.support.provider import Provider


def ask(
    program: Program, text: str, session: str, *, system: str = "", **headers: str
) -> httpx.Response:
    before = [{"role": "system", "content": system}] if system else []
    body = {"model": "echo", "messages": [*before, {"role": "user", "content": text}]}
    sent = {**program.auth, "x-session-id": session, **headers}
    answer = httpx.post(
        f"{program.url}/v1/chat/completions", json=body, headers=sent, timeout=PATIENCE_S
    )
    assert answer.status_code == 200, answer.text
    return answer


def test_a_rule_applies_to_the_next_request_until_it_is_undone(
    program: Program, provider: Provider
) -> None:
    added = program.command("rules", "add", "Answer in the style of a pirate.", "--json")
    assert added.returncode == 0, added.stderr
    name = json.loads(added.stdout)["name"]
    answer = ask(program, "Install numpy.", "first")
    assert name in answer.headers["x-metaclaw-skills"].split(",")
    assert "Answer in the style of a pirate." in provider.requests[-1].body.decode()
    assert [rule["name"] for rule in program.get("/api/rules")["rules"]] == [name]
    undone = program.command("undo")
    assert (undone.returncode, "Answer in the style of a pirate." in undone.stdout) == (0, True)
    assert ask(program, "Install numpy.", "second").headers["x-metaclaw-skills"] == ""
    assert "pirate" not in provider.requests[-1].body.decode()
    assert json.loads(program.command("rules", "--json").stdout) == {"rules": []}


def test_a_rule_of_one_project_is_narrowed_and_widened_over_http(program: Program) -> None:
    made = {"text": "Use pnpm, not npm.", "workspace": "/srv/shop"}
    name = httpx.post(f"{program.url}/api/rules", json=made, headers=program.auth).json()["name"]
    inside = ask(program, "Install left-pad.", "inside", **{"x-workspace-id": "/srv/shop"})
    outside = ask(program, "Install left-pad.", "outside", **{"x-workspace-id": "/srv/other"})
    assert (
        name in inside.headers["x-metaclaw-skills"],
        name in outside.headers["x-metaclaw-skills"],
    ) == (True, False)
    httpx.patch(
        f"{program.url}/api/rules/{name}", json={"workspace": None}, headers=program.auth
    ).raise_for_status()
    later = ask(program, "Install left-pad.", "later", **{"x-workspace-id": "/srv/other"})
    assert name in later.headers["x-metaclaw-skills"]
    httpx.delete(f"{program.url}/api/rules/{name}", headers=program.auth).raise_for_status()


def test_a_rule_of_one_channel_is_placed_there_alone(program: Program) -> None:
    system = (
        "You are a personal assistant running inside OpenClaw.\n## Runtime\nRuntime: agent=main"
    )
    spoken = ask(program, "Hi.", "said", system=f"{system} | model=m | channel=slack | x=y")
    source = spoken.headers["x-metaclaw-turn"]
    made = {"text": "Keep it short.", "channel": "slack", "source": source}
    name = httpx.post(f"{program.url}/api/rules", json=made, headers=program.auth).json()["name"]
    placed, turns = {}, {}
    for channel in ("slack", "telegram", ""):
        line = f" | channel={channel} | capabilities=none" if channel else ""
        answer = ask(program, "Hello.", f"on {channel or None}", system=f"{system} | model=m{line}")
        placed[channel] = name in answer.headers["x-metaclaw-skills"].split(",")
        turns[channel] = answer.headers["x-metaclaw-turn"]
    assert placed == {"slack": True, "telegram": False, "": False}
    why = program.get(f"/api/turns/{turns['slack']}/why")
    assert why["scope"]["channel"] == "slack"
    (said,) = (one["said"] for one in why["placed"])
    assert (said["turn"], said["channel"], said["agent"]) == (source, "slack", "openclaw")
    assert f"said to openclaw on slack in {source}" in program.command("why", turns["slack"]).stdout
    told = program.command("why", turns["telegram"]).stdout
    assert "channel telegram" in told
    assert "it is for the channel slack" in told
    assert program.command("undo").returncode == 0


def test_a_project_rule_reaches_qwen_code_whose_prompt_explains_paths_by_an_example(
    program: Program, provider: Provider
) -> None:
    recorded = json.loads(
        (Path(__file__).parents[1] / "captures" / "environments.json").read_text()
    )
    qwen = next(capture for capture in recorded if capture["client"] == "qwen-code-0.15.10")
    made = {"text": "Use pnpm, not npm.", "workspace": qwen["project"]}
    name = httpx.post(f"{program.url}/api/rules", json=made, headers=program.auth).json()["name"]
    sent = {**program.auth, "user-agent": qwen["user_agent"]}
    answer = httpx.post(
        f"{program.url}{qwen['path']}", json=qwen["body"], headers=sent, timeout=PATIENCE_S
    )
    assert answer.headers["x-metaclaw-skills"] == name
    assert "Use pnpm, not npm." in provider.requests[-1].body.decode()
    httpx.delete(f"{program.url}/api/rules/{name}", headers=program.auth).raise_for_status()


@contextmanager
def watching(program: Program, *arguments: str) -> Iterator[IO[str]]:
    command = [sys.executable, "-m", "metaclaw", "watch", *arguments]
    with subprocess.Popen(
        command, env=program.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout
        finally:
            process.kill()


def say(program: Program, text: str) -> None:
    httpx.post(
        f"{program.url}/api/rules", json={"text": text}, headers=program.auth, timeout=PATIENCE_S
    ).raise_for_status()


@pytest.fixture
def own_program(provider: Provider, tmp_path: Path) -> Iterator[Program]:
    running = Program(tmp_path / "home", providers_toml(provider.url), env=NOT_LEARNING).start()
    yield running
    running.stop()


def test_watch_tells_of_every_lesson_once_also_across_a_restart(own_program: Program) -> None:
    program = own_program
    say(program, "Said before.")
    with watching(program, "--since", "0") as lines:
        assert "noted the rule said-before: Said before." in lines.readline()
        say(program, "Use uv.")
        assert "noted the rule use-uv: Use uv." in lines.readline()
        program.stop()
        program.command("rules", "add", "Said while it was stopped.")
        program.start()
        say(program, "Said after.")
        assert "said-while-it-was-stopped" in lines.readline()
        assert "noted the rule said-after: Said after." in lines.readline()
        program.command("undo")
        assert "took back the change" in lines.readline()


def test_watch_prints_events_as_lines_of_json_and_begins_now(own_program: Program) -> None:
    program = own_program
    say(program, "Said before.")
    first = program.get("/api/rules")["rules"]
    with watching(program, "--json", "--since", "0") as lines:
        event: dict[str, Any] = json.loads(lines.readline())
    assert (event["event"], event["put"]) == ("generation", [first[0]["name"]])
    with httpx.stream(
        "GET", f"{program.url}/api/events?after=now", headers=program.auth, timeout=PATIENCE_S
    ) as stream:
        told = stream.iter_lines()
        assert [next(told), next(told)] == [": events of MetaClaw", f": from {event['cursor']}"]


def test_watch_without_a_proxy_says_how_to_start_one(tmp_path: Path) -> None:
    done = Program(tmp_path / "home").command("watch")
    assert (done.returncode, "metaclaw start" in done.stderr) == (1, True)


def test_why_says_what_stood_in_a_prompt_and_why_the_rest_did_not(own_program: Program) -> None:
    program = own_program
    say(program, "Use uv.")
    for more in (
        {"workspace": "/srv/other"},
        {"scope": "user:bob"},
        {"expires": "2099-01-01", "kind": "fact"},
    ):
        made = {"text": f"Only with {next(iter(more))}.", **more}
        httpx.post(
            f"{program.url}/api/rules", json=made, headers=program.auth, timeout=PATIENCE_S
        ).raise_for_status()
    turn = ask(program, "Install numpy.", "asked", **{"x-workspace-id": "/srv/shop"}).headers[
        "x-metaclaw-turn"
    ]
    say(program, "Said too late.")
    told = program.get(f"/api/turns/{turn}/why")
    assert {one["text"] for one in told["placed"]} == {"Use uv.", "Only with expires."}
    assert len(told["considered"]) == 3
    reasons = {one["text"]: one["reason"] for one in told["not_placed"]}
    assert "is for the project /srv/other" in reasons["Only with workspace."]
    assert "Only with scope." not in reasons  # it is another person's
    assert "came into force after" in reasons["Said too late."]
    for words in (program.command("why", turn).stdout, program.command("why", "--last").stdout):
        assert "rule use-uv: Use uv." in words
        assert "it came into force after this turn" in words
    assert json.loads(program.command("why", turn, "--json").stdout)["turn"] == turn
    assert program.command("why").returncode == 2
    missing = program.command("why", "t_nothing")
    assert (missing.returncode, "there is no turn t_nothing" in missing.stderr) == (1, True)
    assert (
        httpx.get(
            f"{program.url}/api/turns/t_nothing/why", headers=program.auth, timeout=PATIENCE_S
        ).status_code
        == 404
    )


def test_status_shows_what_was_noted_lately_and_counts_rules_apart_from_skills(
    own_program: Program,
) -> None:
    program = own_program
    say(program, "Use uv.")
    made = {"text": "The staging server is stage-2.", "kind": "fact"}
    httpx.post(
        f"{program.url}/api/rules", json=made, headers=program.auth, timeout=PATIENCE_S
    ).raise_for_status()
    facts = program.get("/api/status")
    assert (facts["counts"]["rules"], facts["counts"]["facts"], facts["counts"]["skills"]) == (
        1,
        1,
        {},
    )
    newest, first = facts["learning"]["noted"]
    assert (newest["put"][0]["text"], first["reason"]) == (
        "The staging server is stage-2.",
        "noted the rule use-uv",
    )
    words = program.command("status", "--all").stdout
    assert "1 rule, 1 fact of yours" in words
    assert "0 skills, generation 2" in words
    assert "canary" not in words
