"""Rules over HTTP: a person's words are listed, changed and removed one by one; the last lesson is
taken back, whatever it was.
"""

from dataclasses import replace
from typing import Any

import pytest

from metaclaw.domain.candidate import Standing
from metaclaw.domain.ids import SkillName, TurnId, new_session_id
from metaclaw.domain.skill import Authorship, LearnedFrom, Rule
from metaclaw.store import RefusedError
from tests.api.recorded import candidate, record, skill
from tests.api.stage import Stage

pytestmark = pytest.mark.anyio


async def add(stage: Stage, text: str, **fields: Any) -> Any:
    answer = await stage.http.post("/api/rules", json={"text": text, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def names(stage: Stage) -> list[str]:
    return [rule["name"] for rule in (await stage.get("/api/rules"))["rules"]]


async def undo(stage: Stage) -> Any:
    answer = await stage.http.post("/api/undo")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_an_exception_and_a_sentence_as_it_was_said_are_told(stage: Stage) -> None:
    await add(stage, "Use pnpm.")
    said = Rule(
        SkillName("npm-here"),
        "From now on npm here, ok",
        "From now on npm here, ok",
        scope="owner",
        author=Authorship.INSTRUCTION,
        workspace="/shop",
        overrides=(SkillName("use-pnpm"),),
        source=TurnId("t_1"),
    )
    stage.library.publish([said], (), "noted npm-here")
    notes = {one["name"]: one["notes"] for one in (await stage.get("/api/rules"))["rules"]}
    assert notes == {
        "npm-here": ["as you said it", "instead of use-pnpm"],
        "use-pnpm": ["in /shop, npm-here counts instead"],
    }
    assert (await stage.get("/api/rules/use-pnpm"))["notes"] == notes["use-pnpm"]


async def test_a_rule_is_added_listed_shown_changed_and_removed(stage: Stage) -> None:
    added = await add(stage, "Use uv instead of pip.")
    assert (added["name"], added["added"], added["when"]) == (
        "use-uv-instead-of-pip",
        True,
        "always",
    )
    (listed,) = (await stage.get("/api/rules"))["rules"]
    assert {
        key: listed[key]
        for key in ("kind", "text", "scope", "workspace", "expires", "examples", "check", "author")
    } == {
        "kind": "rule",
        "text": "Use uv instead of pip.",
        "scope": None,
        "workspace": None,
        "expires": None,
        "examples": [],
        "check": None,
        "author": "person",
    }
    assert listed["created"] == listed["changed"] is not None
    shown = await stage.get("/api/rules/use-uv-instead-of-pip")
    assert {key: shown[key] for key in listed} == listed
    assert set(shown) - set(listed) == {"by_model", "by_day", "violations", "reminders"}
    assert listed["compliance"] == {
        "applied": 0,
        "not_held": 0,
        "followed": 0,
        "broken": 0,
        "held": 0,
        "unknown": 0,
    }
    change = {
        "text": "Use uv, never pip.",
        "when": "installing packages",
        "workspace": "/home/ann/shop",
        "expires": "2099-01-31",
    }
    changed = (await stage.http.patch("/api/rules/use-uv-instead-of-pip", json=change)).json()
    assert {key: changed[key] for key in change} == change
    assert changed["created"] == listed["created"] < changed["changed"]
    widened = (
        await stage.http.patch(
            "/api/rules/use-uv-instead-of-pip", json={"workspace": None, "when": "always"}
        )
    ).json()
    assert (widened["workspace"], widened["when"], widened["text"]) == (
        None,
        "always",
        "Use uv, never pip.",
    )
    removed = (await stage.http.delete("/api/rules/use-uv-instead-of-pip")).json()
    assert removed["removed"] == "use-uv-instead-of-pip"
    assert await names(stage) == []
    await stage.refused(404, "GET", "/api/rules/use-uv-instead-of-pip")


async def test_a_rule_is_a_file_that_a_person_may_edit(stage: Stage) -> None:
    await add(
        stage,
        "The staging server is stage-2.",
        kind="fact",
        expires="2099-12-31",
        examples=["Deploy to staging."],
    )
    path = stage.library.folder / "the-staging-server-is-stage-2" / "SKILL.md"
    assert "kind: fact" in path.read_text()
    path.write_text(path.read_text().replace("stage-2.", "stage-3."))
    stage.library.sync()
    (fact,) = (await stage.get("/api/rules"))["rules"]
    assert (fact["kind"], fact["text"], fact["examples"]) == (
        "fact",
        "The staging server is stage-3.",
        ["Deploy to staging."],
    )


async def test_the_same_words_are_not_added_twice_but_other_people_may_say_them(
    stage: Stage,
) -> None:
    await add(stage, "Use uv instead of pip.", scope="user:ann")
    again = await add(stage, "use uv  instead of pip", scope="user:ann")
    assert (again["name"], again["added"]) == ("use-uv-instead-of-pip", False)
    other = await add(stage, "Use uv instead of pip.", scope="user:bob")
    assert (other["name"], other["added"]) == ("use-uv-instead-of-pip-2", True)


async def test_words_that_have_no_latin_letters_get_a_name_too(stage: Stage) -> None:
    assert (await add(stage, "提交信息用英文写。"))["name"] == "rule-commit-english"
    assert (await add(stage, "この製品の名前は桜です。", kind="fact"))["name"] == "fact-names"
    assert (await add(stage, "回答要简短。"))["name"] == "rule-answers"


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ({}, "nothing to change"),
        ({"text": ""}, "text is missing"),
        ({"text": 5}, "text: 5 is not of type 'string'"),
        ({"text": None}, "text: None is not of type 'string'"),
        ({"text": "x" * 2001}, "too long"),
        ({"text": "x", "kind": "skill"}, "kind: 'skill' is not one of"),
        ({"text": "x", "when": "y" * 501}, "too long"),
        ({"text": "x", "scope": "ann"}, "write `everyone`"),
        ({"text": "x", "scope": "user:"}, "names no user"),
        ({"text": "x", "expires": "tomorrow"}, "write the last day as"),
        ({"text": "x", "expires": "2020-01-01"}, "which is over"),
        ({"text": "x", "examples": "one"}, "examples: 'one' is not of type 'array'"),
        ({"text": "x", "enforce": "always"}, "enforce: 'always' is not one of"),
        ({"text": "x", "on_error": "stop"}, "on_error: 'stop' is not one of"),
        ({"text": "x", "check": "nonsense"}, "check cannot be read"),
        ({"text": "x", "until": "y"}, "'until' is not a field here"),
    ],
)
async def test_a_rule_that_makes_no_sense_is_refused_by_its_field(
    stage: Stage, said: dict[str, Any], word: str
) -> None:
    assert word in await stage.refused(400, "POST", "/api/rules", json=said)
    assert await names(stage) == []


