"""Failures of one kind become skills: once, from the generation in force, also over restarts."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import anyio
import pytest

from metaclaw.domain.candidate import Standing
from metaclaw.domain.chat import Json
from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.skill import Authorship, Skill, SkillState
from metaclaw.domain.turn import Scope
from metaclaw.domain.verdict import Fault, Outcome, Source
from metaclaw.errors import StoreError, UpstreamError
from metaclaw.skills import MOST_SHOWN, GateMode
from metaclaw.store import SqlForgetting
from tests.learn.house import ADA, CORRECTION, DATES, FAILED, TASK, THANKS, House, Speaker, Talk, learned_skill

pytestmark = pytest.mark.anyio
NewHouse = Callable[..., Awaitable[House]]
RULE = "From now on, always write changelog release dates as YYYY-MM-DD."
NOTHING: dict[str, Json] = {"skills": []}


def evolver(*skills: dict[str, Json]) -> Speaker:
    return Speaker("world/evolver", lambda prompt: {"skills": list(skills)})


def down(prompt: str) -> UpstreamError:
    return UpstreamError("nobody is there", status=503)


async def corrected(house: House, scope: Scope = ADA, number: int = 1) -> tuple[TurnId, TurnId]:
    """A failure and the person's word on it."""
    talk = Talk(house, scope)
    failed = await talk.say(TASK.format(number))
    return failed, await talk.say(CORRECTION, "Released on 2026-02-01.")


async def silently_failed(house: House, task: object, scope: Scope = ADA) -> TurnId:
    """A failure of which nobody said in words what was wrong."""
    talk = Talk(house, scope)
    turn = await talk.say(TASK.format(task))
    house.say(turn, Outcome.FAIL)
    return turn


async def test_a_corrected_failure_becomes_a_skill_and_its_turn_is_support(new_house: NewHouse) -> None:
    house = await new_house(evolver=evolver(DATES))
    failed, _ = await corrected(house)
    await house.live()
    assert house.names == ["iso-release-dates"]
    skill = house.skill("iso-release-dates")
    assert (skill.author, skill.scope) == (Authorship.EVOLVER, "user:ada")
    assert house.role(failed) == "support"
    assert house.only_candidate().proposal.support == (failed,)
    assert house.evolver is not None
    assert TASK.format(1) in house.evolver.asked[0]


async def test_failures_are_taken_up_when_there_are_enough_of_their_kind(new_house: NewHouse) -> None:
    house = await new_house(evolver=evolver(DATES), min_failures=3)
    turns = [await silently_failed(house, number) for number in range(2)]
    await house.learn()
    assert (house.names, [house.role(turn) for turn in turns]) == ([], [None, None])
    assert "-" not in str(house.fast.counted[0]["words"])
    turns.append(await silently_failed(house, 3))
    await house.learn()
    assert house.names == ["iso-release-dates"]
    assert [house.role(turn) for turn in turns] == ["support"] * 3


async def test_one_failure_is_enough_where_the_persons_feedback_says_what_was_wrong(new_house: NewHouse) -> None:
    house = await new_house(evolver=evolver(DATES), min_failures=1000)
    await house.owner.feedback(await Talk(house).say(TASK.format(1)), Outcome.FAIL, CORRECTION)
    await house.live()
    assert house.names == ["iso-release-dates"]


def publish_something(house: House) -> None:
    house.clock.pass_by(seconds=1)
    house.write_by_hand(Skill(SkillName("other"), "When asked for other things", "Do them."))
    house.clock.pass_by(seconds=1)


async def test_failures_from_before_a_skill_that_applies_to_their_speaker_are_left_alone(new_house: NewHouse) -> None:
    house = await new_house(evolver=evolver(DATES))
    old = await silently_failed(house, 1)
    publish_something(house)
    await house.learn()
    assert (house.names, house.role(old), house.fast.counted) == (["other"], None, [])
    assert house.evolver is not None
    assert house.evolver.asked == []


