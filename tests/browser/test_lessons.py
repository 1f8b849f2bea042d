"""What was learned from work, on the page: lessons with their failures, the turn in which one helped,
and what a person said in doubt, asked in their words.
"""

from collections.abc import Iterator

import httpx
import pytest

from metaclaw.domain.candidate import Standing
from metaclaw.domain.ids import new_session_id
from metaclaw.domain.turn import Turn
from tests.browser.driver import AXE, PageDriver
from tests.cli.recorded import (
    asking,
    candidate,
    helped_by,
    keep,
    lesson,
    record,
    stated,
    turn,
)
from tests.support.program import NOT_LEARNING, PATIENCE_S, Program, providers_toml
from tests.support.provider import Provider

pytestmark = pytest.mark.of_target("test-browser", bool(AXE))
IN_FORCE = lesson("run-with-uv", "Run the tests with `uv run pytest`.", workspace="/home/ann/shop")
HELPED = helped_by(IN_FORCE, new_session_id(), generation=1)


@pytest.fixture(scope="module")
def said() -> Turn:
    return asking(new_session_id(), "Ha, and from now on deploy on Fridays only.")


@pytest.fixture(scope="module")
def program(
    provider: Provider, said: Turn, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Program]:
    home = tmp_path_factory.mktemp("lessons") / "home"
    running = Program(home, providers_toml(provider.url), env=NOT_LEARNING)
    taught = turn(new_session_id())
    record(home, taught, said)
    withdrawn = lesson("push-after-pull", "Pull with rebase before you push.")
    waiting = lesson("install-from-mirror", "Install packages with `pip install -i MIRROR`.")
    keep(
        home,
        candidate(IN_FORCE, taught.id, Standing.ACCEPTED, "kept"),
        candidate(withdrawn, taught.id, Standing.ACCEPTED, "kept"),
        candidate(waiting, taught.id, reason="its fix installs from elsewhere"),
        stated("fridays", "Deploy on Fridays only.", said.id),
        stated("be-brief", "Keep answers short.", taught.id),
    )
    record(home, HELPED)
    running.start()
    httpx.post(
        f"{running.url}/api/skills/push-after-pull/retire",
        headers=running.auth,
        timeout=PATIENCE_S,
    ).raise_for_status()
    yield running
    assert running.stop() == 0, running.log.read_text()[-4000:]


def test_lessons_stand_with_their_failure_and_what_waits_or_was_withdrawn_apart(
    page: PageDriver,
) -> None:
    page.open("/ui/rules")
    page.assert_shows("Run the tests with `uv run pytest`.")
    page.assert_shows("after shell: ModuleNotFoundError")
    lessons = page.browser.run("document.getElementById('lessons').innerText")
    assert "Install packages" not in lessons
    assert "Pull with rebase" not in lessons
    page.assert_shows("“Install packages with `pip install -i MIRROR`.” — keep it as a lesson?")
    page.press("No longer in force: 1")
    page.assert_shows("Pull with rebase before you push.")
    page.open("/ui/rules/run-with-uv")
    page.assert_shows("Run the tests with `uv run pytest`.")
    assert page.findings() == []
    page.press("Undo")
    page.agree()
    page.assert_shows("run-with-uv is retired")
    page.press("Restore", "#notice")
    page.assert_shows("run-with-uv is in force again")


def test_what_was_said_in_doubt_is_asked_in_the_persons_words_and_kept_in_one_click(
    program: Program, page: PageDriver
) -> None:
    page.open("/")
    page.assert_shows("You said: “Deploy on Fridays only.” — keep it as a rule?")
    page.assert_shows("a second reading disagrees: it was a joke")
    page.press("Keep it", "[aria-label='fridays']")
    page.assert_shows("fridays is in force")
    rules = {one["text"] for one in program.get("/api/rules")["rules"]}
    assert rules == {"Deploy on Fridays only."}
    page.press("No", "[aria-label='be-brief']")
    page.assert_shows("be-brief is rejected")
    page.assert_hides("Keep answers short.", "#waits")
    assert page.findings() == []


def test_a_turn_shows_the_failed_call_that_a_lesson_stands_behind(page: PageDriver) -> None:
    page.open(f"/ui/turns/{HELPED.id}")
    page.assert_shows("failed in its way; it is behind that result")
    page.assert_shows('shell {"command": "pytest -q"}')
    page.assert_shows("ModuleNotFoundError: No module named 'app'")
    assert page.findings() == []