async def test_a_rule_says_what_happens_when_it_is_broken(stage: Stage) -> None:
    name = (await add(stage, "Use uv instead of pip."))["name"]
    keys = ("check", "check_state", "enforce", "on_error")
    listed = await stage.get(f"/api/rules/{name}")
    assert [listed[key] for key in keys] == [None, None, "remind", "pass"]
    change = {
        "check": r"not in calls of shell: \bpip install\b",
        "enforce": "hold",
        "on_error": "hold",
    }
    changed = (await stage.http.patch(f"/api/rules/{name}", json=change)).json()
    assert [changed[key] for key in keys] == [change["check"], "confirmed", "hold", "hold"]
    back = (await stage.http.patch(f"/api/rules/{name}", json=dict.fromkeys(change))).json()
    assert [back[key] for key in keys] == [None, None, "remind", "pass"]


async def test_a_skill_is_no_rule_and_is_listed_apart_from_them(stage: Stage) -> None:
    stage.library.publish([skill("dates")], (), "learned dates")
    await add(stage, "Use uv.")
    assert await names(stage) == ["use-uv"]
    listed = (await stage.get("/api/skills"))["skills"]
    assert [(one["name"], one["kind"]) for one in listed] == [
        ("dates", "skill"),
        ("use-uv", "rule"),
    ]
    for method in ("GET", "PATCH", "DELETE"):
        said = {"json": {"text": "x"}} if method == "PATCH" else {}
        assert "is a skill, not a rule" in await stage.refused(
            404, method, "/api/rules/dates", **said
        )


