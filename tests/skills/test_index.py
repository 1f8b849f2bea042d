"""Searching skills: what is found, in which order, and when nothing is found."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Rule, Skill, SkillKind
from metaclaw.skills.index import (
    GRADES,
    NAME_AND_TRIGGER,
    NAME_OR_TRIGGER,
    UNIT,
    SkillIndex,
    evidence_needed,
    informativeness,
    telling_words,
)

SKILLS = (
    Skill(
        SkillName("postgres-migrations"),
        "When changing a PostgreSQL schema in production: columns, indexes, constraints on large"
        " tables",
        "Set lock_timeout. Create indexes CONCURRENTLY. Back-fill in batches. See SQLSTATE 55P03"
        " and the pgbouncer notes.",
    ),
    Skill(
        SkillName("git-commit-messages"),
        "When committing to git: how commit messages are written",
        "Imperative subject. Then why.",
    ),
    Skill(
        SkillName("customer-refunds"),
        "When answering a customer who asks for a refund",
        "Name first. Say what we do and by when.",
    ),
    Skill(
        SkillName("weekly-report"),
        "写周报或工作总结时使用：先写结论，再写数据",
        "结论不超过三句话。数据用表格。",
    ),
    Skill(
        SkillName("flaky-tests"),
        "When a test fails only sometimes, or only in CI",
        "Run it fifty times under load.",
    ),
)


def names(index: SkillIndex, query: str, **options: int | frozenset[str]) -> list[str]:
    return [found.skill.name for found in index.search(query, **options)]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def index() -> SkillIndex:
    return SkillIndex().changed(SKILLS)


@pytest.mark.parametrize(
    ("query", "name"),
    [
        (
            "write a migration that adds an index to the orders table in postgres production",
            "postgres-migrations",
        ),
        ("commit this please", "git-commit-messages"),
        ("squash my last git commits into one", "git-commit-messages"),
        ("a customer wants a refund for a broken lamp, answer her", "customer-refunds"),
        ("根据这些数据写工作总结", "weekly-report"),
        ("test_checkout is flaky on ci", "flaky-tests"),
        ("FlakyTests", "flaky-tests"),
        ("pgbouncer gives SQLSTATE 55P03 while the schema changes", "postgres-migrations"),
    ],
)
def test_a_request_finds_the_skill_it_needs(index: SkillIndex, query: str, name: str) -> None:
    assert names(index, query)[:1] == [name]


@pytest.mark.parametrize(
    "query",
    [
        "",
        " \n",
        "hello",
        "what is the capital of Australia?",
        "list the files in this directory",
        "thanks, that works!",
        "run it",
        "fix the bug",
        "今天天气怎么样",
        "🙂",
        "the of and",
        "0x7f3a9c 192.168.0.1",
        "write a test",
        "\0\ud800",
    ],
)
def test_a_request_that_is_about_something_else_finds_nothing(
    index: SkillIndex, query: str
) -> None:
    assert names(index, query) == []


def test_long_text_about_something_else_finds_nothing_though_single_words_occur(
    index: SkillIndex,
) -> None:
    essay = (
        "The museum opened a new wing in spring. Visitors from many countries admired paintings of"
        " harbours, winter forests and quiet kitchens. A production of an early opera followed in"
        " the garden, and a customer of the bookshop remembered the large tables at which the"
        " architects had eaten. Critics praised the lighting, the benches, the soup and the"
        " voices. "
    )
    assert names(index, essay * 40) == []


def test_a_needle_in_a_long_paste_is_found(index: SkillIndex) -> None:
    log = "\n".join(f"worker {number} finished unit {number * 7}" for number in range(200))
    assert names(index, f"the flaky tests in CI fail sometimes, see the log\n{log}") == [
        "flaky-tests"
    ]


def test_an_empty_library_finds_nothing() -> None:
    assert SkillIndex().search("postgres migrations") == []


def test_a_library_of_one_is_not_placed_everywhere() -> None:
    alone = SkillIndex().changed([SKILLS[1]])
    assert names(alone, "git commit messages") == ["git-commit-messages"]
    assert names(alone, "write a poem about messages in bottles") == []


def test_a_new_skill_is_found_by_its_own_trigger_however_many_there_are() -> None:
    many = [
        Skill(
            SkillName(f"skill-{number}"),
            f"When handling case {number} of the archive",
            "Do it well.",
        )
        for number in range(500)
    ]
    index = SkillIndex().changed(many).changed([SKILLS[2]])
    assert names(index, SKILLS[2].trigger) == ["customer-refunds"]


def test_ties_are_broken_by_name_and_the_limit_is_kept() -> None:
    same = [
        Skill(SkillName(name), "When brewing espresso on the lever machine", "Tamp.")
        for name in ("c", "a", "d", "b")
    ]
    assert names(SkillIndex().changed(same), "brew espresso on the lever machine") == [
        "a",
        "b",
        "c",
    ]
    assert names(SkillIndex().changed(same), "brew espresso on the lever machine", limit=1) == ["a"]


def test_a_skill_far_behind_the_best_is_left_out() -> None:
    index = SkillIndex().changed(
        [
            Skill(
                SkillName("espresso-lever-machine"),
                "When brewing espresso on the lever machine with ristretto baskets",
                "Tamp.",
            ),
            Skill(
                SkillName("lever-machine-repair"),
                "When repairing a hydraulic lever machine in the workshop",
                "Drain.",
            ),
        ]
    )
    assert names(index, "brew espresso ristretto with the new baskets on the lever machine") == [
        "espresso-lever-machine"
    ]
    assert names(index, "repair the hydraulic lever machine in the workshop") == [
        "lever-machine-repair"
    ]


def test_scoped_skills_are_for_their_scope_only() -> None:
    index = SkillIndex().changed(
        [
            Skill(
                SkillName("espresso"),
                "When brewing espresso on the lever machine",
                "Tamp.",
                scope="user:alice",
            ),
            Skill(SkillName("lever"), "When brewing something on a lever machine", "Pull."),
        ]
    )
    query = "brew espresso on the lever machine"
    assert names(index, query) == ["lever"]
    assert names(index, query, scopes=frozenset({"user:bob"})) == ["lever"]
    assert names(index, query, scopes=frozenset({"user:alice"})) == ["espresso", "lever"]


def test_a_hidden_skill_does_not_crowd_out_a_weaker_visible_one() -> None:
    """In a large library the best skill so far decides where the search may stop; one that this
    user may not see must not.
    """
    many = [
        Skill(SkillName(f"lacquer-{number}"), "When using lacquer", "Do.")
        for number in range(2_100)
    ]
    many += [Skill(SkillName(f"other-{number}"), "When waiting", "Do.") for number in range(6_000)]
    strong = "amaranth bergamot cardamom dandelion elderberry fenugreek"
    weak = (
        "granite hornblende ilmenite jasper kyanite labradorite malachite nephelite olivine"
        " pyroxene"
    )
    hidden = Skill(SkillName("amaranth-bergamot"), f"When {strong}", "Do.", scope="alice")
    visible = Skill(SkillName("stones"), "When looking", f"{weak} {'padding ' * 1_500}")
    index = SkillIndex().changed([*many, hidden, visible])
    query = f"{strong} lacquer {weak}"
    assert names(index, query) == ["stones"]
    assert names(index, query, scopes=frozenset({"alice"})) == [hidden.name]


def test_replacing_and_removing_leave_no_trace(index: SkillIndex) -> None:
    replaced = index.changed(
        [Skill(SkillName("flaky-tests"), "When watering the orchids", "Rain water only.")]
    )
    assert names(replaced, "test_checkout is flaky on ci") == ["flaky-tests"]  # by its name
    assert names(replaced, "water my orchids") == ["flaky-tests"]
    removed = replaced.changed([], ["flaky-tests", "never-there"])
    assert names(removed, "water my orchids") == []
    assert (len(removed), removed.get("flaky-tests")) == (4, None)
    empty = removed.changed([], [skill.name for skill in SKILLS])
    assert (len(empty), len(empty._postings), len(empty._numbers), empty.skills()) == (0, 0, 0, [])


def test_a_held_index_never_changes(index: SkillIndex) -> None:
    before = [index.search(skill.trigger) for skill in SKILLS]
    index.changed(
        [Skill(SkillName("other"), SKILLS[0].trigger, "x")], [skill.name for skill in SKILLS]
    )
    assert [index.search(skill.trigger) for skill in SKILLS] == before


def test_document_numbers_are_used_again() -> None:
    index = SkillIndex().changed(SKILLS)
    for _ in range(20):
        index = index.changed([], ["flaky-tests"]).changed([SKILLS[4]])
    assert len(index._documents) == len(SKILLS)


def test_common_words_say_little_even_where_counting_would_call_them_rare() -> None:
    assert (
        informativeness("fil", 0, 2)
        < informativeness("schema", 0, 2)
        < informativeness("ristretto", 0, 2)
    )
    assert (
        informativeness("ristretto", 50_000, 100_000)
        < 1
        < 8
        < informativeness("fil", 0, 100_000) + 4
    )


def test_the_bar_rises_with_the_library_and_with_the_length_of_the_request_and_falls_for_short_ones() -> (
    None
):
    ordinary = evidence_needed(30, 100)
    assert evidence_needed(30, 100_000) > ordinary
    assert evidence_needed(150, 100) > ordinary
    assert evidence_needed(5, 100) < ordinary
    assert evidence_needed(0, 100) > 1000 * UNIT


def test_one_rare_word_of_the_trigger_is_enough_only_in_a_small_library() -> None:
    def needed(library: int) -> float:
        return evidence_needed(40, library) / UNIT

    assert GRADES[NAME_OR_TRIGGER] * informativeness("orchid", 1, 100) > needed(100)
    assert GRADES[NAME_OR_TRIGGER] * informativeness("orchid", 1, 10_000) < needed(10_000)
    assert GRADES[NAME_AND_TRIGGER] * informativeness("orchid", 1, 10_000) > needed(10_000)


def test_a_request_in_the_words_of_an_example_finds_the_skill() -> None:
    examples = ["Wochenbericht bitte", "What did I get done since Monday?"]
    plain = Skill(SkillName("status"), "When the report for the manager is due", "Three sections.")
    taught = replace(plain, examples=tuple(examples))
    assert names(SkillIndex().changed([plain]), "schreib mir den Wochenbericht") == []
    assert names(SkillIndex().changed([taught]), "schreib mir den Wochenbericht") == ["status"]
    assert (
        names(SkillIndex().changed([taught]).changed([plain]), "schreib mir den Wochenbericht")
        == []
    )


def test_ranking_orders_everything_that_shares_a_word_and_tells_what_matches(
    index: SkillIndex,
) -> None:
    found = index.rank("commit the migration of the orders table in postgres production")
    assert [one.skill.name for one in found][:2] == ["postgres-migrations", "git-commit-messages"]
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
    matching = [one.skill.name for one in found if one.is_match]
    assert matching == names(
        index, "commit the migration of the orders table in postgres production"
    )


def test_ranking_keeps_to_the_kinds_and_scopes_asked_for() -> None:
    rule = Rule(
        SkillName("grind"),
        "When brewing espresso",
        "Grind finer.",
        scope="user:alice",
    )
    skill = Skill(SkillName("espresso"), "When brewing espresso on the lever machine", "Tamp.")
    index, alice = SkillIndex().changed([rule, skill]), frozenset({"user:alice"})
    assert [one.skill.name for one in index.rank("brew espresso")] == ["espresso"]
    assert {one.skill.name for one in index.rank("brew espresso", scopes=alice)} == {
        "espresso",
        "grind",
    }
    rules = index.rank(
        "brew espresso", kinds=frozenset({SkillKind.RULE, SkillKind.FACT}), scopes=alice
    )
    assert [one.skill.name for one in rules] == ["grind"]


def test_only_the_beginning_of_a_huge_query_is_read(index: SkillIndex) -> None:
    beginning = "how do we word the commit messages of this repository " + "and so on " * 1_200
    with_more = beginning + "customer refund postgres schema " * 200_000
    assert index.read(telling_words(with_more)) == index.read(telling_words(beginning))


PIECES = (
    "commit",
    "message",
    "git",
    "refund",
    "c++",
    "1234567",
    "12345",
    "20261115",
    "b2",
    "_",
    "+",
    "#",
    "漢字",
    "é",
    "-",
    "x1234567",
)


@given(
    st.lists(
        st.tuples(st.sampled_from(PIECES), st.sampled_from((" ", " ", "", "#", ", ", "_"))),
        max_size=8,
    )
)
def test_what_was_heard_before_never_changes_what_is_asked_for(said: list[tuple[str, str]]) -> None:
    query = "".join(piece + gap for piece, gap in said)
    assert LISTENING.read(telling_words(query)) == SkillIndex().changed(SKILLS).read(
        telling_words(query)
    )


LISTENING = SkillIndex().changed(SKILLS)
