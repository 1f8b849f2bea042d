"""What waits for a person is decided on the page: rules to be held, skills that were learned,
versions of the weights.
"""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from metaclaw.domain.ids import new_session_id
from metaclaw.domain.policy import Comparison, GateReport
from metaclaw.store import SqlPolicies, open_database
from tests.browser.driver import AXE, PageDriver
from tests.cli.recorded import candidate, keep, record, skill, turn
from tests.engine.small import write_adapter
from tests.support.program import PATIENCE_S, Program
from tests.support.provider import Provider
from tests.support.tiny import make_opinionated_model

pytestmark = pytest.mark.of_target("test-browser", bool(AXE))
CONFIG = """
[[providers]]
name = "scripted"
kind = "openai"
base_url = "{url}/v1"
api_key = "sk-test"
models = ["echo", "tools"]
wires = ["chat"]

[[providers]]
name = "own"
kind = "embedded"

[policy]
mode = "rl"
base_model = "{model}"

[judge]
max_share = 0.0
"""
CHECKED = """---
name: letters
description: When letters are wanted.
check: 'pattern: [a-z]'
---
Write letters.
"""
REPORT = GateReport(
    True,
    ("better on held-out prompts",),
    Comparison(40, 12, 3, 0.2, 25.0),
    0.9,
    0.95,
    0.01,
    "judge",
)
AGENTS = {"codex": "codex_cli_rs/0.60", "opencode": "opencode/1.0"}


@pytest.fixture(scope="module")
def program(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    folder = tmp_path_factory.mktemp("decisions")
    home, model = folder / "home", make_opinionated_model(folder / "model")
    running = Program(home, CONFIG.format(url=provider.url, model=model))
    taught = turn(new_session_id())
    record(home, taught)
    keep(
        home,
        candidate(skill("uses-a-host"), taught.id),
        candidate(skill("writes-dates"), taught.id),
    )
    publish_versions(home, model)
    running.start()
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]


def publish_versions(home: Path, model: Path) -> None:
    """Two versions that were trained one from the other; the first one serves."""
    database = open_database(f"sqlite:///{home / 'ledger.db'}")
    policies = SqlPolicies(database)
    for number in (1, 2):
        weights = write_adapter(model, home / "policies" / f"{number:06d}", seed=number, size=0.3)
        policies.publish(weights, parent=number - 1, base=model.name, steps=4)
        if number == 1:
            policies.promote(1, "better", REPORT)
    database.close()


def call_tools(program: Program, agent: str, tools: tuple[str, ...]) -> None:
    """One request to which the model answers by calling all of these tools."""
    offered = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in tools]
    body = {"model": "tools", "messages": [{"role": "user", "content": "Go on."}], "tools": offered}
    headers = {**program.auth, "user-agent": AGENTS[agent], "x-turn-type": "main"}
    httpx.post(
        f"{program.url}/v1/chat/completions", json=body, headers=headers, timeout=PATIENCE_S
    ).raise_for_status()


def test_a_rule_shows_which_agent_follows_it_and_is_held_in_one_click(
    program: Program, page: PageDriver
) -> None:
    said = {"text": "Never, ever call danger!", "check": 'not in calls of danger: "n"'}
    added = (
        httpx.post(f"{program.url}/api/rules", json=said, headers=program.auth, timeout=PATIENCE_S)
        .raise_for_status()
        .json()
    )
    name, path = added["name"], f"/ui/rules/{added['name']}"
    assert added["question"]
    for agent, tools in (
        ("codex", ("safe", "danger")),
        ("codex", ("safe", "danger")),
        ("opencode", ("safe", "danger")),
    ):
        call_tools(program, agent, tools)
    program.wait_for(f"/api/rules/{name}", lambda rule: rule["compliance"]["broken"] == 3)
    page.open("/ui/rules")
    page.assert_shows("followed in 0 of 3")
    page.open(path)
    page.assert_shows("codex: 0 of 2")
    page.assert_shows("opencode: 0 of 1")
    page.press("Where it was broken or held back")
    page.assert_shows("by codex")
    page.open("/")
    page.press("Hold it", "#waits")
    page.assert_shows("Calls that break it are held back")
    page.assert_hides("Hold calls that break this rule?")
    assert program.get(f"/api/rules/{name}")["enforce"] == "hold"
    page.press("Undo", "#notice")
    page.assert_shows("Hold calls that break this rule?")
    page.open("/ui/rules")
    page.press("Hold it", "#waits")
    page.assert_shows("tool calls that break it do not reach the agent")
    page.press("Lift", "#rules")
    page.agree()
    page.assert_shows("Agents are reminded of it")
    page.assert_hides("tool calls that break it do not reach the agent")
    assert program.get(f"/api/rules/{name}")["enforce"] == "remind"
    page.press("Undo", "#notice")
    page.assert_shows("tool calls that break it do not reach the agent")
    httpx.post(
        f"{program.url}/api/enforce", json={"on": False}, headers=program.auth, timeout=PATIENCE_S
    ).raise_for_status()
    page.open("/ui/rules")
    page.press("Switch it on", "#rules")
    page.assert_shows("Held rules hold calls back again.")
    assert program.get("/api/enforce")["on"]
    assert page.findings() == []
    page.open(path)
    assert page.findings() == []


