"""What the pages tell: held calls, how many lessons there are, what has no price, why a rule has no
check, and how turns went.
"""

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from metaclaw.domain.ids import new_session_id
from tests.cli.program import Done, metaclaw
from tests.support.program import NOT_LEARNING, PATIENCE_S, Program, providers_toml
from tests.support.provider import Provider

TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {}}}
    for name in ("safe", "danger")
]


@pytest.fixture(scope="module")
def program(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    running = Program(
        tmp_path_factory.mktemp("pages") / "home", providers_toml(provider.url), env=NOT_LEARNING
    ).start()
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]


def page(program: Program, path: str) -> str:
    """The words of a page, without its tags."""
    answer = httpx.get(
        f"{program.url}{path}", headers={**program.auth, "accept": "text/html"}, timeout=PATIENCE_S
    )
    assert answer.status_code == 200, answer.text
    words = re.sub(
        r"<[^>]+>", "", re.sub(r"<(script|title|head)\b.*?</\1>", "", answer.text, flags=re.DOTALL)
    )
    return " ".join(html.unescape(words).split())


def ask(program: Program, model: str, words: str, session: str) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": words}], "tools": TOOLS}
    headers = {**program.auth, "x-session-id": session, "x-turn-type": "main"}
    return httpx.post(
        f"{program.url}/v1/chat/completions", json=body, headers=headers, timeout=PATIENCE_S
    )


def send(program: Program, messages: list[Any], headers: dict[str, str]) -> httpx.Response:
    """A request without tools, of which nothing is known but these headers."""
    body = {"model": "echo", "messages": messages or [{"role": "user", "content": "Hello"}]}
    sent = {**program.auth, **headers}
    return httpx.post(
        f"{program.url}/v1/chat/completions", json=body, headers=sent, timeout=PATIENCE_S
    )


def command(program: Program, *arguments: str) -> Done:
    return metaclaw("--home", str(program.home), *arguments)


def add_rule(program: Program, text: str, **fields: str) -> str:
    answer = httpx.post(
        f"{program.url}/api/rules",
        json={"text": text, **fields},
        headers=program.auth,
        timeout=PATIENCE_S,
    )
    return str(answer.raise_for_status().json()["name"])


def test_a_held_call_is_told_on_the_page_and_its_attempts_are_no_side_turns(
    program: Program,
) -> None:
    rule = add_rule(
        program, "Never call danger.", check='not in calls of danger: "n"', enforce="hold"
    )
    answer = ask(program, "tools", "Go on.", new_session_id())
    turn, session = answer.headers["x-metaclaw-turn"], answer.headers["x-metaclaw-session"]
    program.wait_for(
        "/api/sessions", lambda facts: any(one["id"] == session for one in facts["sessions"])
    )
    attempts = program.get(f"/api/turns/{turn}/why")["attempts"]
    assert len(attempts) > 1
    for path in (f"/ui/sessions/{session}", f"/ui/turns/{turn}"):
        shown = page(program, path)
        assert f"{rule} was broken in {len(attempts)} attempts" in shown
        assert 'attempt 1, refused: safe {"n": 0} danger {"n": 1}' in shown
        assert "The client got a text in place of the calls." in shown
        assert "side turn" not in shown
    assert "attempt at an answer" in page(program, f"/ui/turns/{attempts[0]['turn']}")
    told = metaclaw("--home", str(program.home), "why", turn).out
    assert "refused: safe" in told
    assert "The client got a text in place of the calls." in told


def test_today_tells_how_many_lessons_there_are_and_links_to_all(program: Program) -> None:
    before = program.get("/api/status")["counts"]["rules"]
    for number in range(14):
        add_rule(program, f"Answer question {number} in French.")
    shown = page(program, "/")
    assert f"{before + 14}lessons today" in shown
    assert "more lessons: show all" in shown
    assert "Answer question 0 in French." not in shown
    everything = page(program, "/ui?lessons=all")
    assert "Answer question 0 in French." in everything
    assert "show all" not in everything


