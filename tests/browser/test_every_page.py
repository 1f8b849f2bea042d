"""Every page with a day's work in it, in a real browser: no serious finding of axe-core, and every
action does what it says.
"""

from collections.abc import Iterator

import pytest

from tests.browser.driver import AXE, PageDriver
from tests.support.program import Program
from tests.support.workplace import Agent, Workplace, program_at_work, work_a_day

pytestmark = pytest.mark.of_target("test-browser", bool(AXE))
WIDE, PHONE = (1200, 900), (390, 844)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    workplace = Workplace()
    workplace.start()
    running = program_at_work(workplace, tmp_path_factory.mktemp("work") / "home").start()
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]
    workplace.stop()


@pytest.fixture(scope="module")
def agents(program: Program) -> dict[str, Agent]:
    done = work_a_day(program)
    program.wait_for(
        "/api/skills", lambda facts: any(one["kind"] == "skill" for one in facts["skills"])
    )
    return done


def test_no_page_has_a_serious_finding(
    program: Program, agents: dict[str, Agent], page: PageDriver
) -> None:
    turn, session = agents["export-again"].turn, agents["export"].session
    paths = [
        "/",
        "/ui/progress",
        "/ui/sessions",
        f"/ui/sessions/{session}",
        f"/ui/turns/{turn}",
        "/ui/rules",
        "/ui/rules/migrate-before-deploy",
    ]
    paths += [
        "/ui/rules/use-uv-instead-of-pip-for-python",
        "/ui/cost",
        "/ui/sessions/no-such-session",
    ]
    found: dict[str, object] = {}
    for path in paths:
        for scheme in ("light", "dark"):
            for width, height in (WIDE, PHONE):
                metrics = {
                    "width": width,
                    "height": height,
                    "deviceScaleFactor": 1,
                    "mobile": width < 600,
                }
                page.browser.send("Emulation.setDeviceMetricsOverride", **metrics)
                page.browser.send(
                    "Emulation.setEmulatedMedia",
                    features=[{"name": "prefers-color-scheme", "value": scheme}],
                )
                page.open(path)
                page.browser.run(
                    "document.querySelectorAll('details').forEach((one) => { one.open = true; })"
                )
                if findings := page.findings():
                    found[f"{path} {scheme} {width}"] = findings
                assert page.browser.run("document.documentElement.scrollWidth <= innerWidth"), (
                    f"{path} is wider than {width}"
                )
    assert found == {}


def test_lessons_are_narrowed_kept_and_taken_back(
    program: Program, agents: dict[str, Agent], page: PageDriver
) -> None:
    page.open("/")
    page.press("Keep", "#learned")
    page.assert_shows("stays in force without an end")
    page.press("Only this project", "#learned")
    page.assert_shows("applies only in /home/ada/shop now")
    page.press("Undo", "#notice")
    page.assert_shows("As before")
    before = len(program.get("/api/rules")["rules"])
    page.press("Undo", "#learned")
    page.agree()
    page.assert_shows("Taken back")
    page.press("Bring it back", "#notice")
    page.assert_shows("As before")
    assert len(program.get("/api/rules")["rules"]) == before


def test_a_skill_is_edited_pinned_retired_and_restored(
    program: Program, agents: dict[str, Agent], page: PageDriver
) -> None:
    path = "/ui/rules/migrate-before-deploy"
    page.open(path)
    page.press("Retire")
    page.agree()
    page.assert_shows("is retired")
    page.press("Restore", "#notice")
    page.assert_shows("is in force again")
    page.open(path)
    page.fill("#edit form", body="Apply migrations first.")
    page.assert_shows("it is yours now")
    assert program.get("/api/skills/migrate-before-deploy")["body"] == "Apply migrations first."
    page.open(path)
    page.press("Unpin")
    page.assert_shows("no longer pinned")
    page.press("Pin")
    page.assert_shows("is pinned")


def test_a_rule_is_edited_and_everything_goes_back_to_an_earlier_generation(
    program: Program, agents: dict[str, Agent], page: PageDriver
) -> None:
    # A sure phrase's rule has this name until the model's words replace it.
    names = (one["name"] for one in program.get("/api/rules")["rules"])
    name = next(name for name in names if name.startswith("never-push-to-main"))
    page.open(f"/ui/rules/{name}#edit")
    page.fill("#edit form", text="Never push to main or to a release branch.")
    page.assert_shows("Changed: Never push to main or to a release branch.")
    page.open("/ui/rules")
    page.browser.run("document.getElementById('history-list').open = true")
    page.press("Go back", "#history")
    page.agree()
    page.assert_shows("are in force again")
    page.press("Return to where you were", "#notice")
    page.assert_shows("are in force again")


def test_a_turn_is_rated_with_a_comment_and_found_by_its_words(
    program: Program, agents: dict[str, Agent], page: PageDriver
) -> None:
    agent = agents["flaky"]
    page.open(f"/ui/turns/{agent.turn}")
    page.press("Say why")
    page.browser.run(
        "document.querySelector('.comment textarea').value = 'It waited for the right thing.'"
    )
    page.press("Good", ".comment")
    page.assert_shows("It waited for the right thing.")
    page.open("/ui/sessions?q=flaky")
    page.assert_shows("1 session found")
    assert page.browser.run("document.querySelector('mark.placed')") is None
    page.open(f"/ui/turns/{agents['export-again'].turn}")
    assert "Use uv instead of pip" in page.browser.run(
        "document.querySelector('mark.placed').innerText"
    )


def test_keys_move_and_the_page_works_without_its_script(
    program: Program, agents: dict[str, Agent], page: PageDriver
) -> None:
    page.open("/")
    for key in ("3", "j"):
        page.browser.run(
            f"document.body.dispatchEvent(new KeyboardEvent('keydown', {{key: '{key}', bubbles:"
            " true}))"
        )
        page.browser.wait_for(
            "location.pathname === '/ui/sessions' && document.readyState === 'complete'"
        )
    page.browser.wait_for("document.activeElement.matches('[data-entry]')")
    page.browser.send("Emulation.setScriptExecutionDisabled", value=True)
    page.browser.send("Page.navigate", url=f"{page.url}/ui/rules")
    page.assert_shows("Your rules and facts")
    page.browser.run(
        "[...document.querySelectorAll('#rules form')].find((one) =>"
        " one.action.includes('rule-remove')).requestSubmit()"
    )
    page.assert_shows("Sure?")


def test_the_palette_goes_to_a_page_a_rule_and_a_session_by_their_words(
    program: Program, agents: dict[str, Agent], page: PageDriver
) -> None:
    for words, path in (
        ("cost", "/ui/cost"),
        ("migrate deploy", "/ui/rules/migrate-before-deploy"),
        ("flaky", f"/ui/sessions/{agents['flaky'].session}"),
    ):
        page.open("/")
        page.browser.run(
            "document.body.dispatchEvent(new KeyboardEvent('keydown', {key: 'k', ctrlKey: true,"
            " bubbles: true}))"
        )
        page.browser.run(
            f"$('find').value = '{words}'; $('find').dispatchEvent(new Event('input', {{bubbles: true}}))"
        )
        page.browser.wait_for(
            f"$('found').querySelector('[aria-selected=true]')?.dataset.href === '{path}'"
        )
        assert page.findings() == []
        page.browser.run(
            "$('find').dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', bubbles: true}))"
        )
        page.browser.wait_for(f"location.pathname === '{path}'")