async def say_rule(house: House, rule: str, scope: Scope) -> None:
    """A person lays down a rule, which is in force at once."""
    before = house.library.view.generation
    house.clock.pass_by(seconds=1)
    await Talk(house, scope).say(rule, "Noted.")
    await house.listen()
    assert house.library.view.generation > before
    house.clock.pass_by(seconds=1)


def counts(house: House) -> list[object]:
    return [one["failures"] for one in house.fast.counted]


async def test_rules_that_anybody_says_in_between_do_not_reset_the_count(new_house: NewHouse) -> None:
    speaker = evolver(DATES)
    house = await new_house(evolver=speaker, min_failures=3)
    turns = [await silently_failed(house, 1)]
    await say_rule(house, "From now on, always answer in German.", ADA)
    turns.append(await silently_failed(house, 2))
    await say_rule(house, "From now on, always use metric units.", Scope("bob"))
    await house.learn()
    assert (counts(house), speaker.asked) == ([2], [])
    turns.append(await silently_failed(house, 3))
    generations = {found.stamp.generation for turn in turns if (found := house.recorded.step(turn))}
    assert len(generations) == 3
    await house.learn()
    await house.learn()
    assert len(speaker.asked) == 1
    assert [house.role(turn) for turn in turns] == ["support"] * 3
    assert [one.proposal.support for one in house.candidates.of_skill(SkillName("iso-release-dates"))] == [tuple(turns)]
    assert counts(house) == []


async def test_a_skill_for_the_speaker_closes_their_older_failures_and_nobody_elses(new_house: NewHouse) -> None:
    speaker = evolver(DATES)
    house = await new_house(evolver=speaker, min_failures=3, teams={"web": ("ada",)})
    bob = Scope("bob")
    mine = [await silently_failed(house, number) for number in range(2)]
    theirs = [await silently_failed(house, number, bob) for number in range(2)]
    house.clock.pass_by(seconds=1)
    house.put_in_force("lint-reports", scope="team:web")
    house.clock.pass_by(seconds=1)
    mine.append(await silently_failed(house, 3))
    await house.learn()
    assert (counts(house), speaker.asked) == ([2, 1], [])
    theirs.append(await silently_failed(house, 3, bob))
    await house.learn()
    assert len(speaker.asked) == 1
    assert [house.role(turn) for turn in theirs] == ["support"] * 3
    assert [house.role(turn) for turn in mine] == [None] * 3
    house.restart()
    await house.learn()
    assert counts(house) == [1]


async def test_another_text_of_a_skill_closes_failures_and_another_state_or_example_does_not(
    new_house: NewHouse,
) -> None:
    house = await new_house(evolver=evolver(DATES), min_failures=3)
    canary = house.put_in_force("lint-reports", state=SkillState.CANARY)
    for number in range(2):
        await silently_failed(house, number)
    live = replace(canary, state=SkillState.LIVE)
    house.clock.pass_by(seconds=1)
    house.library.publish([live], (), "promoted")
    house.library.publish([replace(live, extra={"examples": ["Lint the report."]})], (), "one more example")
    await house.learn()
    assert counts(house) == [2]
    house.library.publish([replace(live, body="1. Lint every report twice.")], (), "changed")
    await house.learn()
    assert counts(house) == []


async def test_a_failure_teaches_for_thirty_days(new_house: NewHouse) -> None:
    house = await new_house(evolver=evolver(DATES), min_failures=3)
    await silently_failed(house, 1)
    house.clock.pass_by(days=2)
    await silently_failed(house, 2)
    house.clock.pass_by(days=27)
    await house.learn()
    assert counts(house) == [2]
    house.clock.pass_by(days=2)
    await house.learn()
    assert counts(house) == [1]


async def test_a_revert_closes_the_failures_before_it(new_house: NewHouse) -> None:
    house = await new_house(evolver=evolver(DATES), min_failures=3)
    await say_rule(house, "From now on, always answer in German.", ADA)
    await silently_failed(house, 1)
    house.library.revert(0)
    await silently_failed(house, 2)
    await house.learn()
    assert counts(house) == [1]


