"""Several homes on one store: each folder is a view of the store, and only what its own home wrote
can be removed in it.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, Skill, SkillGeneration, SkillState, library_hash
from metaclaw.skills import SkillLibrary, read_skill, remove_skill, write_skill
from metaclaw.skills.file_record import RECORD_FILE, FileRecord, digest_of, write_record
from metaclaw.store import open_database
from tests.skills.generations import Generations
from tests.skills.test_library_publish import LEARNED, MINE, OTHER, ahead, by_name, edit, files

REVISED = replace(LEARNED, body="Use less citric acid.")


@pytest.fixture
def generations() -> Generations:
    return Generations()


Home = Callable[[str], SkillLibrary]


@pytest.fixture
def home(tmp_path: Path, generations: Generations) -> Home:
    """A library on the folder of this name, as a program that starts has it."""
    return lambda name: SkillLibrary(tmp_path / name, generations, ahead)


def in_line(*libraries: SkillLibrary) -> dict[str, Skill]:
    """What is in force in each of these homes, and said by the files in each folder."""
    views = [by_name(library.sync()) for library in libraries]
    for library, view in zip(libraries, views, strict=True):
        assert (view, library.trouble) == (views[0], None)
        assert bodies(files(library.folder)) == bodies(view)
    return views[0]


def bodies(skills: dict[str, Skill]) -> dict[str, str]:
    return {name: skill.body for name, skill in skills.items()}


def test_a_home_that_joins_writes_out_what_the_store_has(
    home: Home, generations: Generations
) -> None:
    first, second = home("a"), home("b")
    first.publish([LEARNED, OTHER], (), "learned")
    second.folder.mkdir()
    assert in_line(first, second) == {"descale": LEARNED, "purge": OTHER}
    assert in_line(home("a"), home("b")) == {"descale": LEARNED, "purge": OTHER}
    assert len(generations.kept) == 2


def test_each_home_takes_over_what_the_other_publishes(
    home: Home, generations: Generations
) -> None:
    first, second = home("a"), home("b")
    in_line(first, second)
    first.publish([LEARNED, OTHER], (), "learned")
    assert in_line(second, first) == {"descale": LEARNED, "purge": OTHER}
    second.publish([REVISED], [OTHER.name], "revised")
    write_skill(second.folder, MINE)
    assert in_line(second, first) == {"descale": REVISED, "espresso": MINE}
    assert first.view.generation == second.view.generation == generations.latest().number == 3


def test_a_file_removed_while_stopped_is_retired_for_all_but_only_by_the_home_that_had_it(
    home: Home,
) -> None:
    first, second = home("a"), home("b")
    first.publish([LEARNED, OTHER], (), "learned")
    in_line(first, second)
    remove_skill(second.folder, "purge")
    assert in_line(home("b"), first) == {"descale": LEARNED}


def test_a_skill_that_another_home_changed_is_not_retired_with_its_old_file(home: Home) -> None:
    first, second = home("a"), home("b")
    first.publish([LEARNED, OTHER], (), "learned")
    in_line(first, second)
    remove_skill(second.folder, "descale")
    first.publish([REVISED], (), "revised")
    assert in_line(home("b"), first) == {"descale": REVISED, "purge": OTHER}


def test_an_edit_while_stopped_counts_also_where_another_home_changed_the_skill(home: Home) -> None:
    first, second = home("a"), home("b")
    first.publish([LEARNED, OTHER], (), "learned")
    in_line(first, second)
    edit(second.folder, "descale", "citric", "acetic")
    edit(second.folder, "purge", "Open", "Turn")
    first.publish([REVISED], [OTHER.name], "revised")
    found = in_line(home("b"), first)
    assert {name: (one.body, one.author, one.state) for name, one in found.items()} == {
        "descale": ("Use acetic acid.", Authorship.PERSON, SkillState.LIVE),
        "purge": ("Turn the valve.", Authorship.PERSON, SkillState.LIVE),
    }


def test_two_changes_at_the_same_time_are_both_in_force(
    home: Home, generations: Generations
) -> None:
    first, second = home("a"), home("b")
    in_line(first, second)
    write_skill(first.folder, MINE)  # neither has heard of the other's change yet
    second.publish([LEARNED], (), "learned")
    first._sync(None, follows=False)
    assert in_line(first, second) == {"descale": LEARNED, "espresso": MINE}
    assert generations.reasons[1:] == ["learned", "files: added espresso"]


def test_a_removal_at_the_same_time_as_a_change_gives_way(home: Home) -> None:
    first, second = home("a"), home("b")
    first.publish([LEARNED, OTHER], (), "learned")
    in_line(first, second)
    remove_skill(first.folder, "descale")
    remove_skill(first.folder, "purge")
    second.publish([REVISED], (), "revised")
    first._sync(None, follows=False)
    assert in_line(first, second) == {"descale": REVISED}


def test_a_home_with_skills_of_its_own_adds_and_changes_but_removes_nothing(home: Home) -> None:
    first, second = home("a"), home("b")
    first.publish([LEARNED, OTHER], (), "learned")
    write_skill(second.folder, MINE)
    write_skill(
        second.folder,
        replace(LEARNED, body="Use vinegar.", author=Authorship.PERSON, state=SkillState.LIVE),
    )
    wanted = {"descale": "Use vinegar.", "espresso": "Tamp.", "purge": "Open the valve."}
    assert bodies(in_line(second, first)) == wanted


def test_an_unreadable_file_that_this_home_did_not_write_retires_nothing(
    home: Home, generations: Generations
) -> None:
    first, second = home("a"), home("b")
    first.publish([LEARNED], (), "learned")
    broken = second.folder / "descale" / "SKILL.md"
    broken.parent.mkdir(parents=True)
    broken.write_text("half of it")
    for library in (second, home("b")):
        view = library.sync()
        assert (by_name(view), len(view.skipped), broken.read_text()) == (
            {"descale": LEARNED},
            1,
            "half of it",
        )
    broken.unlink()
    broken.parent.rmdir()
    library.sync()
    assert in_line(library, first) == {"descale": LEARNED}
    assert len(generations.kept) == 2


def test_another_store_gets_the_files_and_loses_none(home: Home, tmp_path: Path) -> None:
    home("a").publish([LEARNED, OTHER], (), "learned")
    other = Generations()
    SkillLibrary(tmp_path / "b", other, ahead).publish([MINE], (), "noted")
    moved = SkillLibrary(tmp_path / "a", other, ahead)
    assert in_line(moved) == {"descale": LEARNED, "espresso": MINE, "purge": OTHER}


@pytest.mark.parametrize("is_running", [True, False])
def test_a_store_that_was_replaced_by_an_older_one_gets_the_files_and_loses_none(
    home: Home, generations: Generations, is_running: bool
) -> None:
    library = home("a")
    library.publish([LEARNED, OTHER], (), "learned")
    library.publish([REVISED, MINE], [OTHER.name], "revised", by_person=True)
    library.sync()
    del generations.kept[2:]
    wanted = {"descale": REVISED.body, "espresso": MINE.body, "purge": OTHER.body}
    assert bodies(in_line(library if is_running else home("a"))) == wanted


def test_what_another_home_has_forgotten_leaves_the_folder(
    home: Home, generations: Generations
) -> None:
    first, second = home("a"), home("b")
    first.publish([LEARNED, OTHER], (), "learned")
    in_line(first, second)
    first.publish((), [OTHER.name], "forgot a session")
    for at in (
        0,
        1,
        # forgetting leaves no trace of it in earlier generations, so that nobody is told that it is
        # gone
    ):
        known = generations.kept[at]
        generations.kept[at] = SkillGeneration(
            at, known.hash, tuple(one for one in known.skills if one.name != OTHER.name)
        )
    assert in_line(second, first, home("b")) == {"descale": LEARNED}


def test_a_folder_that_cannot_be_written_is_read_all_the_same(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    library = home("a")
    write_skill(library.folder, MINE)
    (library.folder / RECORD_FILE).mkdir()
    assert by_name(library.sync()) == {"espresso": MINE}
    library.sync()
    assert (library.trouble, caplog.text.count("skills_not_recorded")) == (None, 1)


NAMES = [SkillName(name) for name in ("alpha", "beta", "gamma")]
TEXTS = st.sampled_from(["One.", "Two.", "Three."])
A_TEXT_OR_NONE = st.none() | TEXTS
BROKEN = "no front matter"


def made(texts: dict[SkillName, str | None]) -> list[Skill]:
    return [
        replace(LEARNED, name=name, body=body) for name, body in texts.items() if body is not None
    ]


def each(values: st.SearchStrategy[str | None]) -> st.SearchStrategy[dict[SkillName, str | None]]:
    return st.fixed_dictionaries(dict.fromkeys(NAMES, values))


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    earlier=each(A_TEXT_OR_NONE),
    latest=each(A_TEXT_OR_NONE),
    written=st.none() | each(A_TEXT_OR_NONE),
    begun=each(A_TEXT_OR_NONE),
    at=st.sampled_from([1, 2]),
    is_of_this_store=st.booleans(),
    found=each(A_TEXT_OR_NONE | st.sampled_from(["A person's.", BROKEN, ""])),
)
def test_nothing_is_retired_that_this_home_did_not_write_and_no_edit_is_lost(
    tmp_path_factory: pytest.TempPathFactory,
    earlier: dict[SkillName, str | None],
    latest: dict[SkillName, str | None],
    written: dict[SkillName, str | None] | None,
    begun: dict[SkillName, str | None],
    at: int,
    is_of_this_store: bool,
    found: dict[SkillName, str | None],
) -> None:
    folder, generations = tmp_path_factory.mktemp("law") / "skills", Generations()
    for texts in (earlier, latest):
        generations.publish(made(texts), "before")
    if written is not None:
        digests = {skill.name: digest_of(skill) for skill in made(written)}
        drafts = {skill.name: frozenset((digest_of(skill),)) for skill in made(begun)}
        state = generations.kept[at].hash if is_of_this_store else library_hash([MINE])
        write_record(folder, FileRecord(at, state, digests, drafts), flush=False)
    for name, text in found.items():
        if text == BROKEN or text == "":
            (folder / name).mkdir(parents=True)
            (folder / name / "SKILL.md").write_text(text)
        elif text is not None:
            write_skill(folder, replace(LEARNED, name=name, body=text), flush=False)
    library = SkillLibrary(folder, generations, ahead)
    library.sync()
    after = by_name(library.sync())
    assert after == {skill.name: skill for skill in generations.latest().skills}
    base = (earlier, latest)[at - 1]
    for name, text in latest.items():
        if text is not None and name not in after:
            assert found[name] in (None, BROKEN, "")
            assert written is not None
            assert is_of_this_store
            assert (written[name] is not None, base[name], begun[name]) == (True, text, None)
        if found[name] == "A person's.":
            assert (after[name].body, read_skill(folder / name).body) == (
                "A person's.",
                "A person's.",
            )
        elif found[name] == BROKEN:
            assert (folder / name / "SKILL.md").read_text() == BROKEN
        elif name in after:
            assert read_skill(folder / name).body == after[name].body
        else:
            assert found[name] == "" or not (folder / name).exists()


def test_a_record_belongs_to_the_real_store_across_processes(tmp_path: Path) -> None:
    from metaclaw.store import SqlGenerations

    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    for start in range(3):
        databases = [open_database(url), open_database(url)]
        try:
            first, second = (
                SkillLibrary(tmp_path / name, SqlGenerations(one))
                for name, one in zip("ab", databases, strict=True)
            )
            first.sync()
            first.publish([replace(LEARNED, name=SkillName(f"skill-{start}"))], (), "learned")
            assert len(in_line(second, first)) == start + 1
            assert first.view.generation == start + 1
        finally:
            for database in databases:
                database.close()
