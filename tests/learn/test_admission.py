"""A proposal becomes a skill only through the gate, and never overwrites what a person has written or decided meanwhile."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import anyio
import pytest

from metaclaw.domain.candidate import Candidate, Change, Proposal, Standing
from metaclaw.domain.chat import Json
from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.skill import Authorship, Skill, SkillState
from metaclaw.domain.turn import Scope
from metaclaw.domain.verdict import Outcome
from metaclaw.errors import SkillError, UpstreamError
from metaclaw.learn.admission import CandidateAdmission, Learned
from metaclaw.skills import Gate, GateMode, Objection
from metaclaw.store import SqlForgetting
from tests.learn.house import ADA, CORRECTION, DATES, FAILED, PASSED, TASK, THANKS, House, Speaker, Talk, learned_skill

pytestmark = pytest.mark.anyio
NewHouse = Callable[..., Awaitable[House]]
SECRET = "sk-proj-" + "Zk3vQ9xT7bLm2Rw8Yc5N" * 2
RULE = "From now on, always write changelog release dates as YYYY-MM-DD."


def dates(**fields: object) -> Skill:
    """The skill that would have helped, as a draft."""
    skill = learned_skill("iso-release-dates", trigger=DATES["trigger"], body=DATES["body"], state=SkillState.DRAFT)
    return replace(skill, **fields)  # type: ignore[arg-type]


async def teacher(house: House, scope: Scope = ADA) -> TurnId:
    """A turn that failed, in which the person said what was wrong; it is support."""
    talk = Talk(house, scope)
    turn = await talk.say(TASK.format(1))
    await talk.say(CORRECTION, "Released on 2026-02-01.")
    house.say(turn, Outcome.FAIL)
    house.candidates.begin_attempt("dates", house.library.view.generation, [turn])
    return turn


async def admit(house: House, skill: Skill, *support: TurnId, generation: int | None = None, **fields: object) -> Candidate:
    turns = support or (await teacher(house),)
    proposal = replace(Proposal(skill, Change.NEW, (), turns, "dates", "world/evolver"), **fields)  # type: ignore[arg-type]
    learned = Learned(lambda: house.probes.choose(proposal), "m-1", generation=generation)
    async with anyio.create_task_group() as proving:
        await house.admission.admit(proposal, learned, proving)
    return house.candidates.candidates()[0]


def policy(house: House) -> None:
    """A worker that follows the rule exactly where it is told to, and a judge that sees it."""
    house.worker = Speaker(
        "primary/m-1", lambda prompt: "Released on 2026-02-01." if "Write each as YYYY-MM-DD" in prompt else "On 01/02/2026."
    )
    house.judge = Speaker("world/judge", lambda prompt: PASSED if "2026-02-01" in prompt else FAILED)


@pytest.mark.parametrize("gate", [GateMode.OFF, GateMode.LINT])
async def test_where_nothing_is_replayed_a_sound_proposal_is_live_at_once(new_house: NewHouse, gate: GateMode) -> None:
    house = await new_house(gate=gate)
    candidate = await admit(house, dates())
    assert candidate.standing is Standing.ACCEPTED
    assert house.skill("iso-release-dates").state is SkillState.LIVE


async def test_a_vague_draft_is_turned_away_unless_the_gate_is_off(new_house: NewHouse) -> None:
    vague = dates(trigger="Whenever needed", body="Be careful with the release dates of the changelog.")
    house = await new_house(gate=GateMode.LINT)
    candidate = await admit(house, vague)
    assert (candidate.standing, house.names) == (Standing.REJECTED, [])
    assert "vague" in candidate.reason


async def test_with_the_gate_off_the_draft_is_not_read_for_style(new_house: NewHouse) -> None:
    house = await new_house(gate=GateMode.OFF)
    candidate = await admit(house, dates(body="Write release dates in the changelog as YYYY-MM-DD."))
    assert candidate.standing is Standing.ACCEPTED


@pytest.mark.parametrize(("gate", "state"), [(GateMode.SHADOW, SkillState.LIVE), (GateMode.FULL, SkillState.CANARY)])
async def test_what_mends_recorded_failures_comes_into_force(new_house: NewHouse, gate: GateMode, state: SkillState) -> None:
    house = await new_house(gate=gate)
    policy(house)
    candidate = await admit(house, dates())
    assert candidate.standing is Standing.ACCEPTED, candidate.reason
    assert house.skill("iso-release-dates").state is state
    certificate = candidate.certificate
    assert certificate is not None
    assert (certificate.losses, certificate.model) == (0, "m-1")
    assert certificate.wins == (3 if gate is GateMode.SHADOW else 1)
    assert candidate.reason.startswith(f"fixed the failure in {certificate.wins} of {certificate.wins} replays")


async def test_what_mends_nothing_does_not(new_house: NewHouse) -> None:
    house = await new_house(gate=GateMode.SHADOW)
    policy(house)
    assert house.worker is not None
    house.worker.rule = lambda prompt: "On 01/02/2026."
    candidate = await admit(house, dates())
    assert (candidate.standing, house.names) == (Standing.REJECTED, [])
    assert candidate.reason.startswith("fixed the failure in 0 of 3 replays")


async def test_what_cannot_be_replayed_is_left_to_the_live_trial(new_house: NewHouse) -> None:
    house = await new_house(gate=GateMode.FULL)
    candidate = await admit(house, dates())
    assert candidate.standing is Standing.ACCEPTED
    assert house.skill("iso-release-dates").state is SkillState.CANARY


async def test_replays_that_were_paid_for_are_kept_and_not_repeated_after_a_restart(new_house: NewHouse) -> None:
    house = await new_house(gate=GateMode.FULL)
    policy(house)
    assert house.worker is not None
    answers: list[object] = ["On 01/02/2026.", UpstreamError("down")]
    house.worker.rule = lambda prompt: answers.pop(0)
    candidate = await admit(house, dates())
    assert candidate.standing is Standing.SHADOW
    assert candidate.certificate is not None
    assert [one.outcome for one in candidate.certificate.replays] == [Outcome.FAIL]
    house.restart()
    policy(house)
    await house.take_up_again()
    decided = house.only_candidate()
    assert decided.standing is Standing.ACCEPTED, decided.reason
    assert decided.certificate is not None
    assert [one.outcome for one in decided.certificate.replays] == [Outcome.FAIL, Outcome.PASS, Outcome.PASS]
    assert len(house.worker.asked) == 2  # of the new worker


async def test_the_same_text_again_is_rejected_before_it_is_paid_for(new_house: NewHouse) -> None:
    house = await new_house(gate=GateMode.FULL)
    policy(house)
    await admit(house, dates())
    assert house.worker is not None
    paid = len(house.worker.asked)
    again = await admit(house, dates())
    assert (again.standing, again.reason) == (Standing.REJECTED, "iso-release-dates is in force already")
    assert len(house.worker.asked) == paid


async def test_a_candidate_older_than_a_revert_is_dropped_before_it_is_paid_for(new_house: NewHouse) -> None:
    house = await new_house(gate=GateMode.FULL)
    policy(house)
    support = await teacher(house)
    house.put_in_force("something")
    house.library.revert(0)
    candidate = await admit(house, dates(), support, generation=0)
    assert candidate.standing is Standing.REJECTED
    assert "reverted" in candidate.reason
    assert house.worker is not None
    assert house.worker.asked == []


async def passed_before(house: House) -> None:
    for number in range(3):
        talk = Talk(house)
        turn = await talk.say(TASK.format(number), "Released on 2026-02-01.")
        await talk.say(THANKS, "You are welcome.")
        house.say(turn, Outcome.PASS)


async def test_a_name_that_a_person_has_taken_is_theirs_and_the_learned_skill_gets_a_number(new_house: NewHouse) -> None:
    house = await new_house()
    support = await teacher(house)
    own = Skill(SkillName("iso-release-dates"), "When I say so", "My own words.")
    house.write_by_hand(own)
    candidate = await admit(house, dates(), support)
    assert candidate.standing is Standing.ACCEPTED
    assert candidate.proposal.skill.name == "iso-release-dates-2"
    assert house.skill("iso-release-dates").body == "My own words."


async def test_an_edit_of_what_a_person_has_changed_is_turned_away(new_house: NewHouse) -> None:
    house = await new_house()
    support = await teacher(house)
    house.put_in_force("iso-release-dates", trigger=DATES["trigger"], body=DATES["body"])
    path = house.library.folder / "iso-release-dates" / "SKILL.md"
    path.write_text(path.read_text() + "\nAnd a word of mine.\n")
    edited = dates(body=f"{DATES['body']}\n- Check the year twice.")
    candidate = await admit(house, edited, support, change=Change.EDIT, replaces=(edited.name,))
    assert candidate.standing is Standing.REJECTED
    assert "And a word of mine." in path.read_text()
    assert house.skill("iso-release-dates").author is Authorship.PERSON


async def test_an_edit_keeps_what_was_said_before_and_is_not_asked_who_said_it(new_house: NewHouse) -> None:
    house = await new_house()
    before = "1. Sort the contributors by their family name.\n2. Write each entry in the past tense.\n\nDo not thank anybody twice."
    house.put_in_force("changelog-entries", trigger=DATES["trigger"], body=before)
    support = await teacher(house)
    edited = learned_skill(
        "changelog-entries",
        trigger=DATES["trigger"],
        body=f"{before}\n\n- Write each release date as YYYY-MM-DD.",
        state=SkillState.DRAFT,
    )
    candidate = await admit(house, edited, support, change=Change.EDIT, replaces=(edited.name,))
    assert candidate.standing is Standing.ACCEPTED, candidate.reason


async def test_reach_waits_for_a_person_and_the_person_may_let_it_pass(new_house: NewHouse) -> None:
    house = await new_house()
    waiting = dates(body=f"{DATES['body']}\n- Release dates are listed on https://dates.example/releases.")
    candidate = await admit(house, waiting)
    assert candidate.standing is Standing.WAITING, candidate.reason
    assert house.names == []
    assert [kind for kind, data in house.told if data.get("candidate") == candidate.id] == ["notice"]
    approved = await house.owner.decide(candidate.id, approved=True)
    assert approved is not None
    assert (approved.standing, house.names) == (Standing.ACCEPTED, ["iso-release-dates"])
    with pytest.raises(SkillError, match="does not wait"):
        await house.owner.decide(candidate.id, approved=True)


async def test_a_person_may_turn_a_waiting_candidate_away(new_house: NewHouse) -> None:
    house = await new_house()
    waiting = dates(body=f"{DATES['body']}\n- Release dates are listed on https://dates.example/releases.")
    candidate = await admit(house, waiting)
    decided = await house.owner.decide(candidate.id, approved=False)
    assert decided is not None
    assert (decided.standing, house.names) == (Standing.REJECTED, [])


async def test_a_double_click_approves_once(new_house: NewHouse) -> None:
    house = await new_house()
    waiting = dates(body=f"{DATES['body']}\n- Release dates are listed on https://dates.example/releases.")
    candidate = await admit(house, waiting)
    await house.admission.decide(candidate, approved=True)
    await house.admission.decide(candidate, approved=True)
    assert house.names == ["iso-release-dates"]


def everything_kept(house: House) -> str:
    """All that is written down of candidates and events, in full."""
    with house.database.reading("looking") as connection:
        rows = [*connection.exec_driver_sql("SELECT * FROM candidates"), *connection.exec_driver_sql("SELECT * FROM events")]
    return "\n".join(str(tuple(row)) for row in rows) + str(house.told)


async def test_a_secret_is_in_nothing_that_is_kept_or_told(new_house: NewHouse) -> None:
    house = await new_house(gate=GateMode.OFF)
    leaking = dates(body=f"{DATES['body']}\n- Use the key {SECRET}.", extra={"check": f"pattern: {SECRET}"})
    candidate = await admit(house, leaking)
    assert candidate.standing is Standing.REJECTED
    assert candidate.id in everything_kept(house)
    assert SECRET not in everything_kept(house)
    assert house.names == []


@pytest.mark.parametrize("waits", [True, False])
async def test_whoever_objects_may_quote_a_secret_and_it_is_not_kept(new_house: NewHouse, waits: bool) -> None:
    house = await new_house(gate=GateMode.OFF)
    quoting = Gate(GateMode.OFF, None, [lambda proposal: [Objection(f"it says {SECRET}", waits=waits)]])
    house.admission = CandidateAdmission(
        gate=quoting, library=house.library, candidates=house.candidates, announce=house.announce, redact=house.redact
    )
    candidate = await admit(house, dates())
    assert candidate.reason.startswith("it says <API_KEY")
    assert SECRET not in everything_kept(house)


async def test_a_program_killed_between_publishing_and_writing_it_down_does_not_publish_twice(new_house: NewHouse) -> None:
    house = await new_house()
    candidate = await admit(house, dates())
    generation = house.library.view.generation
    house.candidates.save_candidate(replace(candidate, standing=Standing.DRAFT))
    house.restart()
    await house.take_up_again()
    assert house.only_candidate().standing is Standing.ACCEPTED
    assert (house.library.view.generation, house.names) == (generation, ["iso-release-dates"])


async def test_a_skill_whose_teacher_is_forgotten_while_it_is_published_does_not_stay(new_house: NewHouse) -> None:
    house = await new_house()
    talk = Talk(house)
    turn = await talk.say(TASK.format(1))
    await talk.say(CORRECTION, "Released on 2026-02-01.")
    publish = house.library.publish

    def forget_then_publish(*given: object, **named: object) -> object:
        forgetting = SqlForgetting(house.database)
        forgetting.forget_session(talk.session)
        assert forgetting.erase("a session was forgotten")
        return publish(*given, **named)  # type: ignore[arg-type]

    house.library.publish = forget_then_publish  # type: ignore[method-assign,assignment]
    proposal = Proposal(dates(), Change.NEW, (), (turn,), "dates", "world/evolver")
    async with anyio.create_task_group() as proving:
        await house.admission.admit(proposal, Learned(lambda: (), "m-1"), proving)
    assert (house.names, house.candidates.candidates()) == ([], [])


async def test_a_person_who_changes_a_skill_while_its_state_changes_keeps_it(new_house: NewHouse) -> None:
    house = await new_house()
    skill = house.put_in_force("iso-release-dates", state=SkillState.CANARY)
    path = house.library.folder / skill.name / "SKILL.md"
    path.write_text(path.read_text() + "\nMine now.\n")
    assert not await house.admission.change_state(skill, SkillState.LIVE, "promoted")
    assert not await house.admission.retire(skill, "not proven")
    assert house.skill("iso-release-dates").author is Authorship.PERSON


async def test_every_publication_is_an_event(new_house: NewHouse) -> None:
    house = await new_house()
    await admit(house, dates())
    events: list[dict[str, Json]] = [event.data for event in house.reader.events() if event.kind == "generation"]
    assert [event["put"] for event in events] == [["iso-release-dates"]]