async def test_a_correction_is_not_lost_to_what_was_published_since_the_answer(new_house: NewHouse) -> None:
    house = await new_house(evolver=evolver(DATES))
    talk = Talk(house)
    failed = await talk.say(TASK.format(1))
    publish_something(house)
    await talk.say(CORRECTION)
    await house.live()
    assert (house.names, house.role(failed)) == (["iso-release-dates", "other"], "support")


@pytest.mark.parametrize(
    ("outcome", "fault"), [(Outcome.UNKNOWN, Fault.AGENT), (Outcome.PASS, Fault.AGENT), (Outcome.FAIL, Fault.ENVIRONMENT)]
)
async def test_what_is_no_failure_of_the_agents_own_teaches_nothing(new_house: NewHouse, outcome: Outcome, fault: Fault) -> None:
    house = await new_house(evolver=evolver(DATES))
    turn = await Talk(house).say(TASK.format(1))
    house.say(turn, outcome, fault=fault)
    await house.learn()
    assert (house.names, house.role(turn)) == ([], None)


async def test_a_session_full_of_praise_teaches_nothing(new_house: NewHouse) -> None:
    house = await new_house(evolver=evolver(DATES))
    talk = Talk(house)
    for number in range(4):
        await talk.say(TASK.format(number))
        await talk.say(THANKS)
    await talk.end()
    await house.live()
    assert house.candidates.candidates() == []


async def test_an_evolver_that_had_nothing_to_say_is_not_asked_again(new_house: NewHouse) -> None:
    speaker = evolver()
    house = await new_house(evolver=speaker)
    await corrected(house)
    await house.live()
    house.restart()
    await house.take_up_again()
    await house.live()
    assert len(speaker.asked) == 1


async def test_bells_that_ring_at_once_learn_once(new_house: NewHouse) -> None:
    speaker = evolver(DATES)
    house = await new_house(evolver=speaker)
    await corrected(house)
    await house.sense()
    await house.listen()
    async with anyio.create_task_group() as aside:
        for _ in range(5):
            aside.start_soon(house.fast.learn, aside)
    assert len(speaker.asked) == 1
    assert house.names == ["iso-release-dates"]


async def test_two_programs_on_one_ledger_learn_once(new_house: NewHouse) -> None:
    speaker = evolver(DATES)
    house = await new_house(evolver=speaker)
    await corrected(house)
    await house.sense()
    await house.listen()
    first = house.fast
    house.restart()
    async with anyio.create_task_group() as aside:
        aside.start_soon(first.learn, aside)
        aside.start_soon(house.fast.learn, aside)
    assert len(speaker.asked) == 1
    assert len(house.candidates.candidates()) == 1


async def test_an_evolver_that_comes_back_writes(new_house: NewHouse) -> None:
    speaker = Speaker("world/evolver", down)
    house = await new_house(evolver=speaker, pauses_s=(0.0, 0.0))
    answers: list[object] = [UpstreamError("not yet"), {"skills": [DATES]}]
    speaker.rule = lambda prompt: answers.pop(0)
    await corrected(house)
    await house.live()
    assert house.names == ["iso-release-dates"]


async def test_an_attempt_that_was_interrupted_is_taken_up_again(new_house: NewHouse) -> None:
    began, never = anyio.Event(), anyio.Event()

    class Hanging(Speaker):
        async def ask(self, request, purpose):  # type: ignore[no-untyped-def]
            began.set()
            await never.wait()

    house = await new_house(evolver=Hanging("world/evolver", lambda prompt: NOTHING))
    failed, _ = await corrected(house)
    await house.sense()
    await house.listen()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as aside:
            await house.fast.learn(aside)
            await began.wait()
            aside.cancel_scope.cancel()
    assert house.role(failed) == "support"
    speaker = house.evolver = evolver(DATES)
    house.restart()
    await house.live()
    assert speaker.asked == []
    await house.take_up_again()
    assert house.names == ["iso-release-dates"]
    await house.take_up_again()
    assert len(speaker.asked) == 1