def test_the_page_says_that_tokens_have_no_price(program: Program) -> None:
    ask(program, "echo", "Hello.", new_session_id())
    program.wait_for(
        "/api/cost", lambda cost: cost["days"] and cost["days"][0]["traffic"]["unpriced_tokens"]
    )
    shown = page(program, "/ui/cost")
    assert "The costs on this page leave out" in shown
    assert "tokens of models whose price is not known" in shown


def test_a_rule_without_a_check_says_why(program: Program) -> None:
    folder: Path = program.home / "skills" / "be-kind"
    folder.mkdir(parents=True)
    note = "kindness cannot be told by a pattern"
    (folder / "SKILL.md").write_text(
        "---\nname: be-kind\ndescription: always\nkind: rule\napplies: always\ncheck_note:"
        f" {note}\n---\nBe kind.\n"
    )
    program.wait_for(
        "/api/rules", lambda facts: any(one["name"] == "be-kind" for one in facts["rules"])
    )
    assert f"Why it has no check{note}" in page(program, "/ui/rules/be-kind")
    assert f"No check: {note}" in page(program, "/ui/rules")


def test_turns_without_an_answer_are_failed_on_the_page_and_in_the_terminal(
    program: Program,
) -> None:
    session = new_session_id()
    for number in range(3):
        assert ask(program, "status-401", f"Question {number}", session).status_code == 401
    program.wait_for(f"/api/sessions/{session}", lambda facts: len(facts["turns"]) == 3)
    assert "3 failed" in page(program, f"/ui/sessions?q={session}")
    listed = metaclaw("--home", str(program.home), "sessions", "list").out
    assert "HOW IT WENT" in listed
    assert re.search(r"\b3\s+3 failed\s+Question 0", listed)


def test_keys_are_offered_for_the_pages_there_are(program: Program) -> None:
    assert "1 – 6go to a page" in page(program, "/")


def test_sessions_without_a_main_turn_are_hidden_and_the_last_turn_is_a_main_one(
    program: Program,
) -> None:
    """As `qwen -p` makes them: one session that a person began, and several in which the client
    asks on the side.
    """
    busy, spoken = new_session_id(), new_session_id()
    ask(program, "echo", "Count the bats.", busy)
    last = ask(program, "echo", "Count the owls.", spoken).headers["x-metaclaw-turn"]
    side = [
        send(
            program,
            [{"role": "user", "content": f"You pick memories, {n}."}],
            {"x-turn-type": "side"},
        )
        for n in range(2)
    ]
    aside = send(
        program,
        [{"role": "user", "content": "You write titles."}],
        {"x-turn-type": "side", "x-session-id": busy},
    )
    program.wait_for(
        f"/api/turns/{aside.headers['x-metaclaw-turn']}", lambda facts: facts["kind"] == "side"
    )
    ids = {one.headers["x-metaclaw-session"] for one in side}

    def listed(*more: str) -> set[str]:
        return {
            one["id"]
            for one in command(program, "sessions", "list", "--json", *more).facts["sessions"]
        }

    assert ids.isdisjoint(listed())
    assert listed("--all") >= ids
    assert "2 sessions with side turns only" in command(program, "sessions", "list").out
    assert "You pick memories" not in command(program, "sessions", "list", "--all").out
    assert command(program, "why", "--last", "--json").facts["turn"] == last
    assert command(program, "sessions", "show", "--last", "--json").facts["id"] == spoken
    assert last in command(program, "feedback", "--last", "pass").out
    shown, everything = page(program, "/ui/sessions"), page(program, "/ui/sessions?all=1")
    assert "Also 2 sessions with side turns only" in shown
    assert everything.count("Side turns only") == 2
    assert "You pick memories" not in everything


