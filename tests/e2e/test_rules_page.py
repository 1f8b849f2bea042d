"""The rules page in a real browser: list, add, change, widen, remove, undo, restore, and what is noted elsewhere appears."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.browser import CHROMIUM, Browser
from tests.support.program import KEY, PATIENCE_S, Program

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")


@pytest.fixture
def browser(program: Program, tmp_path: Path) -> Iterator[Browser]:
    opened = Browser(tmp_path / "profile")
    try:
        opened.open(f"{program.url}/k/{KEY}/ui")
        opened.wait_for("document.querySelector('#rules li') !== null")
        yield opened
    finally:
        opened.close()
        for rule in program.get("/api/rules")["rules"]:
            httpx.delete(f"{program.url}/api/rules/{rule['name']}", headers=program.auth, timeout=PATIENCE_S)


def texts(where: str) -> str:
    return f"JSON.stringify([...document.querySelectorAll('#{where} .text')].map((one) => one.textContent))"


def press(label: str) -> str:
    return f"[...document.querySelectorAll('button')].find((one) => one.textContent === '{label}').click()"


def fill(form: str, **values: str) -> str:
    set_all = "; ".join(f"document.querySelector('{form} [name={name}]').value = {value!r}" for name, value in values.items())
    return f"{set_all}; document.querySelector('{form}').requestSubmit()"


def test_a_person_keeps_their_rules_on_the_page(program: Program, browser: Browser) -> None:
    browser.run(fill("#add", text="Use <b>uv</b>.", workspace="/srv/shop", when="installing"))
    browser.wait_for(f"{texts('rules')} === '[\"Use <b>uv</b>.\"]'")
    (rule,) = program.get("/api/rules")["rules"]
    assert (rule["text"], rule["workspace"], rule["when"], rule["scope"]) == ("Use <b>uv</b>.", "/srv/shop", "installing", None)
    assert browser.run("document.querySelector('#rules b')") is None, "words are never HTML"
    browser.run(press("Widen to all projects"))
    browser.wait_for("[...document.querySelectorAll('#rules .tag')].some((one) => one.textContent === 'all projects')")
    assert program.get("/api/rules")["rules"][0]["workspace"] is None
    browser.run(press("Edit"))
    browser.run(fill("#rules form", text="Use uv.", workspace="/srv/other", when="", expires="2099-01-31"))
    browser.wait_for(f"{texts('rules')} === '[\"Use uv.\"]'")
    (rule,) = program.get("/api/rules")["rules"]
    assert (rule["workspace"], rule["when"], rule["expires"]) == ("/srv/other", "always", "2099-01-31")
    browser.run(press("Remove"))
    browser.wait_for(f"{texts('retired')}.includes('Use uv.') && {texts('rules')} === '[]'")
    browser.run(press("Undo the last lesson"))
    browser.wait_for(f"{texts('rules')} === '[\"Use uv.\"]'")
    assert "Undone: removed the rule" in browser.run("document.getElementById('message').textContent")


def test_what_is_noted_elsewhere_appears_and_a_refusal_is_told(program: Program, browser: Browser) -> None:
    said = {"text": "Said to an agent."}
    httpx.post(f"{program.url}/api/rules", json=said, headers=program.auth, timeout=PATIENCE_S).raise_for_status()
    browser.wait_for(f"{texts('rules')}.includes('Said to an agent.')")
    browser.run(fill("#add", text="x", scope="ann"))
    browser.wait_for("document.getElementById('message').textContent.includes('write `everyone`')")


def test_the_page_needs_the_key(program: Program) -> None:
    assert httpx.get(f"{program.url}/ui", timeout=PATIENCE_S).status_code == 401
    page = httpx.get(f"{program.url}/ui", headers=program.auth, timeout=PATIENCE_S)
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
