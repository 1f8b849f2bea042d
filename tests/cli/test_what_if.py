"""`metaclaw whatif` without a proxy: a rule's check is tried on the home's own turns."""

from pathlib import Path

from metaclaw.domain.ids import new_session_id
from metaclaw.domain.turn import Scope
from tests.api.test_what_if import NO_PIP, answering
from tests.cli.program import metaclaw
from tests.cli.recorded import record, turn


def a_home(home: Path) -> str:
    """A home with a turn that installs with pip, and one that does not; returns the first's id."""
    base = turn(new_session_id())
    bad = answering(base, "pip install attrs", agent="codex", scope=Scope())
    record(home, bad, answering(base, "uv add attrs", agent="codex", scope=Scope()))
    return bad.id


def test_a_new_check_is_tried_and_the_turns_are_named(home: Path, tmp_path: Path) -> None:
    bad = a_home(home)
    done = metaclaw("whatif", "--check", NO_PIP)
    assert done.code == 0, done.err
    first, *others = done.out.splitlines()
    assert first == (
        "This check would have held 1 of 2 answers with such calls of the last 30 days (2 turns"
        " were read)."
    )
    assert "by agent    codex 1 of 2" in done.out
    assert any(bad in line and "pip install attrs" in line for line in others)
    file = tmp_path / "check"
    file.write_text(NO_PIP)
    again = metaclaw("whatif", "--check", str(file), "--limit", "1", "--json").facts
    assert (again["check"], again["read"], again["broken"]) == (NO_PIP, 1, 0)
    assert "only the newest 1 turns" in again["stopped"]


def test_a_rule_with_a_check_says_when_it_is_added_what_it_would_have_held(home: Path) -> None:
    a_home(home)
    added = metaclaw("rules", "add", "Use uv.", "--check", NO_PIP)
    assert (
        "This check would have held 1 of 2 answers with such calls of the last 30 days: metaclaw"
        " whatif use-uv" in added.out
    )
    assert metaclaw("whatif", "use-uv", "--json").facts["broken"] == 1
    assert "whatif" not in metaclaw("rules", "add", "Be kind.").out
    other = metaclaw("rules", "add", "No docker.", "--check", "not in calls of browser: docker").out
    assert "To try its check on what is recorded: metaclaw whatif no-docker" in other


def test_what_it_needs_is_said(home: Path) -> None:
    assert metaclaw("whatif").code == 2
    assert metaclaw("whatif", "use-uv", "--text", "Use uv.").code == 2
    assert "no rule named use-uv" in metaclaw("whatif", "use-uv").err
