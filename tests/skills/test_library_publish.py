"""Publishing, retiring and reverting: atomic changes, files that follow, and skills that only a
person may change.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, LearnedFrom, Rule, Skill, SkillGeneration, SkillState
from metaclaw.errors import SkillError, StoreError
from metaclaw.skills import LibraryView, SkillLibrary, read_skill, remove_skill, write_skill
from tests.skills.generations import Generations, Stopped

LEARNED = Skill(
    SkillName("descale"),
    "When descaling the boiler",
    "Use citric acid.",
    author=Authorship.EVOLVER,
)
OTHER = replace(
    LEARNED, name=SkillName("purge"), trigger="When purging the steam wand", body="Open the valve."
)
MINE = Skill(SkillName("espresso"), "When brewing espresso on the lever machine", "Tamp.")


def ahead() -> float:
    return time.time() + 100


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "skills"


@pytest.fixture
def generations() -> Generations:
    return Generations()


@pytest.fixture
def library(folder: Path, generations: Generations) -> SkillLibrary:
    library = SkillLibrary(folder, generations, ahead)
    library.sync()
    return library


def files(folder: Path) -> dict[str, Skill]:
    return {path.parent.name: read_skill(path) for path in sorted(folder.glob("[!.]*/SKILL.md"))}


def by_name(view: LibraryView) -> dict[str, Skill]:
    return {skill.name: skill for skill in view.skills}


def edit(folder: Path, name: str, old: str, new: str) -> None:
    path = folder / name / "SKILL.md"
    path.write_text(path.read_text().replace(old, new))


def test_a_published_skill_is_in_force_in_the_store_and_in_its_file(
    library: SkillLibrary, folder: Path, generations: Generations
) -> None:
    view = library.publish([LEARNED], (), "learned from failures")
    assert (view.generation, view is library.view, by_name(view)) == (1, True, {"descale": LEARNED})
    assert files(folder) == {"descale": LEARNED}
    assert (generations.kept[-1].skills, generations.reasons[-1]) == (
        (LEARNED,),
        "learned from failures",
    )


def test_its_own_writing_is_nobodys_edit(
    library: SkillLibrary, folder: Path, generations: Generations
) -> None:
    library.publish([LEARNED, OTHER], (), "learned")
    view = library.publish([replace(LEARNED, state=SkillState.LIVE)], [OTHER.name], "promoted")
    assert library.sync() is view
    assert SkillLibrary(folder, generations, ahead).sync().generation == view.generation == 2
    assert len(generations.kept) == 3


def test_text_that_a_file_cannot_say_as_it_is_is_published_as_the_file_says_it(
    library: SkillLibrary, generations: Generations
) -> None:
    view = library.publish(
        [replace(LEARNED, trigger="When  descaling\nthe boiler", body="\nUse citric acid.\n\n")],
        (),
        "learned",
    )
    assert view.get("descale") == LEARNED
    assert library.sync() is view


def test_one_publication_puts_and_retires_together(
    library: SkillLibrary, folder: Path, generations: Generations
) -> None:
    library.publish([LEARNED, OTHER], (), "learned")
    merged = replace(LEARNED, name=SkillName("care"), trigger="When caring for boiler and wand")
    view = library.publish([merged], [LEARNED.name, OTHER.name], "merged")
    assert (view.generation, list(by_name(view)), list(files(folder))) == (2, ["care"], ["care"])
    retired = generations.at(1)
    assert retired is not None
    assert retired.skills == (LEARNED, OTHER)


def test_a_change_of_the_pin_alone_is_a_generation_and_the_texts_hash_stays(
    library: SkillLibrary, folder: Path
) -> None:
    before = library.publish([LEARNED], (), "learned")
    after = library.publish([replace(LEARNED, pinned=True)], (), "pinned")
    assert (after.generation, after.hash) == (before.generation + 1, before.hash)
    assert files(folder)["descale"].pinned


def test_publishing_what_is_in_force_already_changes_nothing(
    library: SkillLibrary, generations: Generations
) -> None:
    view = library.publish([LEARNED], (), "learned")
    assert library.publish([LEARNED], (), "again") is view
    assert library.publish((), (), "nothing") is view
    assert len(generations.kept) == 2


def test_a_persons_edit_comes_first_and_has_a_generation_of_its_own(
    library: SkillLibrary, folder: Path, generations: Generations
) -> None:
    write_skill(folder, MINE)
    view = library.publish([LEARNED], (), "learned")
    assert (view.generation, sorted(by_name(view))) == (2, ["descale", "espresso"])
    assert generations.reasons[1:] == ["files: added espresso", "learned"]


def test_a_learned_skill_that_a_person_changes_is_theirs_from_then_on(
    library: SkillLibrary, folder: Path, generations: Generations
) -> None:
    library.publish([LEARNED], (), "learned")
    edit(folder, "descale", "citric", "acetic")
    theirs = library.sync().get("descale")
    assert theirs == replace(
        LEARNED, body="Use acetic acid.", author=Authorship.PERSON, state=SkillState.LIVE
    )
    assert "author: evolver" in (folder / "descale" / "SKILL.md").read_text()
    again = SkillLibrary(folder, generations, ahead)
    assert again.sync().get("descale") == theirs
    edit(folder, "descale", "acetic", "citric")
    restored = again.sync().get("descale")
    assert restored is not None
    assert restored.author is Authorship.PERSON


def test_a_learned_skill_changed_while_the_program_was_stopped_is_theirs_too(
    library: SkillLibrary, folder: Path, generations: Generations
) -> None:
    library.publish([LEARNED], (), "learned")
    edit(folder, "descale", "citric", "acetic")
    theirs = SkillLibrary(folder, generations, ahead).sync().get("descale")
    assert theirs is not None
    assert (theirs.author, theirs.state) == (Authorship.PERSON, SkillState.LIVE)


@pytest.mark.parametrize(
    ("line", "author", "state", "pinned"),
    [
        ("state: live", Authorship.EVOLVER, SkillState.LIVE, False),
        ("pinned: true", Authorship.EVOLVER, SkillState.LIVE, True),
    ],
)
def test_a_person_may_pin_by_hand_without_making_the_text_theirs(
    library: SkillLibrary,
    folder: Path,
    generations: Generations,
    line: str,
    author: Authorship,
    state: SkillState,
    pinned: bool,
) -> None:
    library.publish([LEARNED], (), "learned")
    edit(folder, "descale", "author: evolver", f"author: evolver\n{line}")
    skill = library.sync().get("descale")
    assert skill is not None
    assert (skill.author, skill.state, skill.pinned) == (author, state, pinned)
    assert generations.latest().skills == (skill,)
    assert SkillLibrary(folder, generations, ahead).sync().generation == library.view.generation


@pytest.mark.parametrize(
    "line",
    [
        "workspace: shop",
        "applies: always",
        "overrides: purge",
        "check: 'pattern: acid'",
        "scope: owner",
    ],
)
def test_a_learned_skill_is_theirs_also_where_a_person_changes_for_whom_and_where_it_applies(
    library: SkillLibrary, folder: Path, generations: Generations, line: str
) -> None:
    before = library.publish([LEARNED], (), "learned")
    edit(folder, "descale", "author: evolver", f"author: evolver\n{line}")
    after = library.sync()
    theirs = after.get("descale")
    assert theirs is not None
    assert (theirs.author, theirs.state, after.generation) == (
        Authorship.PERSON,
        SkillState.LIVE,
        before.generation + 1,
    )
    assert SkillLibrary(folder, generations, ahead).sync().generation == after.generation


def test_an_edit_of_a_text_that_is_undone_before_it_could_be_stored_makes_no_generation(
    library: SkillLibrary, folder: Path, generations: Generations
) -> None:
    write_skill(folder, MINE)
    before = library.sync()
    generations.broken = True
    for old, new in (("Tamp.", "Pull."), ("Pull.", "Tamp.")):
        edit(folder, "espresso", old, new)
        library.sync()
    generations.broken = False
    assert (library.sync().generation, len(generations.kept)) == (before.generation, 2)


STATED = Rule(MINE.name, MINE.trigger, MINE.body, author=Authorship.INSTRUCTION)


@pytest.mark.parametrize(
    "untouchable", [MINE, replace(LEARNED, state=SkillState.LIVE, pinned=True), STATED]
)
def test_the_program_by_itself_touches_nothing_of_a_persons(
    library: SkillLibrary, folder: Path, untouchable: Skill
) -> None:
    write_skill(folder, untouchable)
    before = library.sync()
    changed = replace(LEARNED, name=untouchable.name)
    for put, retire in (((changed,), ()), ((), (untouchable.name,)), ((OTHER, changed), ())):
        with pytest.raises(SkillError, match=r"only (?:a person|they) may change or retire it"):
            library.publish(put, retire, "by itself")
        with pytest.raises(SkillError, match=r"only (?:a person|they) may change or retire it"):
            library.publish(
                put, retire, "by itself", expected={untouchable.name: untouchable.content_hash}
            )
    assert library.view is before
    assert library.retire(untouchable.name).count == 0


def test_a_skill_that_changed_since_the_caller_looked_is_not_overwritten(
    library: SkillLibrary, folder: Path
) -> None:
    view = library.publish([LEARNED], (), "learned")
    better = replace(LEARNED, body="Use less citric acid.")
    seen = {LEARNED.name: LEARNED.content_hash, OTHER.name: None}
    assert library.publish([better], (), "revised", expected=seen).generation == 2
    with pytest.raises(SkillError, match="read it again"):
        library.publish([LEARNED], (), "too late", expected=seen)
    with pytest.raises(SkillError, match="read it again"):
        library.publish((), [LEARNED.name], "too late", expected=seen)
    with pytest.raises(SkillError, match="read it again"):
        library.publish(
            [replace(LEARNED, name=MINE.name)], (), "gone", expected={MINE.name: MINE.content_hash}
        )
    edit(folder, "descale", "less", "more")
    with pytest.raises(SkillError):
        library.publish(
            [better], (), "over a person's", expected={LEARNED.name: better.content_hash}
        )
    assert view.get("descale") == LEARNED
    assert files(folder)["descale"].body == "Use more citric acid."


def test_an_edit_made_between_looking_and_writing_survives(
    library: SkillLibrary, folder: Path, generations: Generations
) -> None:
    """The store lets go of the edit at the very last moment: after the library has looked, before
    it writes.
    """
    library.publish([LEARNED], (), "learned")

    class Interrupting(Generations):
        def publish(
            self,
            skills: Sequence[Skill],
            reason: str,
            *,
            after: int | None = None,
            learned: LearnedFrom | None = None,
            reverted_to: int | None = None,
        ) -> SkillGeneration:
            edit(folder, "descale", "citric", "acetic")
            return super().publish(
                skills, reason, after=after, learned=learned, reverted_to=reverted_to
            )

    late = Interrupting()
    late.kept, late.reasons = generations.kept, generations.reasons
    library = SkillLibrary(folder, late, ahead)
    library.sync()
    library.publish([replace(LEARNED, body="Use nothing.")], (), "revised")
    assert files(folder)["descale"].body == "Use acetic acid."
    theirs = library.sync().get("descale")
    assert theirs is not None
    assert (theirs.body, theirs.author) == ("Use acetic acid.", Authorship.PERSON)


@pytest.mark.parametrize("state", [SkillState.DRAFT, SkillState.RETIRED])
def test_only_live_skills_are_published(library: SkillLibrary, state: SkillState) -> None:
    with pytest.raises(SkillError, match="write `live`"):
        library.publish([replace(LEARNED, state=state)], (), "too soon")


@pytest.mark.parametrize("scope", ["", "  ", "user:", "team: "])
def test_a_scope_that_names_nobody_is_refused(library: SkillLibrary, scope: str) -> None:
    with pytest.raises(SkillError, match="scope"):
        library.publish([replace(LEARNED, scope=scope)], (), "for nobody")


def test_naming_a_skill_twice_or_retiring_an_unknown_one_is_refused(library: SkillLibrary) -> None:
    with pytest.raises(SkillError, match="twice"):
        library.publish([LEARNED], [LEARNED.name], "both")
    with pytest.raises(SkillError, match="no skill named purge"):
        library.publish([LEARNED], [OTHER.name], "one of them")
    assert library.view.count == 0


def test_a_name_whose_file_cannot_be_read_is_not_taken(library: SkillLibrary, folder: Path) -> None:
    (folder / "descale").mkdir(parents=True)
    (folder / "descale" / "SKILL.md").write_text("half of it")
    with pytest.raises(SkillError, match="correct or remove it first"):
        library.publish([LEARNED], (), "learned")
    assert (folder / "descale" / "SKILL.md").read_text() == "half of it"


def test_a_file_that_somebody_is_writing_now_is_left_alone(
    folder: Path, generations: Generations
) -> None:
    library = SkillLibrary(folder, generations)
    library.publish([LEARNED], (), "learned")
    (folder / "descale" / "SKILL.md").write_text("half of it")
    with pytest.raises(SkillError, match="correct or remove it first"):
        library.publish([replace(LEARNED, body="Other")], (), "revised")
    assert library.view.get("descale") == LEARNED


def test_a_store_that_fails_leaves_everything_as_it_was(
    library: SkillLibrary, folder: Path, generations: Generations
) -> None:
    before = library.publish([LEARNED], (), "learned")
    generations.broken = True
    with pytest.raises(StoreError):
        library.publish([OTHER], [LEARNED.name], "cannot")
    assert (library.view, list(files(folder))) == (before, ["descale"])
    generations.broken = False
    assert library.sync() is before


def test_a_folder_that_cannot_be_read_is_a_skill_error(library: SkillLibrary, folder: Path) -> None:
    folder.write_text("no folder")
    with pytest.raises(SkillError, match="cannot be read: Not a directory"):
        library.publish([LEARNED], (), "learned")


def test_a_file_that_cannot_be_written_is_told_and_written_later(
    library: SkillLibrary, folder: Path, generations: Generations
) -> None:
    library.publish([LEARNED], (), "learned")
    blocked = folder / "purge"
    blocked.symlink_to(folder / "nowhere")
    view = library.publish([OTHER], (), "learned more")
    assert view.get("purge") == OTHER
    assert "behind its generation" in (library.trouble or "")
    blocked.unlink()
    assert library.sync().generation == view.generation
    assert (library.trouble, files(folder)["purge"]) == (None, OTHER)


def test_what_lies_beside_a_skill_is_set_aside_with_it_and_comes_back(
    library: SkillLibrary, folder: Path
) -> None:
    library.publish([LEARNED], (), "learned")
    (folder / "descale" / "doses.csv").write_text("1;2")
    view = library.retire(LEARNED.name)
    assert (view.count, view.skipped, files(folder)) == (0, (), {})
    assert not (folder / "descale").exists()
    library.revert(1)
    assert (folder / "descale" / "doses.csv").read_text() == "1;2"
    assert (library.sync().generation, library.view.skipped) == (3, ())


def test_reverting_makes_the_old_skills_a_new_generation_and_back_again(
    library: SkillLibrary, folder: Path, generations: Generations
) -> None:
    write_skill(folder, MINE)
    first = library.publish([LEARNED], (), "learned")
    edit(folder, "espresso", "Tamp.", "Pull.")
    second = library.publish([OTHER], [LEARNED.name], "replaced")
    back = library.revert(first.generation)
    assert (back.generation, back.hash, by_name(back), files(folder)) == (
        second.generation + 1,
        first.hash,
        by_name(first),
        by_name(first),
    )
    assert generations.reasons[-1] == f"reverted to generation {first.generation}"
    forth = library.revert(second.generation)
    assert (forth.hash, by_name(forth), files(folder)) == (
        second.hash,
        by_name(second),
        by_name(second),
    )
    again = library.revert(second.generation)
    assert (again.generation, again.hash) == (forth.generation + 1, forth.hash), (
        "what was learned before it is dropped all the same"
    )
    assert SkillLibrary(folder, generations, ahead).sync().generation == again.generation


def test_reverting_to_nothing_and_to_what_never_was(library: SkillLibrary, folder: Path) -> None:
    library.publish([LEARNED], (), "learned")
    with pytest.raises(SkillError, match="there is no generation 7"):
        library.revert(7)
    assert (library.revert(0).count, files(folder)) == (0, {})
    assert library.revert(1).get("descale") == LEARNED


def test_reverting_does_not_destroy_a_file_it_cannot_read(
    library: SkillLibrary, folder: Path
) -> None:
    library.publish([LEARNED], (), "learned")
    (folder / "descale" / "SKILL.md").write_text("half of it")
    library.sync()
    with pytest.raises(SkillError, match="correct or remove it first"):
        library.revert(1)
    remove_skill(folder, "descale")
    assert library.revert(1).get("descale") == LEARNED


def test_reverting_a_thousand_skills_writes_only_what_differs_and_takes_less_than_a_second(
    library: SkillLibrary, folder: Path
) -> None:
    many = [
        replace(LEARNED, name=SkillName(f"skill-{number}"), body=f"Step {number}.")
        for number in range(1000)
    ]
    first = library.publish(many, (), "learned")
    library.sync()  # so many files follow with the next look
    untouched = (folder / "skill-500" / "SKILL.md").stat()
    library.publish(
        [replace(one, body="Other.") for one in many[:20]],
        [one.name for one in many[20:40]],
        "changed",
    )
    began = time.process_time()
    back = library.revert(first.generation)
    assert time.process_time() - began < 1.0
    assert back.hash == first.hash
    now = (folder / "skill-500" / "SKILL.md").stat()
    assert (now.st_ino, now.st_mtime_ns) == (untouched.st_ino, untouched.st_mtime_ns)


def test_a_thousand_other_skills_are_in_force_within_a_second_there_and_back_and_files_follow(
    library: SkillLibrary, folder: Path
) -> None:
    old, new = (
        [replace(LEARNED, name=SkillName(f"{what}-{at}"), body=f"Step {at}.") for at in range(1000)]
        for what in ("a", "b")
    )
    first = library.publish(old, (), "learned")
    second = library.publish(new, [one.name for one in old], "learned others")
    library.sync()
    assert set(files(folder)) == {str(one.name) for one in new}
    began = time.process_time()
    assert library.revert(first.generation).hash == first.hash
    assert library.revert(second.generation).hash == second.hash
    assert library.revert(first.generation).hash == first.hash
    assert time.process_time() - began < 3.0
    assert set(files(folder)) == {str(one.name) for one in new}  # nobody has waited for them
    edited = folder / "b-7" / "SKILL.md"
    edited.write_text(edited.read_text().replace("Step 7.", "Step 7, as a person wants it."))
    view = library.sync()
    assert set(files(folder)) == {str(one.name) for one in old} | {"b-7"}
    assert (view.count, library.sync().count) == (1001, 1001)
    mine = view.get("b-7")
    assert mine is not None
    assert mine.body == "Step 7, as a person wants it."


def test_stopped_between_store_and_files_the_next_start_finishes(
    folder: Path, generations: Generations
) -> None:
    library = SkillLibrary(folder, generations, ahead)
    library.publish([LEARNED, OTHER], (), "learned")
    generations.stops_after_publishing = True
    revised = replace(LEARNED, body="Use less citric acid.")
    new = replace(LEARNED, name=SkillName("backflush"), trigger="When backflushing")
    with pytest.raises(Stopped):
        library.publish([revised, new], [OTHER.name], "revised")
    generations.stops_after_publishing = False
    view = SkillLibrary(folder, generations, ahead).sync()
    assert (view.generation, by_name(view)) == (2, {"backflush": new, "descale": revised})
    assert (files(folder), len(generations.kept)) == (by_name(view), 3)


def test_what_a_person_changed_while_it_was_stopped_is_not_overwritten_by_the_repair(
    folder: Path, generations: Generations
) -> None:
    library = SkillLibrary(folder, generations, ahead)
    library.publish([LEARNED, OTHER], (), "learned")
    generations.stops_after_publishing = True
    with pytest.raises(Stopped):
        library.publish([replace(LEARNED, body="Use nothing.")], [OTHER.name], "revised")
    generations.stops_after_publishing = False
    edit(folder, "descale", "citric", "acetic")
    edit(folder, "purge", "Open", "Turn")
    view = SkillLibrary(folder, generations, ahead).sync()
    assert {name: (skill.body, skill.author) for name, skill in by_name(view).items()} == {
        "descale": ("Use acetic acid.", Authorship.PERSON),
        "purge": ("Turn the valve.", Authorship.PERSON),
    }


def test_a_file_that_is_behind_by_several_generations_is_still_told_from_a_persons_edit(
    folder: Path, generations: Generations
) -> None:
    library = SkillLibrary(folder, generations, ahead)
    library.publish([LEARNED], (), "learned")
    for body in ("Second.", "Third."):
        SkillLibrary(folder.with_name("elsewhere"), generations, ahead).publish(
            [replace(LEARNED, body=body)], (), "behind its back"
        )
    assert SkillLibrary(folder, generations, ahead).sync().skills[0].body == "Third."
    assert files(folder)["descale"].body == "Third."


NAMES = st.sampled_from(["alpha", "beta", "gamma"])
BODIES = st.sampled_from(["One.", "Two.", "Three."])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), NAMES, BODIES),
        st.tuples(st.just("retire"), NAMES, BODIES),
        st.tuples(st.just("edit"), NAMES, BODIES),
        st.tuples(st.just("delete"), NAMES, BODIES),
        st.tuples(st.just("revert"), NAMES, BODIES),
        st.tuples(st.just("restart"), NAMES, BODIES),
        st.tuples(st.just("crash"), NAMES, BODIES),
    ),
    max_size=14,
)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(STEPS)
def test_whatever_happens_store_view_and_files_say_the_same_and_a_persons_text_is_never_lost(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, str]]
) -> None:
    folder, generations = tmp_path_factory.mktemp("law") / "skills", Generations()
    library = SkillLibrary(folder, generations, ahead)
    theirs: dict[str, str] = {}
    for number, (what, name, body) in enumerate(steps):
        skill = replace(LEARNED, name=SkillName(name), body=f"{body} {number}")
        if what in ("publish", "crash"):
            generations.stops_after_publishing = what == "crash"
            try:
                library.publish([skill], (), "learned")
                assert name not in theirs
            except SkillError:
                assert name in theirs
            except Stopped:
                assert name not in theirs
                library = SkillLibrary(folder, generations, ahead)
            finally:
                generations.stops_after_publishing = False
        elif what == "retire" and library.sync().get(name) is not None:
            library.retire(SkillName(name))
            theirs.pop(name, None)
        elif what == "edit":
            write_skill(folder, replace(skill, author=Authorship.PERSON, state=SkillState.LIVE))
            theirs[name] = skill.body
        elif what == "delete" and (folder / name / "SKILL.md").exists():
            remove_skill(folder, name)
            theirs.pop(name, None)
        elif what == "revert":
            target = library.revert(number % len(generations.kept))
            theirs = {
                one.name: one.body for one in target.skills if one.author is Authorship.PERSON
            }
        elif what == "restart":
            library = SkillLibrary(folder, generations, ahead)
        view = library.sync()
        latest = generations.latest()
        assert (view.generation, by_name(view)) == (
            latest.number,
            {one.name: one for one in latest.skills},
        )
        assert files(folder) == by_name(view)
        assert {
            one.name: one.body for one in view.skills if one.author is Authorship.PERSON
        } == theirs


def test_a_linked_skill_is_withdrawn_by_removing_the_link(
    library: SkillLibrary, folder: Path
) -> None:
    write_skill(folder, LEARNED)
    (folder / "descale").rename(folder / ".kept")
    (folder / "descale").symlink_to(folder / ".kept")
    assert library.sync().count == 1
    library.retire(LEARNED.name)
    assert not (folder / "descale").is_symlink()
    assert (folder / ".kept" / "SKILL.md").is_file()