async def test_an_attempt_whose_failures_were_none_after_all_is_let_go(new_house: NewHouse) -> None:
    speaker = evolver(DATES)
    house = await new_house(evolver=speaker)
    turn = await silently_failed(house, 1)
    house.candidates.begin_attempt("kind", 0, [turn])
    await house.owner.feedback(turn, Outcome.PASS, "")
    await house.take_up_again()
    assert (speaker.asked, house.candidates.interrupted()) == ([], [])


async def test_rejected_proposals_are_shown_to_the_next_attempt(new_house: NewHouse) -> None:
    vague = {**DATES, "name": "be-careful", "trigger": "Whenever needed", "body": "Be careful."}
    speaker = evolver(vague)
    house = await new_house(evolver=speaker)
    await corrected(house)
    await house.live()
    assert house.of_standing(Standing.REJECTED) == ["be-careful"]
    speaker.rule = lambda prompt: {"skills": [DATES]}
    await corrected(house, number=2)
    await house.live()
    assert house.names == ["iso-release-dates"]
    rejected = next(one for one in house.candidates.candidates(Standing.REJECTED))
    assert "be-careful" in speaker.asked[1]
    assert rejected.reason[:40] in speaker.asked[1]


async def test_what_was_retired_is_shown_to_the_next_attempt_with_the_reason(new_house: NewHouse) -> None:
    speaker = evolver(DATES)
    house = await new_house(evolver=speaker)
    await corrected(house)
    await house.live()
    await house.admission.retire(house.skill("iso-release-dates"), "it harms (e = 40)")
    await corrected(house, number=2)
    await house.live()
    assert "it harms (e = 40)" in speaker.asked[1]


async def test_another_persons_rejected_proposals_are_not_shown(new_house: NewHouse) -> None:
    vague = {**DATES, "name": "adas-own", "trigger": "When writing a changelog with its release date", "body": "Be careful."}
    speaker = evolver(vague)
    house = await new_house(evolver=speaker)
    await corrected(house, Scope("ada"))
    await house.live()
    await corrected(house, Scope("bob"))
    await house.live()
    assert len(speaker.asked) == 2
    assert "adas-own" not in speaker.asked[1]


async def test_an_edit_of_a_skill_that_has_changed_meanwhile_does_not_undo_the_change(new_house: NewHouse) -> None:
    edit = {**DATES, "replaces": "iso-release-dates", "body": f"{DATES['body']}\n- Never leave the date out of the changelog."}
    speaker = evolver(edit)
    house = await new_house(evolver=speaker)
    first = {"trigger": str(DATES["trigger"]), "body": str(DATES["body"])}
    house.put_in_force("iso-release-dates", **first)
    newer = learned_skill("iso-release-dates", trigger=first["trigger"], body=f"{first['body']}\n- Use a four-digit year.")

    def meanwhile(prompt: str) -> object:
        house.library.publish([newer], (), "somebody was faster")
        return {"skills": [edit]}

    speaker.rule = meanwhile
    await corrected(house)
    await house.live()
    assert house.skill("iso-release-dates").body == newer.body
    assert house.only_candidate().standing is Standing.REJECTED


async def test_an_edit_of_a_skill_that_was_withdrawn_does_not_bring_it_back(new_house: NewHouse) -> None:
    edit = {**DATES, "replaces": "iso-release-dates", "body": f"{DATES['body']}\n- Never leave the date out of the changelog."}
    speaker = evolver(edit)
    house = await new_house(evolver=speaker)
    house.put_in_force("iso-release-dates", trigger=str(DATES["trigger"]), body=str(DATES["body"]))

    def meanwhile(prompt: str) -> object:
        house.library.retire(learned_skill("iso-release-dates").name)
        return {"skills": [edit]}

    speaker.rule = meanwhile
    await corrected(house)
    await house.live()
    assert house.names == []
    assert "no longer in force" in house.only_candidate().reason


