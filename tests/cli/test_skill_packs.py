"""Packs of skills: written packs can be read, and hostile packs are refused."""

import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from metaclaw.cli import skill_files
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, Skill, SkillState
from metaclaw.errors import SkillError
from metaclaw.skills import Pack
from metaclaw.skills import read_pack as read_texts
from metaclaw.skills.files import MAX_FILE_BYTES, render_skill


def read_pack(path: Path) -> Pack:
    """What the API makes of a pack that the command has read."""
    files, unread = skill_files.read_pack(path)
    pack = read_texts(files)
    return Pack(pack.skills, (*((one["path"], one["reason"]) for one in unread), *pack.faults))


def write_pack(path: Path, skills: Sequence[Skill], *, replaces: bool = False) -> None:
    texts = {str(skill.name): render_skill(skill) for skill in skills}
    skill_files.write_pack(path, texts, replaces=replaces)


MINE = Skill(
    SkillName("espresso"),
    "When brewing espresso",
    "Tamp.",
    category="coffee",
    scope="team:bar",
    other={"license": "MIT"},
)
LEARNED = Skill(
    SkillName("descale"),
    "When descaling",
    "Use citric acid.",
    author=Authorship.EVOLVER,
)
AS_BROUGHT = (replace(LEARNED, state=SkillState.LIVE, author=Authorship.PERSON), MINE)


def zipped(path: Path, entries: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize("name", ["pack.zip", "pack"])
def test_what_goes_in_comes_out_as_the_bringers_own(tmp_path: Path, name: str) -> None:
    write_pack(tmp_path / name, [MINE, LEARNED])
    pack = read_pack(tmp_path / name)
    assert (pack.skills, pack.faults) == (AS_BROUGHT, ())


def test_the_same_skills_make_the_same_bytes(tmp_path: Path) -> None:
    for name, skills in (("a.zip", [MINE, LEARNED]), ("b.zip", [LEARNED, MINE])):
        write_pack(tmp_path / name, skills)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


@pytest.mark.parametrize("name", ["pack.zip", "pack"])
def test_what_is_there_is_replaced_only_on_a_word(tmp_path: Path, name: str) -> None:
    write_pack(tmp_path / name, [MINE])
    with pytest.raises(SkillError, match="already"):
        write_pack(tmp_path / name, [replace(MINE, body="Pull.")])
    assert read_pack(tmp_path / name).skills == (MINE,)
    write_pack(tmp_path / name, [replace(MINE, body="Pull.")], replaces=True)
    assert read_pack(tmp_path / name).skills[0].body == "Pull."


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    with pytest.raises(SkillError, match="cannot be written"):
        write_pack(tmp_path / "absent" / "pack.zip", [MINE])


def test_one_file_nested_folders_and_a_skills_own_folder_are_packs_too(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "repository" / "skills" / "espresso"):
        place.mkdir(parents=True, exist_ok=True)
        (place / "SKILL.md").write_text(render_skill(MINE))
    assert read_pack(tmp_path / "SKILL.md").skills == (MINE,)
    assert read_pack(tmp_path / "repository").skills == (MINE,)
    assert read_pack(tmp_path / "repository" / "skills" / "espresso").skills == (MINE,)


def test_nothing_is_believed_about_where_it_wants_to_be(tmp_path: Path) -> None:
    text = render_skill(MINE).encode()
    pack = read_pack(
        zipped(
            tmp_path / "p.zip",
            {"../../../etc/SKILL.md": text, "/root/notes.txt": b"x", "a/b/c/": b""},
        )
    )
    assert pack.skills == (MINE,)
    assert not (tmp_path.parent.parent / "etc").exists()


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"---\nname: ../up\ndescription: x\n---\nbody", "not a slug"),
        (b"\xff\xfe", "not UTF-8"),
        (b"---\nname: a\ndescription: x\n---\nbo\0dy", "NUL"),
        (b"-" * (MAX_FILE_BYTES + 1), "more than"),
        (b"\0" * (200 * MAX_FILE_BYTES), "more than"),
        (b"words", "no front matter"),
    ],
)
def test_a_faulty_file_is_named_and_the_rest_is_read(
    tmp_path: Path, content: bytes, word: str
) -> None:
    pack = read_pack(
        zipped(
            tmp_path / "p.zip",
            {"bad/SKILL.md": content, "good/SKILL.md": render_skill(MINE).encode()},
        )
    )
    assert pack.skills == (MINE,)
    ((where, reason),) = pack.faults
    assert where.endswith("p.zip/bad/SKILL.md")
    assert word in reason


def test_two_skills_of_one_name_are_not_guessed_between(tmp_path: Path) -> None:
    text = render_skill(MINE).encode()
    pack = read_pack(
        zipped(
            tmp_path / "p.zip", {"a/SKILL.md": text, "b/SKILL.md": text.replace(b"Tamp", b"Pull")}
        )
    )
    assert (pack.skills, "a second skill named espresso" in pack.faults[0][1]) == ((MINE,), True)


def test_what_is_no_pack_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.zip").write_text("no archive")
    cut = zipped(tmp_path / "cut.zip", {"a/SKILL.md": render_skill(MINE).encode()})
    spoilt = cut.read_bytes().replace(b"a/SKILL.md", b"a/SKILL.me", 1)
    cut.write_bytes(spoilt)
    for name, word in (
        ("empty", "no SKILL.md in it"),
        ("text.zip", "neither a folder nor"),
        ("cut.zip", "pack it again"),
    ):
        with pytest.raises(SkillError, match=word):
            read_pack(tmp_path / name)
