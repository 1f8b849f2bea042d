"""Live evidence promotes or retires canaries, harmful and unused skills are retired, and a person's
rules and skills stay.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from metaclaw.domain.candidate import (
    Candidate,
    CandidateId,
    Certificate,
    Change,
    Probe,
    ProbeKind,
    Proposal,
    ReplayResult,
    Standing,
)
from metaclaw.domain.chat import Json
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.skill import Authorship, Skill, SkillState
from metaclaw.domain.turn import Scope, TurnKind
from metaclaw.domain.verdict import Outcome
from metaclaw.errors import UpstreamError
from metaclaw.learn.chores import ScopeMembers, members_of_scope
from metaclaw.learn.maintenance import model_of_most, tasks_of
from metaclaw.skills import GateMode
from metaclaw.store import DrawnTurn
from tests.learn.learning import (
    CORRECTION,
    DATES,
    FAILED,
    NOON,
    PASSED,
    TASK,
    ScriptedLearning,
    Speaker,
    Talk,
    drawn,
    learned_skill,
)

pytestmark = pytest.mark.anyio
NewLearning = Callable[..., Awaitable[ScriptedLearning]]
NAME = "iso-release-dates"


async def tasks(
    learning: ScriptedLearning,
    name: str,
    *,
    placed: bool,
    passed: bool,
    times: int,
    propensity: float = 0.5,
    model: str = "m-1",
) -> None:
    """So many tasks on which chance placed or withheld a skill, and what came of them."""
    for _ in range(times):
        talk = Talk(learning, model=model)
        turn = await talk.say(
            TASK.format(1),
            draws=drawn(name, placed=placed, propensity=propensity),
            skills=(name,) if placed else (),
        )
        learning.say(turn, Outcome.PASS if passed else Outcome.FAIL)


async def taught(
    learning: ScriptedLearning, skill: Skill, model: str = "m-1", **fields: object
) -> Skill:
    """A learned skill in force that came through the gate, with the certificate it earned."""
    talk = Talk(learning, Scope((skill.scope or "user:ada").removeprefix("user:")))
    turn = await talk.say(TASK.format(1))
    await talk.say(CORRECTION, "Released on 2026-02-01.")
    learning.say(turn, Outcome.FAIL)
    learning.candidates.begin_attempt("dates", learning.library.view.generation, [turn])
    fixed = ReplayResult(Probe(turn, ProbeKind.FAILING), Outcome.PASS, 900)
    certificate = Certificate(SkillState.SHADOW, 1, 1, 0, 0, 0, 0, 900, model, replays=(fixed,))
    proposal = Proposal(
        replace(skill, state=SkillState.DRAFT), Change.NEW, (), (turn,), "dates", "world/evolver"
    )
    proposal = replace(proposal, **fields)  # type: ignore[arg-type]
    learning.candidates.save_candidate(
        Candidate(
            CandidateId(f"c_{skill.name}"),
            proposal,
            Standing.ACCEPTED,
            "proven",
            0,
            NOON,
            certificate,
        )
    )
    learning.library.publish([skill], (), f"learned {skill.name}")
    return learning.skill(skill.name)


async def test_a_canary_that_helps_is_promoted_and_its_certificate_says_by_what(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(gate=GateMode.FULL)
    await taught(learning, learned_skill(NAME, state=SkillState.CANARY))
    await tasks(learning, NAME, placed=True, passed=True, times=12)
    await tasks(learning, NAME, placed=False, passed=False, times=12)
    await learning.tend()
    assert learning.skill(NAME).state is SkillState.LIVE
    certificate = learning.only_candidate().certificate
    assert certificate is not None
    assert (certificate.stage, certificate.losses, certificate.model) == (
        SkillState.CANARY,
        0,
        "m-1",
    )
    assert any(
        "before that: fixed the failure in 1 of 1 replays" in note for note in certificate.notes
    )
    assert certificate.replays != ()


async def test_a_canary_that_harms_is_demoted_and_it_is_written_down_why(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(gate=GateMode.FULL)
    await taught(learning, learned_skill(NAME, state=SkillState.CANARY))
    await tasks(learning, NAME, placed=True, passed=False, times=12)
    await tasks(learning, NAME, placed=False, passed=True, times=12)
    await learning.tend()
    assert learning.names == []
    assert "it does harm: with it 0 of" in learning.only_candidate().reason
    assert learning.only_candidate().standing is Standing.ACCEPTED


async def test_a_canary_of_which_little_is_known_waits(new_learning: NewLearning) -> None:
    learning = await new_learning(gate=GateMode.FULL)
    learning.put_in_force(NAME, state=SkillState.CANARY)
    await tasks(learning, NAME, placed=True, passed=True, times=2)
    await learning.tend()
    assert learning.skill(NAME).state is SkillState.CANARY


async def test_what_was_drawn_for_another_text_of_this_name_does_not_count(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(gate=GateMode.FULL)
    learning.put_in_force(NAME, state=SkillState.CANARY)
    await tasks(learning, NAME, placed=True, passed=True, times=12)
    await tasks(learning, NAME, placed=False, passed=False, times=12)
    learning.put_in_force(
        NAME, state=SkillState.CANARY, body="1. Something else.\n2. Entirely.\n\nDo not do it."
    )
    await learning.tend()
    assert learning.skill(NAME).state is SkillState.CANARY


async def test_a_live_skill_that_harms_is_retired(new_learning: NewLearning) -> None:
    learning = await new_learning(gate=GateMode.FULL)
    learning.put_in_force(NAME)
    await tasks(learning, NAME, placed=True, passed=False, times=20, propensity=0.9)
    await tasks(learning, NAME, placed=False, passed=True, times=4, propensity=0.9)
    await learning.tend()
    assert learning.names == []


@pytest.mark.parametrize("fields", [{"author": Authorship.PERSON}, {"pinned": True}])
async def test_what_a_person_wrote_or_pinned_is_never_touched(
    new_learning: NewLearning, fields: dict[str, object]
) -> None:
    learning = await new_learning(gate=GateMode.FULL)
    learning.library.publish([learned_skill(NAME, **fields)], (), "by hand", by_person=True)
    await tasks(learning, NAME, placed=True, passed=False, times=20, propensity=0.9)
    await tasks(learning, NAME, placed=False, passed=True, times=4, propensity=0.9)
    generation = learning.library.view.generation
    learning.clock.pass_by(days=400)
    for _ in range(2):
        await learning.tend()
        learning.clock.pass_by(days=1)
    assert (learning.names, learning.library.view.generation) == ([NAME], generation)


async def rule_said(learning: ScriptedLearning, before: Outcome, after: Outcome) -> None:
    """Thirty turns before a rule, and thirty with it."""
    for _ in range(30):
        learning.say(await Talk(learning).say(TASK.format(1)), before)
    learning.put_in_force(NAME, author=Authorship.INSTRUCTION)
    for _ in range(30):
        learning.say(await Talk(learning).say(TASK.format(1), skills=(NAME,)), after)


async def test_a_rule_that_seems_to_do_harm_stays_and_its_person_is_told_once(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(gate=GateMode.FULL)
    await rule_said(learning, Outcome.PASS, Outcome.FAIL)
    for _ in range(2):
        await learning.tend()
        learning.clock.pass_by(days=1)
    (notice,) = [data for kind, data in learning.told if kind == "notice"]
    assert "0 of 30 turns now, 30 of 30 turns before" in str(notice["text"])
    assert learning.skill(NAME).state is SkillState.LIVE


async def test_of_a_rule_that_does_no_harm_nothing_is_told(new_learning: NewLearning) -> None:
    learning = await new_learning(gate=GateMode.FULL)
    await rule_said(learning, Outcome.PASS, Outcome.PASS)
    await learning.tend()
    assert [kind for kind, _ in learning.told if kind == "notice"] == []


async def test_the_turns_of_one_task_are_one_trial_and_it_failed_if_any_of_them_did() -> None:
    def turn(session: str, segment: int, outcome: Outcome | None) -> DrawnTurn:
        return DrawnTurn(TurnId("t"), SessionId(session), segment, True, 0.5, outcome)

    newest_first = [
        turn("s", 1, Outcome.PASS),
        turn("s", 0, None),
        turn("s", 0, Outcome.FAIL),
        turn("s", 0, Outcome.PASS),
    ]
    assert [trial.outcome for trial in tasks_of(newest_first)] == [Outcome.FAIL, Outcome.PASS]
    assert [trial.outcome for trial in tasks_of([turn("s", 0, None)])] == [Outcome.UNKNOWN]


async def idle(
    learning: ScriptedLearning, days: float = 91, scope: Scope | None = None, work: int = 500
) -> None:
    """Time goes by in which people work at other things."""
    await learning.tend()
    learning.clock.pass_by(days=days)
    talk = Talk(learning, scope or Scope("ada"))
    for number in range(work):
        await talk.say(f"Sort list {number}.", "Sorted.")
        talk.agent.messages.clear()
    await learning.tend()
    learning.clock.pass_by(days=1)
    await learning.tend()


async def test_a_skill_that_nothing_asked_for_in_a_long_and_busy_time_is_retired(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    learning.put_in_force(NAME)
    await idle(learning)
    assert learning.names == []
    event = next(
        event
        for event in learning.reader.events()
        if event.kind == "generation" and event.data["gone"]
    )
    assert "no task has matched it for" in str(event.data["reason"])


async def test_a_skill_that_matched_meanwhile_stays_also_where_chance_withheld_it(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    learning.put_in_force("placed-lately")
    learning.put_in_force("withheld-lately")
    await learning.tend()
    learning.clock.pass_by(days=91)
    talk = Talk(learning)
    await talk.say(
        TASK.format(1), skills=("placed-lately",), draws=drawn("withheld-lately", placed=False)
    )
    await idle(learning, days=0)
    assert learning.names == ["placed-lately", "withheld-lately"]
    assert {
        name: use.times
        for name, use in learning.uses.uses_of([SkillName(one) for one in learning.names]).items()
    } == {
        "placed-lately": 1,
        "withheld-lately": 1,
    }


async def test_a_quiet_time_makes_nothing_stale(new_learning: NewLearning) -> None:
    learning = await new_learning()
    learning.put_in_force(NAME)
    await idle(learning, work=20)
    assert learning.names == [NAME]


async def test_work_of_others_makes_nobodys_skill_stale(new_learning: NewLearning) -> None:
    learning = await new_learning()
    learning.put_in_force(NAME, scope="user:ada")
    await idle(learning, scope=Scope("bob"))
    assert learning.names == [NAME]


async def test_an_instruction_does_not_go_stale(new_learning: NewLearning) -> None:
    learning = await new_learning()
    learning.put_in_force(NAME, author=Authorship.INSTRUCTION)
    await idle(learning)
    assert learning.names == [NAME]


async def test_a_name_that_comes_back_begins_to_age_anew(new_learning: NewLearning) -> None:
    learning = await new_learning()
    learning.put_in_force(NAME)
    await learning.tend()
    learning.library.retire(SkillName(NAME))
    await idle(learning)
    learning.put_in_force(NAME)
    learning.clock.pass_by(days=1)
    await learning.tend()
    assert learning.names == [NAME]


def test_whose_a_scope_is() -> None:
    teams = {"web": ("ada", "bob")}
    assert members_of_scope(None, teams) == ScopeMembers()
    assert members_of_scope("owner", teams) == ScopeMembers(without_user=True)
    assert members_of_scope("user:ada", teams) == ScopeMembers(users=("ada",))
    assert members_of_scope("workspace:lab", teams) == ScopeMembers(workspaces=("lab",))
    assert members_of_scope("team:web", teams) == ScopeMembers(users=("ada", "bob"))
    assert members_of_scope("team:gone", teams) == ScopeMembers(users=())
    assert members_of_scope("ada", teams) == ScopeMembers(users=("ada",), workspaces=("ada",))


async def test_uses_are_counted_once_whoever_counts_and_however_often(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    learning.put_in_force(NAME)
    talk = Talk(learning)
    await talk.say(TASK.format(1), skills=(NAME,))
    await talk.say("A title, please.", skills=(NAME,), kind=TurnKind.SIDE)
    await learning.tend()
    learning.uses.note(learning.reader.turns_after(0))
    learning.restart()
    await learning.tend()
    assert learning.uses.uses_of([SkillName(NAME)])[SkillName(NAME)].times == 1


async def test_only_what_changed_is_listed_anew(new_learning: NewLearning) -> None:
    learning = await new_learning()
    learning.put_in_force(NAME)
    await learning.tend()
    before = learning.maintenance._list()
    await learning.tend()
    assert learning.maintenance._list() is before


async def test_each_of_many_canaries_is_looked_at_in_turn(new_learning: NewLearning) -> None:
    learning = await new_learning(gate=GateMode.FULL)
    skills = [
        learned_skill(f"canary-{number:03}", state=SkillState.CANARY) for number in range(150)
    ]
    learning.library.publish(skills, (), "many")
    last = "canary-149"
    await tasks(learning, last, placed=True, passed=True, times=12)
    await tasks(learning, last, placed=False, passed=False, times=12)
    await learning.tend()
    assert learning.skill(last).state is SkillState.CANARY
    await learning.tend()
    assert learning.skill(last).state is SkillState.LIVE


async def test_a_chore_is_done_once_a_day_over_restarts_too(new_learning: NewLearning) -> None:
    learning = await new_learning(gate=GateMode.FULL)
    done: list[str] = []

    class Sweeping:
        name = "sweeping"

        async def do(self, learned: object, aside: object) -> None:
            done.append("swept")

    far_ahead = 400 * 24
    for hours in (0, 1, 22, 1.5, 24, far_ahead, 1 - far_ahead, 1):
        learning.clock.pass_by(hours=hours)
        learning.restart()
        learning.maintenance.chores = (Sweeping(),)
        await learning.tend()
    assert len(done) == 5  # also once the clock is right again


async def test_where_another_model_serves_a_skill_is_tried_again(new_learning: NewLearning) -> None:
    learning = await new_learning(gate=GateMode.FULL)
    await taught(learning, learned_skill(NAME), model="m-1")
    await tasks(learning, NAME, placed=True, passed=True, times=20, propensity=0.95, model="m-2")
    await learning.tend()
    assert learning.skill(NAME).state is SkillState.CANARY
    # What was drawn before does not count for the new trial, and with each trial more is asked for.
    await learning.tend()
    assert learning.skill(NAME).state is SkillState.CANARY
    assert (
        learning.generations.in_force(SkillName(NAME)) or pytest.fail("it is not in force")
    ).canaries == 1


async def test_where_the_same_model_serves_it_stays(new_learning: NewLearning) -> None:
    learning = await new_learning(gate=GateMode.FULL)
    await taught(learning, learned_skill(NAME), model="m-1")
    await tasks(learning, NAME, placed=True, passed=True, times=20, propensity=0.95, model="m-1")
    await learning.tend()
    assert learning.skill(NAME).state is SkillState.LIVE


async def test_without_a_canary_nothing_is_tried_again(new_learning: NewLearning) -> None:
    learning = await new_learning(gate=GateMode.SHADOW)
    await taught(learning, learned_skill(NAME), model="m-1")
    await tasks(learning, NAME, placed=True, passed=True, times=20, propensity=0.95, model="m-2")
    await learning.tend()
    assert learning.skill(NAME).state is SkillState.LIVE


def test_the_model_of_most_must_be_clear() -> None:
    def turns(*models: str) -> list[DrawnTurn]:
        return [
            DrawnTurn(TurnId("t"), SessionId("s"), 0, True, 0.5, None, 0, model) for model in models
        ]

    assert model_of_most(turns(*["a"] * 19)) is None
    assert model_of_most(turns(*["a"] * 20)) == "a"
    assert model_of_most(turns(*["a"] * 10, *["b"] * 10)) is None
    assert model_of_most(turns(*["a"] * 14, *["b"] * 6)) == "a"


# Two skills that say nearly the same, and what a model makes of them.
STEPS = (
    "1. Find every release date in the entry.\n2. Write each as YYYY-MM-DD.\n3. Check the finished"
    " entry for other formats."
)
ANTI = "Do not write release dates as day/month/year or with month names."
TWINS = (f"{STEPS}\n\n{ANTI}", f"{STEPS}\n4. Check the release date once more.\n\n{ANTI}")
MERGED: dict[str, Json] = {
    "name": "changelog-release-dates",
    "trigger": DATES["trigger"],
    "body": f"{STEPS}\n4. Check the release date once more.\n\nAnti-pattern: {ANTI}",
    "category": "writing",
}


async def twins(learning: ScriptedLearning) -> None:
    for number, body in enumerate(TWINS):
        await taught(
            learning, learned_skill(f"dates-{number}", trigger=DATES["trigger"], body=body)
        )
    learning.worker = Speaker(
        "primary/m-1",
        lambda prompt: "On 2026-02-01." if "YYYY-MM-DD" in prompt else "On 01/02/2026.",
    )
    learning.judge = Speaker(
        "world/judge", lambda prompt: PASSED if "2026-02-01" in prompt else FAILED
    )
    learning.evolver = Speaker("world/evolver", lambda prompt: {"skills": [MERGED]})


@pytest.mark.parametrize("gate", [GateMode.LINT, GateMode.SHADOW])
async def test_near_duplicates_become_one_where_every_probe_of_both_holds(
    new_learning: NewLearning, gate: GateMode
) -> None:
    learning = await new_learning(gate=gate)
    await twins(learning)
    await learning.tend()
    newest = learning.candidates.candidates()[0]
    assert newest.standing is Standing.ACCEPTED, newest.reason
    assert learning.names == ["changelog-release-dates"]
    assert newest.proposal.change is Change.MERGE
    assert set(newest.proposal.replaces) == {"dates-0", "dates-1"}
    assert all(learning.role(turn) == "support" for turn in newest.proposal.support)
    assert len(newest.proposal.support) == 2


@pytest.mark.parametrize("gate", [GateMode.LINT, GateMode.SHADOW])
async def test_a_merge_that_loses_what_its_parents_do_is_not_made(
    new_learning: NewLearning, gate: GateMode
) -> None:
    learning = await new_learning(gate=gate)
    await twins(learning)
    assert learning.worker is not None
    # With its parents in the prompt it does well, with the merged text it does not.
    learning.worker.rule = lambda prompt: (
        "On 01/02/2026." if "Anti-pattern: Do not" in prompt else "On 2026-02-01."
    )
    await learning.tend()
    assert learning.names == ["dates-0", "dates-1"]


async def test_a_merge_is_tried_once_a_day(new_learning: NewLearning) -> None:
    learning = await new_learning()
    await twins(learning)
    assert learning.evolver is not None
    learning.evolver.rule = lambda prompt: UpstreamError("nobody is there")
    for hours in (0, 1, 22, 2):
        learning.clock.pass_by(hours=hours)
        learning.restart()
        await learning.tend()
    assert len(learning.evolver.asked) == 2
    assert learning.names == ["dates-0", "dates-1"]


async def test_without_a_writer_nothing_is_merged(new_learning: NewLearning) -> None:
    learning = await new_learning()
    await twins(learning)
    learning.evolver = None
    await learning.tend()
    assert learning.names == ["dates-0", "dates-1"]


async def test_a_parent_that_a_person_changes_while_the_merge_is_written_is_not_replaced(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    await twins(learning)
    assert learning.evolver is not None
    path = learning.library.folder / "dates-0" / "SKILL.md"

    def edited(prompt: str) -> object:
        path.write_text(path.read_text() + "\nMine.\n")
        return {"skills": [MERGED]}

    learning.evolver.rule = edited
    await learning.tend()
    assert learning.names == ["dates-0", "dates-1"]
    assert path.read_text().endswith("Mine.\n")


async def test_a_parent_that_was_edited_while_the_merge_was_written_is_not_replaced(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning()
    await twins(learning)
    assert learning.evolver is not None

    def edited(prompt: str) -> object:
        newer = learned_skill(
            "dates-0", trigger=DATES["trigger"], body=f"{TWINS[0]}\n- Use a four-digit year."
        )
        learning.library.publish([newer], (), "somebody was faster")
        return {"skills": [MERGED]}

    learning.evolver.rule = edited
    await learning.tend()
    assert learning.names == ["dates-0", "dates-1"]
    assert "four-digit" in learning.skill("dates-0").body


async def test_a_promotion_does_not_make_anybody_forget_what_a_skill_was_worth(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(gate=GateMode.FULL)
    await taught(learning, learned_skill(NAME, state=SkillState.CANARY))
    await tasks(learning, NAME, placed=True, passed=True, times=12)
    await tasks(learning, NAME, placed=False, passed=False, times=12)
    await learning.tend()
    skill = learning.skill(NAME)
    assert skill.state is SkillState.LIVE
    assert learning.uplift.uplift(skill).placed + learning.uplift.uplift(skill).withheld == 24
    learning.put_in_force(NAME, body="1. Something else.\n2. Entirely.\n\nDo not do it.")
    assert learning.uplift.uplift(learning.skill(NAME)).placed == 0


async def test_what_people_wrote_or_said_is_not_merged(new_learning: NewLearning) -> None:
    learning = await new_learning()
    await twins(learning)
    for number, body in enumerate(TWINS):
        skill = learned_skill(
            f"dates-{number}", trigger=DATES["trigger"], body=body, author=Authorship.INSTRUCTION
        )
        learning.library.publish([skill], (), "said", by_person=True)
    await learning.tend()
    assert learning.evolver is not None
    assert learning.evolver.asked == []


async def shared_by(learning: ScriptedLearning, users: tuple[str, ...]) -> None:
    """These users have each learned the same lesson by themselves."""
    for user in users:
        skill = learned_skill(
            f"iso-release-dates-{user}",
            scope=f"user:{user}",
            trigger=DATES["trigger"],
            body=DATES["body"],
        )
        await taught(learning, skill)


async def test_a_lesson_of_three_users_is_proposed_for_everyone(new_learning: NewLearning) -> None:
    learning = await new_learning()
    await shared_by(learning, ("ada", "bob", "cay"))
    await learning.tend()
    shared = [skill for skill in learning.library.view.skills if skill.scope is None]
    assert [(skill.name, skill.body, skill.author) for skill in shared] == [
        (NAME, DATES["body"], Authorship.EVOLVER)
    ]
    newest = learning.candidates.candidates()[0]
    assert len(newest.proposal.support) == 3
    assert all(learning.role(turn) == "support" for turn in newest.proposal.support)


async def test_a_lesson_is_proposed_once(new_learning: NewLearning) -> None:
    learning = await new_learning()
    await shared_by(learning, ("ada", "bob", "cay"))
    for _ in range(3):
        await learning.tend()
        learning.clock.pass_by(days=1)
        learning.restart()
    assert len(learning.candidates.candidates()) == 4


async def test_a_lesson_of_two_users_stays_theirs(new_learning: NewLearning) -> None:
    learning = await new_learning()
    await shared_by(learning, ("ada", "bob"))
    await learning.tend()
    assert all(skill.scope is not None for skill in learning.library.view.skills)


async def test_a_lesson_for_everyone_is_not_made_a_teams_as_well(new_learning: NewLearning) -> None:
    learning = await new_learning(teams={"web": ("ada", "bob", "cay")})
    await shared_by(learning, ("ada", "bob", "cay"))
    await learning.tend()
    assert [
        skill.scope
        for skill in learning.library.view.skills
        if not str(skill.scope).startswith("user:")
    ] == [None]


async def test_where_somebody_outside_says_the_contrary_the_team_still_has_its_lesson(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(teams={"web": ("ada", "bob", "cay")})
    await shared_by(learning, ("ada", "bob", "cay"))
    other = learned_skill(
        "dates-of-dan",
        scope="user:dan",
        trigger=DATES["trigger"],
        body=(
            "1. Write each release date as DD.MM.YYYY.\n2. Keep it.\n\nNever write each as"
            " YYYY-MM-DD."
        ),
    )
    await taught(learning, other)
    await learning.tend()
    scopes = [
        skill.scope
        for skill in learning.library.view.skills
        if not str(skill.scope).startswith("user:")
    ]
    assert scopes == ["team:web"]