async def test_candidates_on_their_way_go_on_after_a_restart(new_house: NewHouse) -> None:
    house = await new_house(evolver=evolver(DATES), gate=GateMode.SHADOW, judge=Speaker("world/judge", lambda prompt: FAILED))
    await corrected(house)
    await house.sense()
    await house.listen()
    async with anyio.create_task_group() as aside:
        await house.fast.learn(aside)
        while not house.candidates.candidates():
            await anyio.lowlevel.checkpoint()
        aside.cancel_scope.cancel()
    assert house.only_candidate().standing is Standing.DRAFT
    house.gate = GateMode.LINT
    house.restart()
    await house.take_up_again()
    assert house.only_candidate().standing is Standing.ACCEPTED
    certificate = house.only_candidate().certificate
    assert certificate is not None
    assert certificate.model == "m-1"


async def test_a_session_that_is_forgotten_while_the_evolver_writes_teaches_nothing(new_house: NewHouse) -> None:
    speaker = evolver(DATES)
    house = await new_house(evolver=speaker)
    talk = Talk(house)
    await talk.say(TASK.format(1))
    await talk.say(CORRECTION)

    def forgotten(prompt: str) -> object:
        SqlForgetting(house.database).forget_session(talk.session)
        return {"skills": [DATES]}

    speaker.rule = forgotten
    await house.live()
    assert (house.names, house.candidates.candidates()) == ([], [])
    await corrected(house, number=2)
    speaker.rule = lambda prompt: {"skills": [DATES]}
    await house.live()
    assert house.names == ["iso-release-dates"]


async def test_a_loop_that_cannot_read_what_was_unfinished_says_so_and_goes_on(new_house: NewHouse) -> None:
    house = await new_house(evolver=evolver(DATES))

    def broken() -> None:
        raise StoreError("the disk is full")

    house.candidates.interrupted = broken  # type: ignore[method-assign,assignment]
    await house.take_up_again()
    del house.candidates.interrupted
    await corrected(house)
    await house.live()
    assert house.names == ["iso-release-dates"]


async def test_the_newest_failures_are_seen_however_many_wait_for_their_like(new_house: NewHouse) -> None:
    house = await new_house(evolver=evolver(DATES), min_failures=1000)
    for number in range(201):
        await silently_failed(house, number)
    await house.owner.feedback(await Talk(house).say(TASK.format(1)), Outcome.FAIL, CORRECTION)
    for _ in range(4):
        await house.sense()
    await house.learn()
    assert house.names == ["iso-release-dates"]


async def failed_with(house: House, task: object, *skills: str, source: Source = Source.JUDGE) -> TurnId:
    """A turn with these skills in its prompt that failed, though the person said nothing."""
    turn = await Talk(house).say(TASK.format(task), skills=skills)
    house.say(turn, Outcome.FAIL, source)
    return turn


async def test_failures_that_broke_a_check_in_their_prompt_are_left_to_the_weights(new_house: NewHouse) -> None:
    house = await new_house(evolver=evolver(DATES), min_failures=2, may_train=lambda turn: True)
    house.put_in_force("dates")
    turns = [await failed_with(house, number, "dates", source=Source.CHECK) for number in range(4)]
    await house.learn()
    assert [house.role(turn) for turn in turns] == [None] * 4
    assert house.evolver is not None
    assert house.evolver.asked == []
    assert house.fast.counted == []


async def test_where_no_weights_are_trained_an_evolver_is_shown_broken_checks(new_house: NewHouse) -> None:
    house = await new_house(evolver=evolver(), min_failures=2)
    house.put_in_force("dates")
    turns = [await failed_with(house, number, "dates", source=Source.CHECK) for number in range(4)]
    await house.learn()
    assert [house.role(turn) for turn in turns] == ["support"] * 4


