"""The library: what becomes a generation, what readers see meanwhile, and what happens to broken
files and stores.
"""

import os
import threading
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Skill, library_hash
from metaclaw.domain.turn import Scope
from metaclaw.skills import LibraryView, SkillLibrary, read_skill, remove_skill, write_skill
from metaclaw.skills.file_record import RECORD_FILE
from metaclaw.store import SqlGenerations, open_database
from tests.skills.generations import Generations

ESPRESSO = Skill(SkillName("espresso"), "When brewing espresso on the lever machine", "Tamp.")
ORCHIDS = Skill(SkillName("orchids"), "When watering orchids in the bathroom", "Rain water.")


THIRD = Skill(SkillName("third"), "When testing a third skill in a library", "Test.")


class Clock:
    """A clock far enough ahead that every file is settled, unless it is told otherwise."""

    def __init__(self) -> None:
        self.stopped_at: float | None = None

    def __call__(self) -> float:
        return time.time() + 100.0 if self.stopped_at is None else self.stopped_at


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "skills"


@pytest.fixture
def generations() -> Generations:
    return Generations()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def library(folder: Path, generations: Generations, clock: Clock) -> SkillLibrary:
    return SkillLibrary(folder, generations, clock)


def names(view: LibraryView) -> list[str]:
    return [skill.name for skill in view.skills]


def trouble(library: SkillLibrary) -> str | None:
    return library.trouble


def spoil(folder: Path, name: str) -> Path:
    path = folder / name / "SKILL.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("no front matter")
    return path


def test_before_loading_the_view_is_the_empty_generation(
    library: SkillLibrary, folder: Path
) -> None:
    write_skill(folder, ESPRESSO)
    assert (library.view.generation, library.view.count, library.view.hash) == (
        0,
        0,
        library_hash(()),
    )


def test_a_missing_folder_is_an_empty_library_and_makes_no_generation(
    library: SkillLibrary, generations: Generations
) -> None:
    assert (library.sync().generation, trouble(library), len(generations.kept)) == (0, None, 1)


def test_files_found_at_the_first_start_are_published(
    library: SkillLibrary, folder: Path, generations: Generations
) -> None:
    write_skill(folder, ESPRESSO)
    write_skill(folder, ORCHIDS)
    view = library.sync()
    assert (view.generation, names(view), view.hash) == (
        1,
        ["espresso", "orchids"],
        library_hash((ESPRESSO, ORCHIDS)),
    )
    assert generations.reasons[-1] == "files changed while stopped"
    assert view.get("espresso") == ESPRESSO
    assert view.get("tea") is None


def test_a_restart_with_the_same_files_keeps_the_number(
    library: SkillLibrary, folder: Path, generations: Generations
) -> None:
    write_skill(folder, ESPRESSO)
    library.sync()
    again = SkillLibrary(folder, generations).sync()
    assert (again.generation, len(generations.kept)) == (1, 2)


def test_a_restart_after_a_change_makes_a_generation(
    library: SkillLibrary, folder: Path, generations: Generations
) -> None:
    write_skill(folder, ESPRESSO)
    library.sync()
    remove_skill(folder, "espresso")
    assert SkillLibrary(folder, generations).sync().generation == 2
    assert generations.kept[-1].skills == ()


def test_adding_changing_and_removing_each_make_a_generation_that_says_why(
    library: SkillLibrary, folder: Path, generations: Generations
) -> None:
    library.sync()
    write_skill(folder, ESPRESSO)
    assert library.sync().generation == 1
    write_skill(folder, Skill(ESPRESSO.name, ESPRESSO.trigger, "Tamp twice."))
    assert library.sync().generation == 2
    write_skill(folder, ORCHIDS)
    remove_skill(folder, "espresso")
    assert names(library.sync()) == ["orchids"]
    assert generations.reasons[1:] == [
        "files: added espresso",
        "files: changed espresso",
        "files: added orchids; removed espresso",
    ]


def test_nothing_new_makes_no_generation_and_keeps_the_view(
    library: SkillLibrary, folder: Path, generations: Generations
) -> None:
    path = write_skill(folder, ESPRESSO)
    view = library.sync()
    assert library.sync() is view
    os.utime(path)
    path.write_text(path.read_text().replace("\n", "\r\n") + "\n\n")
    assert library.sync().generation == 1
    assert len(generations.kept) == 2