def test_what_a_client_adds_is_not_shown_as_the_persons(program: Program) -> None:
    environment = "<environment_context>\n  <cwd>/home/ann/shop</cwd>\n</environment_context>"
    reminder = {"type": "text", "text": "<system-reminder>Be brief.</system-reminder>"}
    messages = [
        {"role": "user", "content": environment},
        {"role": "user", "content": [reminder, {"type": "text", "text": "Hello"}]},
    ]
    answer = send(program, messages, {"x-session-id": new_session_id()})
    turn, session = answer.headers["x-metaclaw-turn"], answer.headers["x-metaclaw-session"]
    program.wait_for(
        "/api/sessions", lambda facts: any(one["id"] == session for one in facts["sessions"])
    )
    assert "environment_context" not in page(program, "/ui/sessions")
    for path in (f"/ui/sessions/{session}", f"/ui/turns/{turn}"):
        shown = page(program, path)
        assert not re.search(r"Person\W+(?:written by the client\W+)?<environment_context>", shown)
        assert re.search(r"Client (?:added by the client )?<environment_context>", shown)
    assert "added by the client <system-reminder>Be brief." in page(program, f"/ui/turns/{turn}")
    aside = send(program, messages, {"x-session-id": session, "x-turn-type": "side"}).headers[
        "x-metaclaw-turn"
    ]
    program.wait_for(f"/api/turns/{aside}", lambda facts: facts["kind"] == "side")
    assert "Person" not in page(program, f"/ui/turns/{aside}")
    assert "client   Hello" in command(program, "sessions", "show", session, "--all").out


def test_every_page_is_there_on_a_new_home_without_training(
    provider: Provider, tmp_path: Path
) -> None:
    new = Program(tmp_path / "home", providers_toml(provider.url), env=NOT_LEARNING).start()
    try:
        for path in (
            "/",
            "/ui",
            "/ui?lessons=all",
            "/ui/progress",
            "/ui/progress?by=month",
            "/ui/sessions",
            "/ui/rules",
            "/ui/cost",
            "/ui/training",
        ):
            assert "Internal" not in page(new, path)
        assert "Weights are not trained here" in page(new, "/ui/training")
        assert "Train now" not in page(new, "/ui/training")
    finally:
        assert new.stop() == 0


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/ui/nowhere", 404),
        ("GET", "/ui/nowhere/at/all", 404),
        ("GET", "/ui/sessions/s_nowhere", 404),
        ("GET", "/ui/turns/t_nowhere", 404),
        ("GET", "/ui/rules/nowhere", 404),
        ("GET", "/ui/do/rule-add", 405),
        ("POST", "/ui/rules", 405),
        ("POST", "/ui/do/nothing", 404),
    ],
)
def test_a_wrong_address_of_the_pages_is_a_page(
    program: Program, method: str, path: str, status: int
) -> None:
    answer = httpx.request(method, f"{program.url}{path}", headers=program.auth, timeout=PATIENCE_S)
    assert (answer.status_code, answer.headers["content-type"]) == (
        status,
        "text/html; charset=utf-8",
    )
    assert "This page cannot be shown" in answer.text
    assert '<a class="button" href="/">Go to Today</a>' in answer.text
    assert "content-security-policy" in answer.headers


def test_a_wrong_address_of_the_api_is_json(program: Program) -> None:
    for path in ("/api/nowhere", "/nowhere"):
        answer = httpx.get(
            f"{program.url}{path}",
            headers={**program.auth, "accept": "text/html"},
            timeout=PATIENCE_S,
        )
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/json")


@pytest.mark.parametrize(
    ("when", "shown"),
    [
        ("writing a commit message", "when writing a commit message"),
        ("When reviewing code", "when reviewing code"),
        ("whenever tests fail", "whenever tests fail"),
        ("in shell scripts", "in shell scripts"),
    ],
)
def test_the_situation_of_a_rule_is_told_once(program: Program, when: str, shown: str) -> None:
    name = add_rule(program, f"Be careful {when}.", when=when)
    for path in ("/ui/rules", f"/ui/rules/{name}"):
        answer = httpx.get(f"{program.url}{path}", headers=program.auth, timeout=PATIENCE_S)
        assert f'<span dir="auto">{shown}</span>' in answer.text
