"""The page in a real browser: rules are written, moved, removed and brought back; strangers stay
out.
"""

import socket
from pathlib import Path

import httpx

from tests.browser.driver import PageDriver
from tests.support.program import PATIENCE_S, Program

HTML = {"accept": "text/html"}


def say(program: Program, words: str, **headers: str) -> httpx.Response:
    body = {"model": "echo", "messages": [{"role": "user", "content": words}]}
    url = f"{program.url}/v1/chat/completions"
    return httpx.post(
        url, json=body, headers={**program.auth, **headers}, timeout=PATIENCE_S
    ).raise_for_status()


def test_a_person_keeps_their_rules_on_the_page(program: Program, page: PageDriver) -> None:
    page.open("/ui/rules")
    page.fill(
        "#add form", text="Use <b>uv</b> & not pip.", workspace="/srv/shop", when="installing"
    )
    page.assert_shows("Noted: Use <b>uv</b> & not pip.")
    (rule,) = program.get("/api/rules")["rules"]
    assert (rule["text"], rule["workspace"], rule["when"]) == (
        "Use <b>uv</b> & not pip.",
        "/srv/shop",
        "installing",
    )
    assert page.browser.run("document.querySelector('#rules b')") is None, "words are never HTML"
    page.press("Everywhere", "#rules")
    page.assert_shows("applies in every project now")
    assert program.get("/api/rules")["rules"][0]["workspace"] is None
    page.press("Remove", "#rules")
    page.agree()
    page.assert_shows("No longer in force: Use")
    assert program.get("/api/rules")["rules"] == []
    page.press("Restore", "#notice")
    page.assert_shows("is in force again")
    assert len(program.get("/api/rules")["rules"]) == 1
    page.open("/")
    page.press("Undo the last lesson")
    page.agree()
    page.assert_shows("Taken back")
    assert program.get("/api/rules")["rules"] == []


def test_what_is_noted_elsewhere_appears_on_today(program: Program, page: PageDriver) -> None:
    page.open("/")
    page.browser.wait_for("document.getElementById('live-text').textContent === 'live'")
    said = {"text": "Answer in French."}
    httpx.post(
        f"{program.url}/api/rules", json=said, headers=program.auth, timeout=PATIENCE_S
    ).raise_for_status()
    page.assert_shows("Answer in French.")


def test_hostile_words_are_shown_as_text_and_a_turn_is_rated_in_one_click(
    program: Program, page: PageDriver
) -> None:
    hostile = (
        "<img src=x"
        " onerror=\"document.title='taken'\"><script>document.title='taken'</script>\u202e{{ 7 *"
        " 7 }}"
    )
    answer = say(program, hostile)
    turn, session = answer.headers["x-metaclaw-turn"], answer.headers["x-metaclaw-session"]
    listed = program.wait_for(
        "/api/sessions", lambda facts: any(one["id"] == session for one in facts["sessions"])
    )
    assert next(one["title"] for one in listed["sessions"] if one["id"] == session).startswith(
        "<img src=x"
    )
    for path in (
        "/ui/sessions",
        f"/ui/sessions/{session}",
        f"/ui/turns/{turn}",
        "/ui/sessions?q=onerror",
    ):
        page.open(path)
        page.assert_shows("onerror=")
        assert page.browser.run("document.title") != "taken"
        assert page.browser.run("document.querySelectorAll('main img, main script').length") == 0
    page.open(f"/ui/sessions/{session}")
    page.press("Bad")
    page.assert_shows("Noted: this answer was bad.")
    assert program.get(f"/api/turns/{turn}")["verdict"]["outcome"] == "fail"


def test_a_link_signs_in_once_and_others_stay_out(program: Program) -> None:
    link = httpx.post(
        f"{program.url}/api/sign-in", headers=program.auth, timeout=PATIENCE_S
    ).json()["url"]
    with httpx.Client(timeout=PATIENCE_S, headers=HTML) as browser:
        assert browser.get(program.url).status_code == 401
        welcome = browser.get(link)
        cookie = welcome.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert browser.get(program.url).status_code == 200
        policy = browser.get(f"{program.url}/ui/rules").headers["content-security-policy"]
        assert "unsafe" not in policy
        # Neither without the form's token, nor from another site, nor the API at all.
        form = {"text": "From elsewhere.", "token": "x"}
        assert (
            browser.post(
                f"{program.url}/ui/do/rule-add", data=form, headers={"origin": program.url}
            ).status_code
            == 403
        )
        assert (
            browser.post(
                f"{program.url}/ui/do/rule-add",
                data=form,
                headers={"origin": "http://evil.example"},
            ).status_code
            == 403
        )
        assert browser.post(f"{program.url}/ui/do/rule-add", data=form).status_code == 403
        assert browser.get(f"{program.url}/api/status").status_code == 401
        assert browser.post(f"{program.url}/api/rules", json={"text": "x"}).status_code == 401
        assert browser.get(program.url, headers={"host": "evil.example"}).status_code == 403
    assert httpx.get(link, headers=HTML, timeout=PATIENCE_S).status_code == 401, "a link works once"
    assert httpx.get(f"{program.url}/ui", timeout=PATIENCE_S).status_code == 401
    with_key = httpx.get(f"{program.url}/ui", headers={**program.auth, **HTML}, timeout=PATIENCE_S)
    assert (with_key.status_code, with_key.headers["content-type"]) == (
        200,
        "text/html; charset=utf-8",
    )
    assert all("From elsewhere" not in rule["text"] for rule in program.get("/api/rules")["rules"])


def test_a_provider_that_refuses_connections_is_seen_before_the_first_request(home: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    config = (
        '[[providers]]\nname = "gone"\nkind = "openai"\nbase_url ='
        f' "http://127.0.0.1:{port}/v1"\napi_key = "sk-gone"\n'
    )
    program = Program(home / "gone", config).start()
    try:
        (provider,) = program.get("/api/status")["providers"]
        assert provider["state"] == "failing"
        assert "connection refused" in provider["last_failure"]["reason"]
        today = httpx.get(program.url, headers={**program.auth, **HTML}, timeout=PATIENCE_S).text
        assert "Provider gone does not answer" in today
    finally:
        program.stop()
