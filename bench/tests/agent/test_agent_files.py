"""The file tools: what they do inside a workspace, and that no path leads out of it."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaclaw_bench.agent.files import (
    MAX_CHARS,
    MAX_ENTRIES,
    RefusedError,
    entries,
    inside,
    read,
    write,
    write_all,
)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "answers.json").write_text("the answers")
    (folder / "out").symlink_to(tmp_path)
    (folder / "file").symlink_to(tmp_path / "answers.json")
    (folder / "loop").symlink_to("loop")
    (folder / "in").symlink_to("sub")
    return folder


ESCAPES = [
    "../answers.json",
    "sub/../../answers.json",
    "/etc/passwd",
    "out/answers.json",
    "file",
    "loop",
    "in/../../answers.json",
    "~/x",
    "a\0b",
]


@pytest.mark.parametrize("path", ESCAPES)
def test_a_path_that_leads_out_is_refused_for_reading_and_writing(
    workspace: Path, path: str
) -> None:
    with pytest.raises(RefusedError):
        read(workspace, path)
    with pytest.raises(RefusedError):
        write(workspace, path, "x")
    assert (workspace.parent / "answers.json").read_text() == "the answers"


@pytest.mark.parametrize("path", ["..", "/", "out", "sub/../.."])
def test_a_folder_outside_is_not_listed(workspace: Path, path: str) -> None:
    with pytest.raises(RefusedError):
        entries(workspace, path)


@given(
    st.lists(
        st.sampled_from(["..", ".", "sub", "out", "in", "a", "", "~", "file"]),
        min_size=1,
        max_size=6,
    ).map("/".join)
)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None
)
def test_whatever_the_path_it_is_inside_or_refused(workspace: Path, path: str) -> None:
    try:
        real = inside(workspace, path)
    except RefusedError:
        return
    assert real.is_relative_to(workspace.resolve())


def test_what_is_written_is_read_and_listed(workspace: Path) -> None:
    assert (
        write(workspace, "new/ä/文 1.txt", "eins\nzwei\ndrei\n")
        == "new/ä/文 1.txt: 15 bytes written"
    )
    assert read(workspace, "new/ä/文 1.txt") == "eins\nzwei\ndrei\n"
    assert entries(workspace, "new") == "ä/"
    assert entries(workspace, "new/ä") == "文 1.txt"
    assert entries(workspace, "sub") == "(nothing)"


def test_a_link_that_stays_inside_works(workspace: Path) -> None:
    write(workspace, "in/a.txt", "x")
    assert (workspace / "sub" / "a.txt").read_text() == "x"


def test_a_part_of_a_file_can_be_read(workspace: Path) -> None:
    write(workspace, "a", "".join(f"{number}\n" for number in range(1, 11)))
    assert read(workspace, "a", offset=9) == "9\n10\n"
    assert (
        read(workspace, "a", offset=2, limit=2)
        == "2\n3\n\n[… more: read on with offset and limit …]"
    )
    assert read(workspace, "a", offset=11) == ""


def test_long_files_and_long_folders_are_cut_and_say_so(workspace: Path) -> None:
    write(workspace, "long", "x" * (MAX_CHARS + 1))
    assert (
        read(workspace, "long") == "x" * MAX_CHARS + "\n[… more: read on with offset and limit …]"
    )
    for number in range(MAX_ENTRIES + 3):
        (workspace / "sub" / f"{number:04}").touch()
    assert entries(workspace, "sub").endswith("\n[… 3 more …]")


def test_what_is_no_ordinary_file_is_neither_read_nor_written(workspace: Path) -> None:
    os.mkfifo(workspace / "pipe")
    for path in ("pipe", "sub", "."):
        with pytest.raises(RefusedError):
            read(workspace, path)
        with pytest.raises(RefusedError):
            write(workspace, path, "x")
    with pytest.raises(RefusedError, match="no such file"):
        read(workspace, "absent")
    with pytest.raises(RefusedError, match="no folder"):
        entries(workspace, "absent")
    with pytest.raises(RefusedError, match="no text"):
        write(workspace, "a", "\ud800")
    with pytest.raises(RefusedError, match="1 or more"):
        read(workspace, "a", offset=0)


def test_of_many_files_the_good_ones_are_written_and_the_others_named(workspace: Path) -> None:
    refusals = write_all(workspace, {"a": "1", "../b": "2", "x" * 300: "3", "c": "4"})
    assert len(refusals) == 2
    assert refusals[0] == "../b: leads out of the workspace"
    assert (workspace / "a").read_text() == "1"
    assert (workspace / "c").read_text() == "4"
    assert not (workspace.parent / "b").exists()