async def test_the_words_of_a_person_are_a_rule(stage: Stage) -> None:
    old = replace(
        skill("always-uv"),
        body="Always use uv.\nNever pip.",
        author=Authorship.INSTRUCTION,
    )
    stage.library.publish([old], (), "learned always-uv from 1 turns")
    (rule,) = (await stage.get("/api/rules"))["rules"]
    assert (rule["text"], rule["kind"]) == ("Always use uv.\nNever pip.", "rule")
    (listed,) = (await stage.get("/api/skills"))["skills"]
    assert listed["state"] == "live"


async def test_undo_takes_back_one_lesson_after_the_other_and_each_stays_away(stage: Stage) -> None:
    await add(stage, "Use uv.")
    await add(stage, "Answer in German.")
    await stage.http.patch("/api/rules/use-uv", json={"text": "Use poetry."})
    await stage.http.delete("/api/rules/answer-in-german")
    back = await undo(stage)
    assert (back["undone"]["reason"], back["removed"]) == ("removed the rule answer-in-german", [])
    assert [one["text"] for one in back["restored"]] == ["Answer in German."]
    assert [one["text"] for one in (await undo(stage))["restored"]] == ["Use uv."]
    assert await names(stage) == ["answer-in-german", "use-uv"]
    assert [one["name"] for one in (await undo(stage))["removed"]] == ["answer-in-german"]
    assert [one["name"] for one in (await undo(stage))["removed"]] == ["use-uv"]
    assert "no lesson to take back" in await stage.refused(409, "POST", "/api/undo")
    assert await names(stage) == []


async def test_undo_takes_back_a_rule_that_replaced_another_and_the_other_is_in_force_again(
    stage: Stage,
) -> None:
    await add(stage, "Indent with tabs.")
    spoken = Rule(
        SkillName("indent-with-spaces"),
        "always",
        "Indent with spaces.",
        author=Authorship.INSTRUCTION,
    )
    tabs = stage.library.view.skills[0].name
    stage.library.publish(
        [spoken], [tabs], "learned indent-with-spaces from 1 turns", by_person=True
    )
    back = await undo(stage)
    assert (
        [one["name"] for one in back["removed"]],
        [one["name"] for one in back["restored"]],
    ) == (["indent-with-spaces"], [tabs])
    assert await names(stage) == [tabs]


async def test_undo_of_a_learned_skill_keeps_it_from_being_learned_again_from_the_same_turns(
    stage: Stage,
) -> None:
    turn = await record(stage)
    candidate(stage, "dates", turn.id, Standing.ACCEPTED)
    learned = stage.library.view.generation
    assert [one["name"] for one in (await undo(stage))["removed"]] == ["dates"]
    assert (
        stage.candidates.candidates(name=skill("dates").name)[0].reason == "a person took it back"
    )
    with pytest.raises(RefusedError):
        stage.library.publish(
            [skill("dates")],
            (),
            "learned dates from 1 turns",
            learned=LearnedFrom(learned, (turn.id,), "c_dates"),
        )


async def test_undo_passes_over_pins_reverts_and_files_changed_by_hand(stage: Stage) -> None:
    await add(stage, "Use uv.")
    stage.library.publish([skill("dates")], (), "learned dates from 3 turns")
    await stage.http.post("/api/skills/dates/pin")
    by_hand = stage.library.folder / "mine" / "SKILL.md"
    by_hand.parent.mkdir()
    by_hand.write_text("---\nname: mine\ndescription: When I say so\n---\nDo it.\n")
    stage.library.sync()
    await stage.http.post(
        "/api/generations/revert", json={"generation": stage.library.view.generation}
    )
    back = await undo(stage)
    assert back["undone"]["reason"] == "learned dates from 3 turns"
    assert [one["name"] for one in (await stage.get("/api/skills"))["skills"]] == ["mine", "use-uv"]


async def test_undo_of_a_retirement_brings_the_skill_back_to_stay(stage: Stage) -> None:
    stage.library.publish([skill("dates")], (), "learned dates from 3 turns")
    stage.library.publish(
        (),
        [skill("dates").name],
        "retired dates: no task has matched it for 90 days",
        by_person=True,
    )
    await undo(stage)
    (back,) = (await stage.get("/api/skills"))["skills"]
    assert (back["name"], back["state"], back["pinned"]) == ("dates", "live", True)


