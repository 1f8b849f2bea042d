"""The scope of a skill, and which of several skills that say the same is placed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaclaw.domain.front_matter import SkillRecord
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Rule, Skill
from metaclaw.domain.turn import Scope
from metaclaw.skills import LibraryView, applies, applying, scope_of_lesson
from metaclaw.skills.library_view import MOST_STANDING
from metaclaw.skills.scopes import fault_of, most_specific
from tests.support.cases import each

TEAMS = {"backend": ("alice", "bob"), "design": ("carol",), "empty": ()}
QUERY = "descale the boiler of the lever machine"


def skill(
    name: str, scope: str | None, trigger: str = "When descaling the boiler", **extra: object
) -> Skill:
    return SkillRecord(
        SkillName(name), trigger, f"As {name} does it.", scope=scope, extra=extra
    ).read()


def view(*skills: Skill) -> LibraryView:
    return LibraryView.of(1, skills)


def found(view: LibraryView, scope: Scope | None, limit: int = 3) -> list[str]:
    return [skill.name for skill in view.retrieve(QUERY, limit, scope, TEAMS)]


@each(
    ("scope", "texts"),
    [
        (None, set()),
        (Scope(), {"owner"}),
        (Scope(workspace="lab"), {"owner", "lab", "workspace:lab"}),
        (Scope(user="alice"), {"alice", "user:alice", "team:backend"}),
        (Scope(user="dave", workspace="lab"), {"dave", "user:dave", "lab", "workspace:lab"}),
        (Scope(user="owner"), {"user:owner"}),
        (
            Scope(user="team:backend", workspace="user:alice"),
            {"user:team:backend", "workspace:user:alice"},
        ),
        (Scope(user=""), {"owner"}),
    ],
)
def test_what_applies_to_whom(scope: Scope | None, texts: set[str]) -> None:
    assert set(applying(scope, TEAMS)) == texts
    assert all(applies(text, scope, TEAMS) for text in texts)
    assert applies(None, scope, TEAMS)
    assert not applies("user:zoe", scope, TEAMS)


def test_the_more_specific_has_the_higher_rank() -> None:
    rank = applying(Scope(user="alice", workspace="lab"), TEAMS)
    assert rank["user:alice"] > rank["workspace:lab"] > rank["team:backend"] > 0
    assert (rank["alice"], rank["lab"]) == (rank["user:alice"], rank["workspace:lab"])
    assert applying(Scope(user="lab", workspace="lab"))["lab"] == rank["alice"]


@each(
    ("scope", "lesson"),
    [
        (Scope(user="alice", workspace="lab"), "user:alice"),
        (Scope(workspace="lab"), "owner"),
        (Scope(), "owner"),
        (Scope(user="", workspace=""), "owner"),
    ],
)
def test_a_lesson_is_for_the_one_who_spoke(scope: Scope, lesson: str) -> None:
    assert scope_of_lesson(scope) == lesson
    assert applies(lesson, scope)


def test_only_a_scope_that_names_nobody_is_at_fault() -> None:
    assert [
        fault_of(text) is None for text in ("owner", "alice", "user:alice", "slack:U1", "team:a b")
    ] == [True] * 5
    assert [fault_of(text) for text in ("user:", "team: ")] == [
        "names no user: write `user:…`",
        "names no team: write `team:…`",
    ]


def test_of_skills_that_say_the_same_the_most_specific_is_placed() -> None:
    library = view(
        skill("everyones", None),
        skill("teams", "team:backend", "When you are descaling a boiler"),
        skill("labs", "workspace:lab", "When the boiler is descaled"),
        skill("alices", "user:alice"),
        skill("owners", "owner"),
    )
    assert found(library, None) == ["everyones"]
    assert found(library, Scope()) == ["owners"]
    assert found(library, Scope(user="carol")) == ["everyones"]
    assert found(library, Scope(user="bob")) == ["teams"]
    assert found(library, Scope(user="bob", workspace="lab")) == ["labs"]
    assert found(library, Scope(user="alice", workspace="lab")) == ["alices"]


def test_skills_that_say_something_else_stand_beside_it() -> None:
    other = skill("wand", None, "When purging the steam wand of the lever machine's boiler")
    assert sorted(
        found(
            view(skill("everyones", None), skill("alices", "user:alice"), other),
            Scope(user="alice"),
        )
    ) == [
        "alices",
        "wand",
    ]


def test_two_people_with_contradictory_rules_each_keep_their_own() -> None:
    library = view(skill("alices", "user:alice"), skill("bobs", "user:bob"))
    assert (found(library, Scope(user="alice")), found(library, Scope(user="bob"))) == (
        ["alices"],
        ["bobs"],
    )
    assert found(library, Scope(user="carol")) == []


def test_one_that_stands_in_leaves_room_for_the_next() -> None:
    same = [skill(f"everyones-{number}", None) for number in range(3)]
    other = skill("wand", None, "When purging the steam wand of the lever machine's boiler")
    assert sorted(
        found(view(*same, other, skill("alices", "user:alice")), Scope(user="alice"), 2)
    ) == ["alices", "wand"]


@pytest.mark.parametrize("named", ["everyones", ["everyones"], ["nothing", "everyones"]])
def test_an_explicit_override_needs_no_likeness(named: object) -> None:
    mine = skill(
        "alices",
        "user:alice",
        "When the boiler of my lever machine tastes of chalk",
        overrides=named,
    )
    assert most_specific([skill("everyones", None), mine], applying(Scope(user="alice"))) == (mine,)


def test_an_override_works_among_equals_but_never_against_the_more_specific() -> None:
    plain, mine = skill("plain", None), skill("mine", "user:alice")
    better = skill("better", None, "When anything is descaled", overrides=["plain", "mine"])
    rank = applying(Scope(user="alice"))
    assert most_specific([plain, better], {}) == (better,)
    assert most_specific([better, plain], {}) == (better,)
    assert most_specific([better, mine], rank) == (mine,)


@pytest.mark.parametrize("named", [{}, {"overrides": "everyones"}])
def test_a_held_rule_is_not_lifted_by_a_more_specific_one(named: dict[str, str]) -> None:
    mine = skill("alices", "user:alice", **named)
    held = skill("everyones", None, enforce="hold")
    assert most_specific([held, mine], applying(Scope(user="alice"))) == (held, mine)
    assert most_specific([skill("everyones", None), mine], applying(Scope(user="alice"))) == (mine,)


def test_overrides_that_are_no_names_are_none() -> None:
    assert skill("a", None, overrides=7).overrides == ()
    assert skill("a", None, overrides=["b", 7]).overrides == ("b",)


IDS = st.sampled_from(
    [
        "alice",
        "bob",
        "carol",
        "lab",
        "owner",
        "user:alice",
        "team:backend",
        "workspace:lab",
        "backend",
        "",
        "ü",
    ]
)
SPEAKERS = st.builds(Scope, st.none() | IDS, st.none() | IDS)
PRIVATE = st.builds(scope_of_lesson, SPEAKERS) | IDS.filter(bool).map(lambda name: f"team:{name}")


@given(st.lists(PRIVATE, min_size=1, max_size=6), SPEAKERS, SPEAKERS)
def test_nobodys_private_skill_is_ever_found_for_another(
    scopes: list[str], speaker: Scope, other: Scope
) -> None:
    """A skill for a user is found for that user alone, the owner's for those without a name, a
    team's for its members.
    """
    library = view(*(skill(f"s-{number}", scope) for number, scope in enumerate(scopes)))
    for name in found(library, speaker, 6):
        one = library.get(name)
        assert one is not None
        assert one.scope is not None
        kind, _, who = one.scope.partition(":")
        match kind:
            case "user":
                assert speaker.user == who
            case "workspace":
                assert speaker.workspace == who
            case "team":
                assert speaker.user in TEAMS.get(who, ())
            case _:
                assert one.scope == "owner"
                assert not speaker.user
    if applies(scope_of_lesson(speaker), other, TEAMS):
        if speaker.user:
            assert other.user == speaker.user
        else:
            assert not other.user


@given(
    st.lists(
        st.sampled_from([None, "owner", "user:alice", "workspace:lab", "team:backend"]), max_size=6
    ),
    SPEAKERS,
)
def test_whoever_speaks_hears_the_same_thing_only_once_and_from_the_nearest(
    scopes: list[str | None], speaker: Scope
) -> None:
    skills = [skill(f"s-{number}", scope) for number, scope in enumerate(scopes)]
    rank = applying(speaker, TEAMS)
    mine = [one for one in skills if applies(one.scope, speaker, TEAMS)]
    kept = most_specific(mine, rank)
    ranks = [0 if one.scope is None else rank[one.scope] for one in mine]
    assert [one.scope for one in kept] == [
        one.scope for one, worth in zip(mine, ranks, strict=True) if worth == max(ranks)
    ]


def test_a_rule_for_every_task_is_found_whatever_the_task_is_and_takes_no_place_from_others() -> (
    None
):
    rule = Skill(
        SkillName("german"),
        "Whatever the task is: answer in German",
        "Answer in German.",
        scope="user:ada",
        applies_always=True,
    )
    other = Skill(
        SkillName("deploys"),
        "When deploying the web shop to production",
        "Ask before you deploy the web shop to production.",
    )
    library = view(rule, other)
    ada, bob = Scope(user="ada"), Scope(user="bob")
    assert [skill.name for skill in library.retrieve("what is the capital of France", 3, ada)] == [
        "german"
    ]
    assert [
        skill.name for skill in library.retrieve("deploy the web shop to production", 1, ada)
    ] == ["german", "deploys"]
    assert library.retrieve("what is the capital of France", 3, bob) == ()


def test_a_rule_of_one_workspace_stays_in_it() -> None:
    rule = Skill(
        SkillName("pnpm"),
        "When installing packages for the shop front end",
        "Install packages with pnpm.",
        scope="user:ada",
        workspace="shop",
    )
    library = view(rule)
    wanted = "install the packages of the shop front end"
    assert [skill.name for skill in library.retrieve(wanted, 3, Scope("ada", "shop"))] == ["pnpm"]
    assert library.retrieve(wanted, 3, Scope("ada", "blog")) == ()


def test_a_rule_of_one_channel_stays_on_it() -> None:
    short = Rule(SkillName("short"), "always", "Keep it short.", channel="slack")
    library = view(short)
    on_slack, at_home = Scope("ada", "/shop", "slack"), Scope("ada", "/shop")
    assert library.retrieve("hi", 3, on_slack) == (short,)
    assert library.retrieve("hi", 3, Scope("ada", "/shop", "telegram")) == ()
    assert library.retrieve("hi", 3, at_home) == ()


def test_a_rule_of_another_workspace_does_not_speak_in_place_of_anything() -> None:
    library = view(skill("everyones", None), skill("alices", "user:alice", workspace="shop"))
    assert found(library, Scope("alice", "shop")) == ["alices"]
    assert found(library, Scope("alice", "blog")) == ["everyones"]
    assert found(library, Scope("alice")) == ["everyones"]


def test_of_the_rules_for_every_task_the_nearest_are_placed_and_no_more_than_a_few() -> None:
    words = ["English", "French", "German", "Dutch", "Danish", "Greek", "Latin"]
    everyones = [
        skill(f"e-{word.lower()}", None, f"Whatever the task: cite {word} books", applies="always")
        for word in words
    ]
    mine = skill("z-mine", "user:alice", "Whatever the task: be brief", applies="always")
    library = view(*everyones, mine)
    assert found(library, Scope(user="alice")) == [
        "z-mine",
        *(one.name for one in sorted(everyones, key=lambda one: one.name)[:4]),
    ]
    assert len(found(library, Scope(user="bob"))) == MOST_STANDING
    assert found(library, Scope(user="bob"), 0) == []


def test_a_rule_for_every_task_gives_way_to_a_nearer_one_that_says_the_same() -> None:
    everyones = skill("polite", None, "Whatever the task: how answers begin", applies="always")
    mine = skill("curt", "user:alice", "Whatever the task: how answers begin", applies="always")
    assert found(view(everyones, mine), Scope(user="alice")) == ["curt"]
    assert found(view(everyones, mine), Scope(user="bob")) == ["polite"]