def test_a_change_outside_what_is_placed_is_shown_but_makes_no_generation(
    library: SkillLibrary, folder: Path
) -> None:
    write_skill(folder, ESPRESSO)
    before = library.sync()
    write_skill(
        folder, Skill(ESPRESSO.name, ESPRESSO.trigger, ESPRESSO.body, other={"license": "MIT"})
    )
    after = library.sync()
    assert (after.generation, after.hash) == (before.generation, before.hash)
    assert after.skills[0].other == {"license": "MIT"}


def test_a_reader_keeps_what_it_took(library: SkillLibrary, folder: Path) -> None:
    write_skill(folder, ESPRESSO)
    held = library.sync()
    write_skill(folder, Skill(ESPRESSO.name, "When grinding coffee for espresso", "Finer."))
    remove_skill(folder, "espresso")
    write_skill(folder, ORCHIDS)
    library.sync()
    assert held.retrieve("brew espresso on the lever machine", 3) == (ESPRESSO,)
    assert (held.generation, names(held)) == (1, ["espresso"])
    assert library.view.retrieve("brew espresso on the lever machine", 3) == ()


def test_an_unreadable_skill_is_skipped_and_shown_with_its_reason(
    library: SkillLibrary, folder: Path
) -> None:
    write_skill(folder, ESPRESSO)
    path = spoil(folder, "broken")
    (folder / "empty").mkdir()
    (folder / "loose.md").write_text("x")
    (folder / ".hidden").mkdir()
    (folder / "notes.txt").write_text("x")
    view = library.sync()
    assert names(view) == ["espresso"]
    assert [skipped.path for skipped in view.skipped] == [
        str(path),
        str(folder / "empty" / "SKILL.md"),
        str(folder / "loose.md"),
    ]
    assert view.skipped[0].reason.startswith("no front matter")  # the path is told beside it
    assert "write a SKILL.md there" in view.skipped[1].reason
    assert "move this to loose/SKILL.md" in view.skipped[2].reason


def test_a_folder_whose_name_is_not_text_is_shown_as_text(
    library: SkillLibrary, folder: Path
) -> None:
    folder.mkdir()
    os.mkdir(os.fsencode(folder) + b"/\xff\xfe")  # noqa: PTH102 - such a name exists as bytes only
    (skipped,) = library.sync().skipped
    assert "\ufffd" in skipped.path
    assert (skipped.path + skipped.reason).encode()


def test_a_skill_that_becomes_unreadable_is_withdrawn_and_comes_back_when_mended(
    library: SkillLibrary, folder: Path, generations: Generations
) -> None:
    write_skill(folder, ESPRESSO)
    library.sync()
    spoil(folder, "espresso")
    view = library.sync()
    assert (view.generation, names(view), len(view.skipped)) == (2, [], 1)
    write_skill(folder, ESPRESSO)
    view = library.sync()
    assert (view.generation, names(view), view.skipped) == (3, ["espresso"], ())


def test_a_new_broken_file_changes_what_is_shown_but_makes_no_generation(
    library: SkillLibrary, folder: Path
) -> None:
    write_skill(folder, ESPRESSO)
    library.sync()
    spoil(folder, "broken")
    assert (library.sync().generation, len(library.view.skipped)) == (1, 1)
    (folder / "broken" / "SKILL.md").unlink()
    (folder / "broken").rmdir()
    assert (library.sync().generation, library.view.skipped) == (1, ())


def test_a_file_that_is_being_written_keeps_its_last_good_version_for_a_moment(
    library: SkillLibrary, folder: Path, clock: Clock
) -> None:
    write_skill(folder, ESPRESSO)
    library.sync()
    spoil(folder, "espresso")
    clock.stopped_at = (folder / "espresso" / "SKILL.md").stat().st_mtime + 0.01
    assert (library.sync().generation, library.view.skipped) == (1, ())
    clock.stopped_at += 10
    assert (library.sync().generation, len(library.view.skipped)) == (2, 1)


def test_two_edits_within_one_tick_of_the_file_systems_clock_are_both_seen(
    library: SkillLibrary, folder: Path, clock: Clock
) -> None:
    path = write_skill(folder, ESPRESSO)
    clock.stopped_at = path.stat().st_mtime + 0.01
    library.sync()
    facts = path.stat()
    with path.open("r+") as file:
        file.write(path.read_text().replace("Tamp.", "Pull."))
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert library.sync().skills[0].body == "Pull."


