"""`metaclaw skills`, as the real program on real files."""

from pathlib import Path

import pytest

from tests.cli.program import metaclaw, program

SKILL = """---
name: backup-first
description: Before changing a file that has no copy
category: files
---
Copy the file to `*.bak` first.
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "download" / "SKILL.md"
    path.parent.mkdir()
    path.write_text(SKILL)
    return path


def test_a_skill_is_added_listed_shown_and_removed(home: Path, source: Path) -> None:
    assert program("skills", "list", "--json").facts == {"skills": [], "skipped": []}
    added = program("skills", "add", str(source))
    assert (added.code, added.err) == (0, "")
    assert (home / "skills" / "backup-first" / "SKILL.md").is_file()
    (listed,) = program("skills", "list", "--json").facts["skills"]
    assert (listed["name"], listed["description"], listed["category"]) == (
        "backup-first",
        "Before changing a file that has no copy",
        "files",
    )
    assert "backup-first  files     Before changing a file" in program("skills", "list").out
    shown = program("skills", "show", "backup-first", "--json").facts
    assert shown["body"].strip() == "Copy the file to `*.bak` first."
    assert "Copy the file to `*.bak` first." in program("skills", "show", "backup-first").out
    assert program("skills", "remove", "backup-first", "--yes", "--json").facts == {"removed": "backup-first"}
    assert program("skills", "list").out.startswith("No skills in")
    assert not (home / "skills" / "backup-first").exists()


def test_a_folder_may_be_added_and_replaced_only_on_a_word(source: Path) -> None:
    assert metaclaw("skills", "add", str(source.parent), "--json").facts["replaced"] is False
    source.write_text(SKILL.replace("Copy", "Always copy"))
    refused = metaclaw("skills", "add", str(source))
    assert refused.code == 1
    assert "--yes" in refused.err
    assert "Always" not in metaclaw("skills", "show", "backup-first").out
    assert metaclaw("skills", "add", str(source), given="y\n").code == 0
    assert "Always copy" in metaclaw("skills", "show", "backup-first").out
    assert metaclaw("skills", "add", str(source), "--replace", "--json").facts["replaced"] is True
    assert metaclaw("skills", "add", str(source), "--yes").code == 0


def test_removing_asks_first(source: Path) -> None:
    metaclaw("skills", "add", str(source))
    assert metaclaw("skills", "remove", "backup-first", given="n\n").code == 1
    assert metaclaw("skills", "show", "backup-first").code == 0
    assert metaclaw("skills", "remove", "backup-first", given="y\n").code == 0


@pytest.mark.parametrize("name", ["nothing", "../config.toml", "..", ".", "", "a/b"])
def test_a_name_that_is_no_skill_is_refused(home: Path, name: str) -> None:
    (home / "skills").mkdir(parents=True)
    for command in (("show", name), ("remove", name, "--yes")):
        refused = metaclaw("skills", *command)
        assert refused.code == 1
        assert "there is no skill named" in refused.err
    assert (home / "skills").is_dir()


def test_an_unreadable_file_is_named_and_the_rest_is_listed(home: Path, source: Path) -> None:
    metaclaw("skills", "add", str(source))
    broken = home / "skills" / "broken" / "SKILL.md"
    broken.parent.mkdir()
    broken.write_bytes(b"\xff\xfe")
    listed = metaclaw("skills", "list")
    assert listed.code == 0
    assert "backup-first" in listed.out
    assert str(broken) in listed.err
    facts = metaclaw("skills", "list", "--json").facts
    assert [entry["path"] for entry in facts["skipped"]] == [str(broken)]
    shown = metaclaw("skills", "show", "broken")
    assert shown.code == 1
    assert "Traceback" not in shown.err


def test_a_file_that_is_no_skill_is_not_added(home: Path, tmp_path: Path) -> None:
    (tmp_path / "SKILL.md").write_text("just words")
    for path in (tmp_path / "SKILL.md", tmp_path / "absent"):
        refused = metaclaw("skills", "add", str(path))
        assert refused.code != 0
        assert "Traceback" not in refused.err
    assert not list((home / "skills").glob("*")) if (home / "skills").exists() else True


def test_the_configured_folder_is_used(tmp_path: Path, source: Path) -> None:
    metaclaw("config", "set", "skills.dir", str(tmp_path / "elsewhere"))
    metaclaw("skills", "add", str(source))
    assert (tmp_path / "elsewhere" / "backup-first" / "SKILL.md").is_file()
