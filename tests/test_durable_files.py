"""Files are replaced in one step, flushed in an order that survives a power cut, and leave nothing
behind when that fails.
"""

import os
import stat
from pathlib import Path

import pytest

from metaclaw.durable_files import BY_UMASK, OWNER_ONLY, replace_file, sync_path, write_file


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is flushed and renamed, in order."""
    done: list[str] = []
    replace, flush = Path.replace, os.fsync

    def noted_replace(draft: Path, target: Path) -> Path:
        done.append(f"rename to {target.name}")
        return replace(draft, target)

    def noted_flush(handle: int) -> None:
        done.append("flush folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "flush file")
        flush(handle)

    monkeypatch.setattr(Path, "replace", noted_replace)
    monkeypatch.setattr(os, "fsync", noted_flush)
    return done


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_file_is_flushed_before_it_gets_its_name_and_the_folder_after(
    steps: list[str], tmp_path: Path
) -> None:
    (tmp_path / "it").write_bytes(b"old, and longer")
    replace_file(tmp_path / "it", b"a new ", b"text")
    assert (tmp_path / "it").read_bytes() == b"a new text"
    assert steps == ["flush file", "rename to it", "flush folder"]


def test_without_flush_it_is_still_replaced_in_one_step(steps: list[str], tmp_path: Path) -> None:
    replace_file(tmp_path / "it", b"text", flush=False)
    assert (steps, (tmp_path / "it").read_bytes()) == (["rename to it"], b"text")


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o000])
def test_a_file_is_its_owners_unless_the_umask_may_decide(umask: int, tmp_path: Path) -> None:
    earlier = os.umask(umask)
    try:
        replace_file(tmp_path / "private", b"")
        replace_file(tmp_path / "shared", b"", mode=BY_UMASK)
        write_file(tmp_path / "written", b"")
    finally:
        os.umask(earlier)
    assert _mode(tmp_path / "private") == OWNER_ONLY
    assert _mode(tmp_path / "shared") == _mode(tmp_path / "written") == BY_UMASK & ~umask


def test_a_link_stays_a_link_or_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "file")
    replace_file(tmp_path / "link", b"followed")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "elsewhere" / "file").read_bytes() == b"followed"
    replace_file(tmp_path / "link", b"replaced", follow_links=False)
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "elsewhere" / "file").read_bytes() == b"followed"


@pytest.mark.parametrize("failing", ["flush", "rename", "cancel"])
def test_a_failure_leaves_the_old_content_and_nothing_else(
    failing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "it").write_bytes(b"old")
    kind = KeyboardInterrupt if failing == "cancel" else OSError

    def fail(*_: object) -> None:
        raise kind

    if failing == "rename":
        monkeypatch.setattr(Path, "replace", fail)
    else:
        monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(kind):
        replace_file(tmp_path / "it", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["it"]
    assert (tmp_path / "it").read_bytes() == b"old"


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent"):
        replace_file(tmp_path / "absent" / "it", b"text")


def test_two_writers_of_one_file_do_not_share_a_draft(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    replace, drafts = Path.replace, set()

    def noted(draft: Path, target: Path) -> Path:
        drafts.add(draft.name)
        if len(drafts) == 1:
            replace_file(tmp_path / "it", b"the second")
        return replace(draft, target)

    monkeypatch.setattr(Path, "replace", noted)
    replace_file(tmp_path / "it", b"the first")
    assert len(drafts) == 2
    assert all(name.startswith(".it.") and name.endswith(".tmp") for name in drafts)
    assert (tmp_path / "it").read_bytes() == b"the first"


def test_a_file_written_in_place_and_a_folder_are_flushed(steps: list[str], tmp_path: Path) -> None:
    write_file(tmp_path / "it", b"long text")
    write_file(tmp_path / "it", b"te", b"xt")
    sync_path(tmp_path)
    assert (steps, (tmp_path / "it").read_bytes()) == (
        ["flush file", "flush file", "flush folder"],
        b"text",
    )