async def test_failures_like_those_an_evolver_was_shown_are_left_to_the_weights_until_a_skill_comes(new_house: NewHouse) -> None:
    house = await new_house(evolver=evolver(), min_failures=2, may_train=lambda turn: True)
    house.put_in_force("dates")
    first = [await failed_with(house, number, "dates") for number in range(2)]
    await house.learn()
    later = [await failed_with(house, number, "dates") for number in range(2, 6)]
    await house.learn()
    assert [house.role(turn) for turn in (*first, *later)] == ["support"] * 2 + [None] * 4
    # Nothing of this kind was shown with another skill in the prompt.
    others = [await failed_with(house, number, "dates", "names") for number in range(6, 8)]
    await house.learn()
    assert [house.role(turn) for turn in (*later, *others)] == [None] * 4 + ["support"] * 2
    publish_something(house)
    newest = [await failed_with(house, number, "dates") for number in range(8, 10)]
    await house.learn()
    assert [house.role(turn) for turn in (*later, *newest)] == [None] * 4 + ["support"] * 2


@pytest.mark.parametrize("kind", ["skill", "rule"])
async def test_other_tasks_are_left_to_the_weights_only_where_the_same_skill_stands_in_the_prompt(
    new_house: NewHouse, kind: str
) -> None:
    house = await new_house(evolver=evolver(), min_failures=2, may_train=lambda turn: True)
    house.put_in_force("dates", extra={"kind": kind})
    for number in range(2):
        await failed_with(house, number, "dates")
    await house.learn()
    others = []
    for place in ("Paris", "Rome"):
        others.append(await Talk(house).say(f"Draw me a map of the underground of {place}.", skills=("dates",)))
        house.say(others[-1], Outcome.FAIL, Source.JUDGE)
    await house.learn()
    assert [house.role(turn) for turn in others] == ([None] * 2 if kind == "skill" else ["support"] * 2)


async def test_an_evolver_is_shown_no_more_failures_than_it_reads_in_full_where_the_rest_may_train(new_house: NewHouse) -> None:
    house = await new_house(evolver=evolver(), min_failures=2, may_train=lambda turn: True)
    turns = [await failed_with(house, number) for number in range(MOST_SHOWN + 4)]
    await house.learn()
    await house.learn()
    assert [house.role(turn) for turn in turns] == ["support"] * MOST_SHOWN + [None] * 4


async def test_what_the_person_speaks_against_is_always_shown(new_house: NewHouse) -> None:
    house = await new_house(evolver=evolver(), min_failures=2, may_train=lambda turn: True)
    for number in range(2):
        await failed_with(house, number, "dates")
    await house.learn()
    turn = await failed_with(house, 2, "dates")
    await house.owner.feedback(turn, Outcome.FAIL, CORRECTION)
    await house.learn()
    assert house.role(turn) == "support"


async def test_failures_that_an_evolver_could_not_be_asked_about_were_not_shown(new_house: NewHouse) -> None:
    house = await new_house(evolver=Speaker("world/evolver", down), min_failures=2, may_train=lambda turn: True)
    for number in range(2):
        await failed_with(house, number)
    await house.learn()
    house.evolver = evolver()
    later = [await failed_with(house, number) for number in range(2, 4)]
    await house.learn()
    assert [house.role(turn) for turn in later] == ["support"] * 2


async def test_an_attempt_that_goes_on_after_a_restart_counts_as_shown(new_house: NewHouse) -> None:
    house = await new_house(evolver=Speaker("world/evolver", down), min_failures=2, may_train=lambda turn: True)
    turns = [await failed_with(house, number) for number in range(2)]
    house.candidates.begin_attempt("judged", house.library.view.generation, turns)
    house.evolver = evolver()
    house.restart()
    await house.take_up_again()
    later = [await failed_with(house, number) for number in range(2, 4)]
    await house.learn()
    assert [house.role(turn) for turn in later] == [None] * 2


async def test_what_was_shown_of_a_forgotten_session_is_not_remembered(new_house: NewHouse) -> None:
    house = await new_house(evolver=evolver(), min_failures=2, may_train=lambda turn: True)
    talks = [Talk(house), Talk(house)]
    for number, talk in enumerate(talks):
        house.say(await talk.say(TASK.format(number)), Outcome.FAIL, Source.JUDGE)
    await house.learn()
    for talk in talks:
        house.fast.forget_session(talk.session)
    later = [await failed_with(house, number) for number in range(2, 4)]
    await house.learn()
    assert [house.role(turn) for turn in later] == ["support"] * 2
