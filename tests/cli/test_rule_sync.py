"""`metaclaw rules export --watch`: our section follows the rules, others' lines are proposals, and
every other byte stays."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from metaclaw.cli.rule_sync import RuleSync
from metaclaw.domain.candidate import CandidateId, Standing
from metaclaw.errors import SkillError
from metaclaw.store import SqlCandidates
from tests.cli.program import metaclaw
from tests.cli.recorded import store
from tests.support.program import NOT_LEARNING, PATIENCE_S, UNREACHABLE, Program

BEGIN, END = "<!-- metaclaw rules: begin -->", "<!-- metaclaw rules: end -->"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shop" / "AGENTS.md"
    path.parent.mkdir()
    return path


def synced(home: Path, file: Path) -> str:
    RuleSync(home, file, str(file.parent), None).sync()
    return file.read_bytes().decode()


def waiting() -> list[dict[str, Any]]:
    found = metaclaw("candidates", "list", "--standing", "waiting", "--json").facts["candidates"]
    assert isinstance(found, list)
    return found


def rules() -> list[str]:
    return [one["text"] for one in metaclaw("rules", "--json").facts["rules"]]


def test_the_section_follows_the_rules_and_no_other_byte_changes(home: Path, file: Path) -> None:
    head, tail = (
        "# Shop  \r\n\r\nOurs: \u00e9\t\r\n",
        "\r\n\r\n## After\r\n- Build with make.  \r\n\r\n",
    )
    file.write_bytes(f"{head}{BEGIN}\r\n{END}{tail}".encode())
    file.chmod(0o640)
    metaclaw("rules", "add", "Use uv.", "--project", str(file.parent))
    metaclaw("rules", "add", "Use npm.", "--project", str(home))
    text = synced(home, file)
    assert text.startswith(head + BEGIN)
    assert text.endswith(END + tail)
    assert ("- Use uv." in text, "Use npm." in text) == (True, False)
    assert "\n" not in text.replace("\r\n", "")
    assert file.stat().st_mode & 0o777 == 0o640
    written = file.stat()
    assert synced(home, file) == text
    assert os.path.samestat(written, file.stat())
    metaclaw("rules", "edit", "use-uv", "--text", "Use uv, never pip.")
    assert "- Use uv, never pip." in synced(home, file)
    metaclaw("rules", "remove", "use-uv", "--yes")
    empty = synced(home, file)
    assert "Use uv" not in empty
    assert empty.startswith(head + BEGIN)
    assert empty.endswith(END + tail)
    assert waiting() == []


def test_a_file_without_a_section_keeps_all_its_bytes(home: Path, file: Path) -> None:
    metaclaw("rules", "add", "Use uv.")
    for text in ("", "# Shop", "# Shop\n", "# Shop\n\n\n\n", "# Shop\r\n"):
        file.write_bytes(text.encode())
        assert synced(home, file).startswith(text)
        assert synced(home, file).count(BEGIN) == 1


def test_a_line_of_a_colleague_is_proposed_once_and_stays_until_it_is_decided(
    home: Path, file: Path
) -> None:
    metaclaw("rules", "add", "Use uv.", "--project", str(file.parent))
    text = synced(home, file)
    theirs = text.replace(
        END, '- Sign every commit. <!-- {"scope":"user:eve","workspace":"/eve"} -->\n' + END
    )
    file.write_text(theirs)
    kept = synced(home, file)
    (one,) = waiting()
    assert one["question"] == (
        f"AGENTS.md proposes in {file.parent}: “Sign every commit.” — put it in force?"
    )
    assert one["scope"] is None
    assert rules() == ["Use uv."]
    assert "## Proposed, not approved yet\n\n- Sign every commit." in kept
    assert synced(home, file) == kept
    (home / "exports").rename(home / "lost")
    assert synced(home, file) == kept
    assert len(waiting()) == 1


def test_a_line_that_was_turned_away_is_not_proposed_again(home: Path, file: Path) -> None:
    metaclaw("rules", "add", "Use uv.")
    file.write_text(synced(home, file).replace(END, "- Delete old branches.\n" + END))
    synced(home, file)
    (one,) = waiting()

    with store(home) as database:
        known = SqlCandidates(database).candidate(CandidateId(one["id"]))
        assert known is not None
        SqlCandidates(database).save_candidate(replace(known, standing=Standing.REJECTED))
    after = synced(home, file)
    assert "Delete old branches." not in after
    file.write_text(after.replace(END, "- Delete old branches.\n" + END))
    assert "Delete old branches." not in synced(home, file)
    assert waiting() == []


def test_a_file_with_conflict_marks_is_left_alone(home: Path, file: Path) -> None:
    metaclaw("rules", "add", "Use uv.")
    text = f"{BEGIN}\n<<<<<<< ours\n- Use uv.\n=======\n- Use pip.\n>>>>>>> theirs\n{END}\n"
    file.write_text(text)
    assert synced(home, file) == text
    assert waiting() == []


@pytest.mark.parametrize(
    "text",
    [
        f"- Use uv.\n{END}\n",
        f"{BEGIN}\n- Use uv.\n",
        f"{END}\n- Use uv.\n{BEGIN}\n",
        f"{BEGIN}\n{END}\n{BEGIN}\n- Use uv.\n{END}\n",
    ],
)
def test_a_file_with_damaged_marks_is_told_and_left_alone(
    home: Path, file: Path, text: str
) -> None:
    metaclaw("rules", "add", "Use pnpm.")
    file.write_text(text)
    with pytest.raises(SkillError, match="leave one of each, in this order, or none"):
        synced(home, file)
    done = metaclaw("rules", "export", "--to", str(file), "--yes")
    assert (done.code, file.read_text(), waiting()) == (1, text, [])


def test_a_rule_that_names_a_mark_ends_no_section(home: Path, file: Path) -> None:
    metaclaw("rules", "add", f"Write {END} below the rules.")
    once = synced(home, file)
    assert synced(home, file) == once
    assert once.count(END) == 1


def test_watching_needs_a_file_and_a_running_proxy(home: Path, file: Path) -> None:
    assert metaclaw("rules", "export", "--watch").code == 2
    refused = metaclaw("rules", "export", "--watch", "--to", str(file), "--yes")
    assert (refused.code, "no proxy runs" in refused.err) == (1, True)


def test_the_file_follows_a_running_proxy_and_the_proxy_hears_of_the_file(
    home: Path, file: Path
) -> None:
    file.write_text("# Shop\n")
    served = Program(home, UNREACHABLE, env=NOT_LEARNING).start()
    command = [sys.executable, "-m", "metaclaw.cli", "rules", "export", "--to", str(file)]
    watcher = subprocess.Popen([*command, "--watch", "--yes"], env=served.env)
    try:
        wait_until(lambda: BEGIN in file.read_text())
        assert served.command("rules", "add", "Use uv.").returncode == 0
        wait_until(lambda: "- Use uv." in file.read_text())
        file.write_text(file.read_text().replace(END, "- Sign every commit.\n" + END))
        asked = served.wait_for("/api/candidates?standing=waiting", lambda it: it["candidates"])
        (one,) = asked["candidates"]
        assert "Sign every commit." in one["question"]
        assert served.command("candidates", "approve", one["id"]).returncode == 0
        wait_until(lambda: "Proposed" not in file.read_text())
        assert "- Sign every commit." in file.read_text()
        assert file.read_text().startswith("# Shop\n")
    finally:
        watcher.kill()
        watcher.wait(60)
        served.stop()


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.1)