def test_a_broken_store_leaves_the_old_view_in_force_and_is_tried_again(
    library: SkillLibrary, folder: Path, generations: Generations
) -> None:
    write_skill(folder, ESPRESSO)
    before = library.sync()
    generations.broken = True
    write_skill(folder, ORCHIDS)
    assert library.sync() is before
    assert (
        trouble(library) == "the skills folder and the store cannot be brought in line: disk full"
    )
    assert library.sync() is before
    generations.broken = False
    after = library.sync()
    assert (after.generation, names(after), trouble(library)) == (2, ["espresso", "orchids"], None)
    assert generations.reasons[-1] == "files: added orchids"


def test_the_files_are_in_force_while_the_store_is_broken_at_the_start(
    library: SkillLibrary, folder: Path, generations: Generations
) -> None:
    write_skill(folder, ESPRESSO)
    generations.broken = True
    assert (library.sync().generation, names(library.view)) == (0, ["espresso"])
    assert trouble(library) is not None
    generations.broken = False
    assert (library.sync().generation, library.view.count, trouble(library)) == (1, 1, None)


def test_an_edit_that_is_undone_before_it_could_be_stored_makes_no_generation(
    library: SkillLibrary, folder: Path, generations: Generations
) -> None:
    write_skill(folder, ESPRESSO)
    library.sync()
    generations.broken = True
    write_skill(folder, ORCHIDS)
    library.sync()
    remove_skill(folder, "orchids")
    generations.broken = False
    assert (library.sync().generation, trouble(library), names(library.view)) == (
        1,
        None,
        ["espresso"],
    )


@pytest.mark.skipif(
    os.geteuid() == 0, reason="needs a user other than root, who may read everything"
)
def test_a_folder_that_cannot_be_listed_keeps_the_view(library: SkillLibrary, folder: Path) -> None:
    write_skill(folder, ESPRESSO)
    before = library.sync()
    folder.chmod(0)
    try:
        assert library.sync() is before
    finally:
        folder.chmod(0o700)


def test_a_file_in_the_folders_place_keeps_the_view_and_says_so(
    library: SkillLibrary, folder: Path
) -> None:
    write_skill(folder, ESPRESSO)
    before = library.sync()
    folder.rename(folder.with_name("elsewhere"))
    folder.write_text("x")
    assert library.sync() is before
    assert trouble(library) == f"{folder} cannot be read: Not a directory"


def test_a_folder_that_is_emptied_empties_the_view(library: SkillLibrary, folder: Path) -> None:
    write_skill(folder, ESPRESSO)
    library.sync()
    remove_skill(folder, "espresso")
    assert (library.sync().generation, library.view.count) == (2, 0)