async def test_retired_items_are_listed_with_the_reason_and_restored_one_by_one(
    stage: Stage,
) -> None:
    stage.library.publish([skill("dates"), skill("times")], (), "learned dates from 3 turns")
    await add(stage, "Use uv.")
    for name in ("dates", "times"):
        await stage.http.post(f"/api/skills/{name}/retire")
    await stage.http.delete("/api/rules/use-uv")
    gone = (await stage.get("/api/skills?state=retired"))["skills"]
    assert [(one["name"], one["kind"], one["state"]) for one in gone] == [
        ("use-uv", "rule", "retired"),
        ("times", "skill", "retired"),
        ("dates", "skill", "retired"),
    ]
    assert gone[1]["reason"] == "a person retired times"
    assert [one["text"] for one in (await stage.get("/api/rules?state=retired"))["rules"]] == [
        "Use uv."
    ]
    back = (await stage.http.post("/api/skills/dates/restore")).json()
    assert (back["restored"], back["state"], back["pinned"]) == (True, "live", True)
    await stage.http.post("/api/skills/use-uv/restore")
    assert [one["name"] for one in (await stage.get("/api/skills"))["skills"]] == [
        "dates",
        "use-uv",
    ]
    assert [one["name"] for one in (await stage.get("/api/skills?state=retired"))["skills"]] == [
        "times"
    ]
    assert "in force already" in await stage.refused(409, "POST", "/api/skills/dates/restore")
    assert "no retired skill or rule named nothing" in await stage.refused(
        409, "POST", "/api/skills/nothing/restore"
    )
    assert "state must be" in await stage.refused(400, "GET", "/api/skills?state=gone")


async def test_a_skill_is_pinned_and_unpinned(stage: Stage) -> None:
    stage.library.publish([skill("dates")], (), "learned dates from 3 turns")
    await add(stage, "Use uv.")
    pinned = (await stage.http.post("/api/skills/dates/pin")).json()
    assert (pinned["state"], pinned["pinned"], pinned["author"]) == ("live", True, "evolver")
    unpinned = (await stage.http.post("/api/skills/dates/pin", json={"pinned": False})).json()
    assert (unpinned["state"], unpinned["pinned"]) == ("live", False)
    assert "your own words" in await stage.refused(409, "POST", "/api/skills/use-uv/pin")


async def test_what_a_forgotten_session_taught_is_neither_listed_nor_brought_back(
    stage: Stage,
) -> None:
    session = new_session_id()
    turn = await record(stage, session)
    candidate(stage, "dates", turn.id, Standing.ACCEPTED)
    await stage.http.post("/api/skills/dates/retire")
    await stage.http.post(f"/api/sessions/{session}/forget")
    assert (await stage.get("/api/skills?state=retired"))["skills"] == []
    await stage.refused(409, "POST", "/api/undo")
    await stage.refused(409, "POST", "/api/skills/dates/restore")
    assert (await stage.get("/api/skills"))["skills"] == []
    assert list(stage.app.rulebook.lately()) == []


async def test_several_rules_are_put_in_force_in_one_step_or_none_of_them(stage: Stage) -> None:
    before = stage.library.view.generation
    several = {
        "rules": [
            {"text": "Use uv."},
            {"text": "The server is stage-2.", "kind": "fact"},
            {"text": "use uv"},
        ]
    }
    told = (await stage.http.post("/api/rules", json=several)).json()["rules"]
    assert [one["added"] for one in told] == [True, True, False]
    assert stage.library.view.generation == before + 1
    faulty = {"rules": [{"text": "Good."}, {"text": ""}]}
    assert "text is missing" in await stage.refused(400, "POST", "/api/rules", json=faulty)
    wrongs: list[dict[str, Any]] = [
        {"rules": []},
        {"rules": "x"},
        {"rules": ["x"]},
        {"rules": [{"text": "x"}], "text": "y"},
    ]
    for wrong in wrongs:
        await stage.refused(400, "POST", "/api/rules", json=wrong)
    assert len(await names(stage)) == 2
