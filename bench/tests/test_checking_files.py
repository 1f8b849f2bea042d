"""File checks run out of the agent's reach, end in time, and never take a broken check for a wrong
answer.
"""

import os
import select
import sys
from pathlib import Path

import pytest

from metaclaw_bench.checking import CheckBroken, Checked, run_check
from metaclaw_bench.questions import FileCheck
from metaclaw_bench.workspaces import TooMuchError, copy_tree


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    (folder / "it.txt").write_text("new\n")
    return folder


def check(workspace: Path, command: str, **more: object) -> Checked:
    outcome = run_check(FileCheck(command, **more), workspace)  # type: ignore[arg-type]
    assert isinstance(outcome, Checked)
    return outcome


def test_a_check_passes_by_its_exit_and_its_output(workspace: Path) -> None:
    command = "cat it.txt; echo grumble >&2; exit 3"
    assert check(workspace, command, expect_exit=3) == Checked(
        True, 3, "new\n", "grumble\n", "as expected"
    )
    assert check(workspace, command).why == "exit 3 instead of 0"
    assert check(workspace, command, expect_exit=3, expect_stdout="ne").passed
    assert not check(workspace, command, expect_exit=3, expect_stdout="n.w").passed
    assert check(workspace, command, expect_exit=3, expect_stdout="n.w", is_regex=True).passed


def test_the_workspace_stays_as_it_is(workspace: Path) -> None:
    assert check(workspace, "rm it.txt && touch other && ls").stdout == "other\nscripts\n"
    assert [path.name for path in workspace.iterdir()] == ["it.txt"]


def test_python_is_this_one_and_the_environment_is_clean(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "value")
    # A link to an interpreter outside its virtual environment is the interpreter that was linked to
    # there.
    version = ".".join(str(part) for part in sys.version_info[:3])
    assert (
        check(workspace, "python -c 'import platform; print(platform.python_version())'").stdout
        == f"{version}\n"
    )
    assert "A_SECRET" not in check(workspace, "env").stdout


def test_checkers_and_modules_an_agent_planted_decide_nothing(workspace: Path) -> None:
    (workspace / "scripts").mkdir()
    (workspace / "scripts/check_backup.py").write_text("raise SystemExit(0)")
    for name in ("glob", "json", "pathlib", "sitecustomize", "usercustomize"):
        (workspace / f"{name}.py").write_text("import os; os._exit(0)")
    assert check(workspace, "python scripts/check_backup.py it.txt").exit == 1
    assert (
        check(
            workspace,
            "python -c \"import glob, json, sys; sys.exit(0 if glob.glob('*.md') else 1)\"",
        ).exit
        == 1
    )


def test_checkers_of_the_data_come_before_ours(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/shared_rules.py").write_text("CODE = 7")
    (tmp_path / "theirs/check_it.py").write_text(
        "import shared_rules, sys; sys.exit(shared_rules.CODE)"
    )
    outcome = run_check(FileCheck("python scripts/check_it.py", 7), workspace, tmp_path / "theirs")
    assert isinstance(outcome, Checked)
    assert outcome.passed


def test_a_checker_nobody_has_breaks_the_check_and_fails_nobody(workspace: Path) -> None:
    outcome = run_check(FileCheck("python scripts/check_moon.py it.txt"), workspace)
    assert isinstance(outcome, CheckBroken)
    assert "check_moon.py" in outcome.why


def test_a_workspace_that_is_gone_breaks_the_check(tmp_path: Path) -> None:
    assert isinstance(run_check(FileCheck("true"), tmp_path / "nowhere"), CheckBroken)


def test_a_check_that_takes_too_long_is_ended_with_all_its_children(
    workspace: Path, tmp_path: Path
) -> None:
    note = tmp_path / "pid"
    outcome = check(workspace, f"sleep 60 & echo $! > {note}; wait", timeout_s=0.5)
    assert (outcome.passed, outcome.exit) == (False, None)
    assert "0.5 s" in outcome.why
    assert _ends(int(note.read_text()))


def test_what_a_check_leaves_running_ends_with_it(workspace: Path, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    assert check(workspace, f"sleep 60 & echo $! > {note}").passed
    assert _ends(int(note.read_text()))


def _ends(pid: int) -> bool:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], 5)[0])
    finally:
        os.close(process)


def test_only_the_end_of_a_long_output_is_kept(workspace: Path) -> None:
    outcome = check(workspace, "yes é | head -c 300000; echo end")
    assert outcome.stdout.endswith("end\n")
    assert len(outcome.stdout) <= 2_000


def test_links_that_lead_out_and_pipes_are_left_behind(workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("answers")
    (workspace / "absolute").symlink_to(tmp_path / "secret")
    (workspace / "climbing").symlink_to("../secret")
    (workspace / "circle").symlink_to("circle")
    (workspace / "inside").symlink_to("it.txt")
    os.mkfifo(workspace / "pipe")
    assert check(workspace, "cat inside; ls").stdout == "new\ninside\nit.txt\nscripts\n"


def test_too_large_a_workspace_is_a_wrong_answer_and_not_a_full_disk(
    workspace: Path, tmp_path: Path
) -> None:
    with (workspace / "huge").open("wb") as file:
        file.truncate(1 << 40)
    assert "too large" in check(workspace, "true").why
    with pytest.raises(TooMuchError):
        copy_tree(workspace, tmp_path / "copy", most_bytes=3)