@pytest.mark.parametrize("is_running", [True, False])
def test_a_folder_that_is_lost_is_written_out_again(
    library: SkillLibrary,
    folder: Path,
    generations: Generations,
    is_running: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    write_skill(folder, ESPRESSO)
    library.sync()
    folder.rename(folder.with_name("elsewhere"))
    if is_running:
        folder.mkdir()  # as a mount point without its volume
    else:
        library = SkillLibrary(folder, generations)
    assert (library.sync().generation, names(library.view)) == (1, ["espresso"])
    assert read_skill(folder / "espresso") == ESPRESSO
    assert "skills_written_out" in caplog.text


def test_retrieval_keeps_to_limit_and_scope(folder: Path, library: SkillLibrary) -> None:
    write_skill(
        folder,
        Skill(
            SkillName("alices"),
            "When Alice brews on the lever machine",
            "Tamp.",
            scope="user:alice",
        ),
    )
    write_skill(
        folder, Skill(SkillName("labs"), "When the lab's lever machine brews", "Tamp.", scope="lab")
    )
    write_skill(folder, ESPRESSO)
    view = library.sync()
    query = "brew espresso on the lever machine"

    def found(scope: Scope | None, limit: int = 3) -> set[str]:
        return {skill.name for skill in view.retrieve(query, limit, scope)}

    assert found(None) == {"espresso"}
    assert found(Scope(user="bob")) == {"espresso"}
    assert found(Scope(user="alice")) == {"espresso", "alices"}
    assert found(Scope(user="alice", workspace="lab")) == {"espresso", "alices", "labs"}
    assert found(Scope(user="lab"), 1) == {"espresso"}
    assert found(None, 0) == set()


@pytest.mark.anyio
async def test_watching_notices_hand_edits(folder: Path, generations: Generations) -> None:
    library = SkillLibrary(folder, generations)

    async def until(generation: int) -> None:
        with anyio.fail_after(60):
            while library.view.generation < generation:
                await anyio.sleep(0.005)

    async with anyio.create_task_group() as group:
        group.start_soon(library.watch, 0.01)
        path = write_skill(folder, ESPRESSO)
        await until(1)
        path.write_text(path.read_text().replace("Tamp.", "Pull."))
        await until(2)
        remove_skill(folder, "espresso")
        await until(3)
        group.cancel_scope.cancel()
    assert generations.kept[2].skills[0].body == "Pull."


def test_a_slice_at_a_time_sees_every_change_in_one_round(
    folder: Path, generations: Generations, clock: Clock
) -> None:
    library = SkillLibrary(folder, generations, clock)
    for number in range(10):
        write_skill(folder, Skill(SkillName(f"skill-{number}"), "When", "How"))
    library.sync()
    for number in range(10):
        write_skill(folder, Skill(SkillName(f"skill-{number}"), "When", "How else"))
    for _ in range(4):
        library._sync(3)
    assert {skill.body for skill in library.view.skills} == {"How else"}
    write_skill(folder, ORCHIDS)
    assert library._sync(1).get("orchids") == ORCHIDS


def test_readers_of_any_thread_see_whole_generations_only(
    folder: Path, generations: Generations, clock: Clock
) -> None:
    """Each generation has one pair of skills that share a rare word; a reader that ever finds half
    a pair saw half a change.
    """
    library = SkillLibrary(folder, generations, clock)
    library.sync()
    stop = threading.Event()
    torn: list[str] = []

    def read() -> None:
        while not stop.is_set():
            view = library.view
            found = {skill.body for skill in view.retrieve("quetzal feathers museum", 3)}
            if len(found) > 1 or (
                view.count and len(view.retrieve("quetzal feathers museum", 3)) != 2
            ):
                torn.append(f"{view.generation}: {found}")

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(40):
            for name in ("quetzal-one", "quetzal-two"):
                write_skill(
                    folder,
                    Skill(
                        SkillName(name),
                        "When showing quetzal feathers in the museum",
                        f"Version {number}",
                    ),
                )
            library.sync()
    finally:
        stop.set()
        reader.join(10)
    assert torn == []
    assert library.view.generation == 40


def test_with_the_real_store_a_generation_survives_a_restart_and_holds_what_was_in_force(
    folder: Path, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    write_skill(folder, ESPRESSO)
    database = open_database(url)
    try:
        library = SkillLibrary(folder, SqlGenerations(database))
        assert library.sync().generation == 1
        write_skill(
            folder,
            Skill(
                ORCHIDS.name,
                ORCHIDS.trigger,
                ORCHIDS.body,
                "plants",
                "user:alice",
                other={"tags": ["green"]},
            ),
        )
        view = library.sync()
    finally:
        database.close()
    database = open_database(url)
    try:
        again = SkillLibrary(folder, SqlGenerations(database)).sync()
        kept = SqlGenerations(database).latest()
    finally:
        database.close()
    assert (again.generation, again.hash) == (view.generation, view.hash) == (2, kept.hash)
    assert kept.skills == view.skills


class SlowGenerations(Generations):
    """A store in which a generation can be read a while before `publish` returns."""

    def __init__(self) -> None:
        super().__init__()
        self.is_stored, self.may_return = threading.Event(), threading.Event()

    def publish(self, *args: Any, **kwargs: Any) -> Any:
        published = super().publish(*args, **kwargs)
        self.is_stored.set()
        assert self.may_return.wait(30)
        return published


def test_a_publication_is_in_force_at_once_although_no_thread_can_write_its_files(
    library: SkillLibrary, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.sync()

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as without_threads:
        without_threads.setattr(threading.Thread, "start", refuse)
        view = library.publish([ESPRESSO, ORCHIDS, THIRD], (), "noted three")
        assert len(view.skills) == 3
        assert "can't start new thread" in str(library.trouble)
    assert len(library.sync().skills) == 3
    assert trouble(library) is None
    assert read_skill(folder / "espresso" / "SKILL.md").body == ESPRESSO.body


def test_a_view_that_was_not_shown_after_its_publication_is_shown_by_the_next_look(
    library: SkillLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.sync()
    with monkeypatch.context() as broken:
        broken.setattr(library, "_show", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            library.publish([ESPRESSO], (), "noted espresso")
    assert names(library.sync()) == ["espresso"]


def test_a_settled_view_has_what_the_store_already_announced(folder: Path) -> None:
    generations = SlowGenerations()
    library = SkillLibrary(folder, generations)
    writer = threading.Thread(target=lambda: library.publish([ESPRESSO], (), "noted espresso"))
    writer.start()
    assert generations.is_stored.wait(30)
    assert names(library.view) == []
    threading.Timer(0.05, generations.may_return.set).start()
    assert names(library.settled()) == ["espresso"]
    writer.join()


def test_a_folder_that_vanishes_file_by_file_retires_nothing_and_is_written_out_again(
    library: SkillLibrary, folder: Path, generations: Generations, clock: Clock
) -> None:
    rules = [Skill(SkillName(f"rule-{at}"), f"When brewing cup {at}", "Tamp.") for at in range(5)]
    for rule in rules:
        write_skill(folder, rule)
    before = library.sync()
    assert (before.generation, before.count) == (1, 5)
    record = folder / RECORD_FILE
    recorded = record.stat().st_mtime_ns
    clock.stopped_at = time.time()
    others = Skill(SkillName("late"), "When it is late", "Sleep.")
    for at, rule in enumerate(rules):
        for remove in ((folder / rule.name / "SKILL.md").unlink, (folder / rule.name).rmdir):
            remove()
            clock.stopped_at += 0.2
            assert library.sync().generation == before.generation + (at > 2)
        if at == 2:  # what is published meanwhile is written later
            library.publish([others], (), "learned")
            assert not (folder / "late").exists()
        assert record.stat().st_mtime_ns == recorded
    record.unlink()
    clock.stopped_at += 0.2
    library.sync()
    assert list(folder.iterdir()) == []
    folder.rmdir()
    clock.stopped_at += 0.2
    view = library.sync()
    assert (view.generation, view.count, len(generations.kept)) == (2, 6, 3)
    assert {path.parent.name for path in folder.glob("*/SKILL.md")} == {
        "late",
        *(rule.name for rule in rules),
    }
    clock.stopped_at += 10
    assert library.sync() == view


def test_a_folder_that_loses_its_record_first_is_written_out_when_it_is_quiet(
    library: SkillLibrary, folder: Path, clock: Clock
) -> None:
    for rule in (ESPRESSO, ORCHIDS):
        write_skill(folder, rule)
    library.sync()
    (folder / RECORD_FILE).unlink()
    clock.stopped_at = folder.stat().st_mtime + 0.2
    library.sync()
    remove_skill(folder, ESPRESSO.name)
    clock.stopped_at = folder.stat().st_mtime + 0.2
    library.sync()
    assert not (folder / "espresso").exists()
    assert not (folder / RECORD_FILE).exists()
    clock.stopped_at += 0.4
    view = library.sync()
    assert (view.generation, names(view), (folder / "espresso" / "SKILL.md").exists()) == (
        1,
        ["espresso", "orchids"],
        True,
    )


@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_single_removal_counts_after_the_quiet_time_and_an_addition_at_once(
    library: SkillLibrary, folder: Path, clock: Clock, what: str
) -> None:
    for rule in (ESPRESSO, ORCHIDS):
        write_skill(folder, rule)
    library.sync()
    removed = folder / "espresso"
    (removed / "SKILL.md").unlink()
    if what == "folder":
        removed.rmdir()
    write_skill(folder, Skill(SkillName("late"), "When it is late", "Sleep."))
    clock.stopped_at = time.time() + 0.01
    assert names(library.sync()) == ["espresso", "late", "orchids"]
    clock.stopped_at += 0.4
    assert names(library.sync()) == ["espresso", "late", "orchids"]
    clock.stopped_at += 0.2
    assert names(library.sync()) == ["late", "orchids"]
    assert "espresso" not in (folder / RECORD_FILE).read_text()


def test_what_the_program_itself_withdraws_holds_up_no_file(
    library: SkillLibrary, folder: Path, clock: Clock
) -> None:
    library.publish([ESPRESSO, ORCHIDS], (), "learned")
    library.sync()
    clock.stopped_at = time.time()
    library.retire(ESPRESSO.name)
    library.publish([ESPRESSO], (), "learned again")
    assert read_skill(folder / "espresso" / "SKILL.md") == ESPRESSO