def test_a_rule_without_a_check_gets_one_on_the_page(program: Program, page: PageDriver) -> None:
    said = {"text": "Never, ever force-push!"}
    added = (
        httpx.post(f"{program.url}/api/rules", json=said, headers=program.auth, timeout=PATIENCE_S)
        .raise_for_status()
        .json()
    )
    page.open(f"/ui/rules/{added['name']}#edit")
    page.assert_shows("write a check of tool calls first")
    page.fill("#edit form", check="not in calls: push .*--force", enforce="hold")
    page.assert_shows("Changed: Never, ever force-push!")
    page.assert_shows("tool calls that break it do not reach the agent")
    changed = program.get(f"/api/rules/{added['name']}")
    assert (changed["check"], changed["enforce"], changed["question"]) == (
        "not in calls: push .*--force",
        "hold",
        None,
    )


def test_learned_skills_are_put_in_force_or_turned_away(program: Program, page: PageDriver) -> None:
    page.open("/ui/rules")
    page.assert_shows("uses-a-host")
    assert page.findings() == []
    page.press("Put in force", "[aria-label='uses-a-host']")
    page.assert_shows("uses-a-host is in force")
    page.press("Reject", "[aria-label='writes-dates']")
    page.assert_shows("writes-dates is rejected")
    live = {one["name"] for one in program.get("/api/skills")["skills"]}
    assert "uses-a-host" in live
    assert "writes-dates" not in live
    page.press("Accept it after all", "#notice")
    page.assert_shows("writes-dates is in force, as yours")


def test_a_version_is_promoted_and_rolled_back(program: Program, page: PageDriver) -> None:
    page.open("/ui/training")
    page.assert_shows("Version 1 answers")
    page.assert_shows("On 40 held-out prompts: better on 12, worse on 3")
    page.assert_shows("General abilities: 90 % untrained, 95 % with it.")
    for plot in ("gate", "made"):
        page.browser.wait_for(f"document.querySelector('#plot-{plot} svg[role=img]') !== null")
    page.press("Promote", "#versions")
    page.agree()
    page.assert_shows("Version 2 answers now.")
    assert program.get("/api/policy")["policy_version"] == 2
    assert page.findings() == []
    page.press("Roll back", "#versions")
    page.agree()
    page.assert_shows("Version 1 answers again.")
    assert program.get("/api/policy")["policy_version"] == 1
    page.press("Promote version 2 again", "#notice")
    page.assert_shows("Version 2 answers now.")


def test_training_begins_now_or_the_page_says_why_no_turn_may_train(
    program: Program, page: PageDriver
) -> None:
    page.open("/ui/training")
    page.press("Train now")
    page.assert_shows("No turn may train now")
    folder = program.home / "skills" / "letters"
    folder.mkdir()
    (folder / "SKILL.md").write_text(CHECKED)
    program.wait_for(
        "/api/skills", lambda found: any(one["name"] == "letters" for one in found["skills"])
    )
    for number in range(8):
        asked = {"role": "user", "content": f"I want {number} letters."}
        headers = {**program.auth, "X-Session-Id": f"letters-{number}", "X-Session-Done": "true"}
        body = {"model": "model", "messages": [asked], "max_tokens": 8}
        httpx.post(
            f"{program.url}/v1/chat/completions", json=body, headers=headers, timeout=PATIENCE_S
        ).raise_for_status()
    program.wait_for(
        "/api/status",
        lambda status: (
            status["counts"]["verdicts"]["pass"] + status["counts"]["verdicts"]["fail"] >= 8
        ),
    )
    page.open("/ui/training")
    page.press("Train now")
    page.assert_shows("Training begins now with")
