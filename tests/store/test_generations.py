"""Publishing generations of skills."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from metaclaw.domain.front_matter import SkillRecord
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import (
    Authorship,
    ChangesSince,
    LearnedFrom,
    Skill,
    SkillGeneration,
    library_hash,
)
from metaclaw.errors import OvertakenError, StoreError
from metaclaw.ports import GenerationHistory, GenerationStore
from metaclaw.store import Database, LedgerReader, RefusedError, SqlGenerations

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


def skill(name: str, body: str = "Do it.", **extra: object) -> Skill:
    return SkillRecord(SkillName(name), "when it is needed", body, "habits", None, extra).read()


@pytest.fixture
def store(database: Database) -> SqlGenerations:
    return SqlGenerations(database, clock=lambda: NOON)


def test_the_store_is_what_the_port_asks_for(store: SqlGenerations) -> None:
    port: GenerationStore = store
    assert port.latest() == SkillGeneration(0, library_hash(()), ())


def test_what_was_published_is_the_latest_for_everybody(
    store: SqlGenerations, database: Database
) -> None:
    skills = [skill("b"), skill("a", "Ünicode \x00 body", key=[1, {"deep": None}])]
    published = store.publish(skills, "by hand")
    assert published == SkillGeneration(1, library_hash(skills), (skills[1], skills[0]))
    assert SqlGenerations(database).latest() == published


def test_every_generation_stays_as_it_was(store: SqlGenerations) -> None:
    sets = [
        [skill("a")],
        [skill("a"), skill("b")],
        [skill("a", "Do it better."), skill("b")],
        [],
        [skill("a")],
        [skill("a")],
    ]
    published = [store.publish(skills, f"change {number}") for number, skills in enumerate(sets)]
    assert [generation.number for generation in published] == [1, 2, 3, 4, 5, 6]
    assert [store.at(number) for number in range(1, 7)] == published
    assert published[0].hash == published[4].hash
    assert store.at(7) is None
    assert store.at(-1) is None


def test_whoever_follows_is_told_what_came_and_went_since(store: SqlGenerations) -> None:
    store.publish([skill("a"), skill("b"), skill("c")], "first")
    store.publish([skill("a"), skill("b", "Do it twice."), skill("d")], "second")
    store.publish([skill("a"), skill("c")], "third")
    digest = library_hash([skill("a"), skill("c")])
    assert store.since(3) == ChangesSince(3, digest, (), ())
    assert store.since(2) == ChangesSince(
        3, digest, (skill("c"),), (SkillName("b"), SkillName("d"))
    )
    assert store.since(1) == ChangesSince(
        3, digest, (skill("c"),), (SkillName("b"), SkillName("d"))
    )
    assert store.since(7) == ChangesSince(3, digest, (), ())
    everything = store.since(0)
    assert (everything.number, sorted(one.name for one in everything.put)) == (3, ["a", "c"])


def test_history_tells_what_came_and_went(store: SqlGenerations) -> None:
    store.publish([skill("a"), skill("b")], "two at once")
    store.publish([skill("a", "Better."), skill("b")], "one changed")
    store.publish([], "all gone")
    rows = store.history()
    assert [(row.number, row.reason, row.added, row.removed) for row in rows] == [
        (3, "all gone", 0, 2),
        (2, "one changed", 1, 1),
        (1, "two at once", 2, 0),
        (0, "nothing learned yet", 0, 0),
    ]
    assert rows[0].published_at == NOON
    assert [row.number for row in store.history(limit=1)] == [3]


def test_a_text_is_stored_once_and_a_publication_writes_only_what_changed(
    store: SqlGenerations, database: Database
) -> None:
    many = [skill(f"skill-{number}") for number in range(200)]
    for number in range(5):
        store.publish([*many, skill("last", f"body {number % 2}")], "again")
    with database.reading("counting") as connection:
        counts = [
            connection.execute(text(f"SELECT count(*) FROM {table}")).scalar()
            for table in ("skill_texts", "memberships")
        ]
    assert counts == [202, 205]


def test_author_and_pin_of_a_skill_belong_to_its_generation(
    store: SqlGenerations, database: Database
) -> None:
    learned = replace(skill("a"), author=Authorship.EVOLVER)
    steps = [
        learned,
        replace(learned, pinned=True),
        skill("a"),
    ]
    published = [store.publish([step], "a step") for step in steps]
    fresh = SqlGenerations(database)
    assert [fresh.at(generation.number) for generation in published] == published
    assert [generation.skills for generation in published] == [(step,) for step in steps]
    assert [(row.added, row.removed) for row in store.history(limit=3)] == [
        (1, 1),
        (1, 1),
        (1, 0),
    ]


def test_of_two_publications_on_the_same_generation_the_second_is_refused(
    store: SqlGenerations, database: Database
) -> None:
    store.publish([skill("a")], "first", after=0)
    with pytest.raises(OvertakenError, match="the newest is 1, not 0"):
        SqlGenerations(database).publish([skill("b")], "at the same time", after=0)
    assert [one.name for one in store.latest().skills] == ["a"]
    assert store.publish([skill("a"), skill("b")], "on the newest", after=1).number == 2


def test_nothing_is_published_twice_where_several_publish_at_once(
    store: SqlGenerations, database: Database
) -> None:
    """Each counts on from the number that it has read, as homes on one store do."""

    def count(_: int) -> None:
        mine = SqlGenerations(database)
        while True:
            latest = mine.latest()
            with suppress(OvertakenError):
                mine.publish(
                    [*latest.skills, skill(f"n{latest.number}")], "one more", after=latest.number
                )
                return

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, range(12)))
    assert (store.latest().number, len(store.latest().skills)) == (12, 12)


def test_two_skills_of_one_name_are_no_generation(store: SqlGenerations) -> None:
    with pytest.raises(ValueError, match="same name"):
        store.publish([skill("a"), skill("a", "Another.")], "wrong")
    assert store.latest().number == 0


def test_the_database_itself_refuses_a_second_live_skill_of_a_name(
    store: SqlGenerations, database: Database
) -> None:
    store.publish([skill("a")], "first")
    store.publish([skill("a"), skill("b")], "second")
    with pytest.raises(StoreError) as caught:
        with database.writing("cheating") as connection:
            connection.execute(
                text(
                    "INSERT INTO memberships (name, since, skill) SELECT name, 2, skill FROM"
                    " memberships WHERE since = 1"
                )
            )
    assert isinstance(caught.value.__cause__, IntegrityError)


def test_programs_that_publish_at_once_get_numbers_of_their_own(
    store: SqlGenerations, database: Database
) -> None:
    numbers: list[int] = []

    def publish(name: str) -> None:
        other = SqlGenerations(database)
        numbers.extend(
            other.publish([skill(name, f"body {count}")], "race").number for count in range(5)
        )

    threads = [threading.Thread(target=publish, args=(f"skill-{number}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(numbers) == list(range(1, 16))
    assert len(store.latest().skills) == 1


def test_every_publication_is_an_event_in_the_same_moment(
    store: SqlGenerations, database: Database
) -> None:
    store.publish([skill("a"), skill("b")], "by hand")
    store.publish([skill("b", "Do it twice."), skill("c")], "learned c")
    first, second = [
        event for event in LedgerReader(database).events() if event.kind == "generation"
    ]
    assert first.data["put"] == ["a", "b"]
    assert (second.data["generation"], second.data["reason"]) == (2, "learned c")
    assert (second.data["put"], second.data["gone"]) == (["b", "c"], ["a"])


def test_the_database_refuses_what_was_learned_before_a_revert(store: SqlGenerations) -> None:
    store.publish([skill("a")], "learned", learned=LearnedFrom(0))
    store.publish([], "reverted to generation 0", reverted_to=0)
    with pytest.raises(RefusedError, match="reverted after this was learned"):
        store.publish([skill("b")], "too late", learned=LearnedFrom(1))
    assert store.latest().skills == ()
    assert store.publish([skill("a")], "learned again", learned=LearnedFrom(2)).number == 3
    assert store.publish([skill("a"), skill("b")], "by hand").number == 4


def test_the_database_refuses_a_skill_that_a_person_removed_after_it_was_learned(
    store: SqlGenerations,
) -> None:
    store.publish([skill("a"), skill("b")], "learned", learned=LearnedFrom(0))
    store.publish([skill("b")], "a person retired a")
    with pytest.raises(RefusedError, match="taken out of force after this was learned"):
        store.publish([skill("a"), skill("b")], "too late", learned=LearnedFrom(1))
    store.publish([skill("b", "Do it better.")], "learned", learned=LearnedFrom(1))
    store.publish([skill("b", "Do it best."), skill("a")], "learned again", learned=LearnedFrom(2))
    store.publish([skill("a")], "retired by itself", learned=LearnedFrom(4))
    assert [
        one.name
        for one in store.publish([skill("a"), skill("b")], "learned", learned=LearnedFrom(3)).skills
    ] == ["a", "b"]


def test_changes_tell_what_each_generation_put_and_took_newest_first(store: SqlGenerations) -> None:
    port: GenerationHistory = store
    old, new, other = skill("a"), skill("a", "Do it better."), skill("b")
    for skills in ([old], [new, other], [other]):
        store.publish(skills, f"now {len(skills)}")
    store.publish([old], "reverted to generation 1", reverted_to=1)
    last, third, second, first = port.changes()
    assert (last.is_revert, last.before, last.after) == (True, {"b": other}, {"a": old})
    assert (third.is_revert, third.before, third.after) == (False, {"a": new}, {})
    assert (second.before, second.after) == ({"a": old}, {"a": new, "b": other})
    assert (first.number, first.published_at, first.reason, first.before) == (1, NOON, "now 1", {})
    assert port.changes(before=3, limit=1) == [second]
    assert port.changes(skip="now") == [last]


def test_retired_skills_are_told_as_they_last_were_and_not_while_they_are_in_force(
    database: Database,
) -> None:
    moments = iter(datetime(2026, 6, day, tzinfo=UTC) for day in range(1, 10))
    port = SqlGenerations(database, clock=lambda: next(moments))
    for skills in (
        [skill("a")],
        [skill("a", "Do it better."), skill("b"), skill("c")],
        [skill("b")],
        [skill("b"), skill("c")],
    ):
        port.publish(skills, f"{len(skills)} skills")
    (gone,) = port.retired()
    assert (gone.skill, gone.reason, gone.retired_at) == (
        skill("a", "Do it better."),
        "1 skills",
        datetime(2026, 6, 3, tzinfo=UTC),
    )
    dates = {name: [at.day for at in when if at is not None] for name, when in port.dates().items()}
    assert dates == {"a": [1, 2], "b": [2, 2], "c": [2, 4]}
