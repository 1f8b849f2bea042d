"""Failures of one kind become skills: once, from the generation in force, also over restarts."""

from collections.abc import Awaitable, Callable

import anyio
import pytest

from metaclaw.domain.candidate import Standing
from metaclaw.domain.chat import Json
from metaclaw.domain.ids import SkillName, TurnId
from metaclaw.domain.skill import Authorship, Skill
from metaclaw.domain.turn import Scope
from metaclaw.domain.verdict import Fault, Outcome, Signal, Source, Verdict
from metaclaw.errors import StoreError, UpstreamError
from metaclaw.skills import MOST_SHOWN
from metaclaw.store import SqlForgetting
from tests.learn.learning import (
    ADA,
    CORRECTION,
    DATES,
    TASK,
    THANKS,
    ScriptedLearning,
    Speaker,
    Talk,
    learned_skill,
)

pytestmark = pytest.mark.anyio
NewLearning = Callable[..., Awaitable[ScriptedLearning]]
RULE = "From now on, always write changelog release dates as YYYY-MM-DD."
NOTHING: dict[str, Json] = {"skills": []}


def evolver(*skills: dict[str, Json]) -> Speaker:
    return Speaker("world/evolver", lambda prompt: {"skills": list(skills)})


def down(prompt: str) -> UpstreamError:
    return UpstreamError("nobody is there", status=503)


async def corrected(
    learning: ScriptedLearning, scope: Scope = ADA, number: int = 1
) -> tuple[TurnId, TurnId]:
    """A failure and the person's word on it."""
    talk = Talk(learning, scope)
    failed = await talk.say(TASK.format(number))
    return failed, await talk.say(CORRECTION, "Released on 2026-02-01.")


async def silently_failed(learning: ScriptedLearning, task: object, scope: Scope = ADA) -> TurnId:
    """A failure of which nobody said in words what was wrong."""
    talk = Talk(learning, scope)
    turn = await talk.say(TASK.format(task))
    learning.say(turn, Outcome.FAIL)
    return turn


async def test_a_corrected_failure_becomes_a_skill_and_its_turn_is_support(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(evolver=evolver(DATES))
    failed, _ = await corrected(learning)
    await learning.live()
    assert learning.names == ["iso-release-dates"]
    skill = learning.skill("iso-release-dates")
    assert (skill.author, skill.scope) == (Authorship.EVOLVER, "user:ada")
    assert learning.role(failed) == "support"
    assert learning.only_candidate().proposal.support == (failed,)
    assert learning.evolver is not None
    assert TASK.format(1) in learning.evolver.asked[0]


async def test_failures_are_taken_up_when_there_are_enough_of_their_kind(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(evolver=evolver(DATES), min_failures=3)
    turns = [await silently_failed(learning, number) for number in range(2)]
    await learning.learn()
    assert (learning.names, [learning.role(turn) for turn in turns]) == ([], [None, None])
    assert "-" not in str(learning.fast.counted[0]["words"])
    turns.append(await silently_failed(learning, 3))
    await learning.learn()
    assert learning.names == ["iso-release-dates"]
    assert [learning.role(turn) for turn in turns] == ["support"] * 3


async def test_one_failure_is_enough_where_the_persons_feedback_says_what_was_wrong(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(evolver=evolver(DATES), min_failures=1000)
    await learning.owner.feedback(
        await Talk(learning).say(TASK.format(1)), Outcome.FAIL, CORRECTION
    )
    await learning.live()
    assert learning.names == ["iso-release-dates"]


def publish_something(learning: ScriptedLearning) -> None:
    learning.clock.pass_by(seconds=1)
    learning.write_by_hand(Skill(SkillName("other"), "When asked for other things", "Do them."))
    learning.clock.pass_by(seconds=1)


async def say_rule(learning: ScriptedLearning, rule: str, scope: Scope) -> None:
    """A person lays down a rule, which is in force at once."""
    before = learning.library.view.generation
    learning.clock.pass_by(seconds=1)
    await Talk(learning, scope).say(rule, "Noted.")
    await learning.listen()
    assert learning.library.view.generation > before
    learning.clock.pass_by(seconds=1)


def counts(learning: ScriptedLearning) -> list[object]:
    return [one["failures"] for one in learning.fast.counted]


async def test_rules_that_anybody_says_in_between_do_not_reset_the_count(
    new_learning: NewLearning,
) -> None:
    speaker = evolver(DATES)
    learning = await new_learning(evolver=speaker, min_failures=3)
    turns = [await silently_failed(learning, 1)]
    await say_rule(learning, "From now on, always answer in German.", ADA)
    turns.append(await silently_failed(learning, 2))
    await say_rule(learning, "From now on, always use metric units.", Scope("bob"))
    await learning.learn()
    assert (counts(learning), speaker.asked) == ([2], [])
    turns.append(await silently_failed(learning, 3))
    generations = {
        found.stamp.generation for turn in turns if (found := learning.recorded.step(turn))
    }
    assert len(generations) == 3
    await learning.learn()
    await learning.learn()
    assert len(speaker.asked) == 1
    assert [learning.role(turn) for turn in turns] == ["support"] * 3
    assert [
        one.proposal.support
        for one in learning.candidates.candidates(name=SkillName("iso-release-dates"))
    ] == [tuple(turns)]
    assert counts(learning) == []


async def test_a_failure_teaches_for_thirty_days(new_learning: NewLearning) -> None:
    learning = await new_learning(evolver=evolver(DATES), min_failures=3)
    await silently_failed(learning, 1)
    learning.clock.pass_by(days=2)
    await silently_failed(learning, 2)
    learning.clock.pass_by(days=27)
    await learning.learn()
    assert counts(learning) == [2]
    learning.clock.pass_by(days=2)
    await learning.learn()
    assert counts(learning) == [1]


async def test_a_revert_closes_the_failures_before_it(new_learning: NewLearning) -> None:
    learning = await new_learning(evolver=evolver(DATES), min_failures=3)
    await say_rule(learning, "From now on, always answer in German.", ADA)
    await silently_failed(learning, 1)
    learning.library.revert(0)
    await silently_failed(learning, 2)
    await learning.learn()
    assert counts(learning) == [1]


async def test_a_correction_is_not_lost_to_what_was_published_since_the_answer(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(evolver=evolver(DATES))
    talk = Talk(learning)
    failed = await talk.say(TASK.format(1))
    publish_something(learning)
    await talk.say(CORRECTION)
    await learning.live()
    assert (learning.names, learning.role(failed)) == (["iso-release-dates", "other"], "support")


@pytest.mark.parametrize(
    ("outcome", "fault"),
    [
        (Outcome.UNKNOWN, Fault.AGENT),
        (Outcome.PASS, Fault.AGENT),
        (Outcome.FAIL, Fault.ENVIRONMENT),
    ],
)
async def test_what_is_no_failure_of_the_agents_own_teaches_nothing(
    new_learning: NewLearning, outcome: Outcome, fault: Fault
) -> None:
    learning = await new_learning(evolver=evolver(DATES))
    turn = await Talk(learning).say(TASK.format(1))
    learning.say(turn, outcome, fault=fault)
    await learning.learn()
    assert (learning.names, learning.role(turn)) == ([], None)


async def test_a_session_full_of_praise_teaches_nothing(new_learning: NewLearning) -> None:
    learning = await new_learning(evolver=evolver(DATES))
    talk = Talk(learning)
    for number in range(4):
        await talk.say(TASK.format(number))
        await talk.say(THANKS)
    await talk.end()
    await learning.live()
    assert learning.candidates.candidates() == []


async def test_an_evolver_that_had_nothing_to_say_is_not_asked_again(
    new_learning: NewLearning,
) -> None:
    speaker = evolver()
    learning = await new_learning(evolver=speaker)
    await corrected(learning)
    await learning.live()
    learning.restart()
    await learning.take_up_again()
    await learning.live()
    assert len(speaker.asked) == 1


async def test_bells_that_ring_at_once_learn_once(new_learning: NewLearning) -> None:
    speaker = evolver(DATES)
    learning = await new_learning(evolver=speaker)
    await corrected(learning)
    await learning.sense()
    await learning.listen()
    async with anyio.create_task_group() as aside:
        for _ in range(5):
            aside.start_soon(learning.fast.learn, aside)
    assert len(speaker.asked) == 1
    assert learning.names == ["iso-release-dates"]


async def test_two_programs_on_one_ledger_learn_once(new_learning: NewLearning) -> None:
    speaker = evolver(DATES)
    learning = await new_learning(evolver=speaker)
    await corrected(learning)
    await learning.sense()
    await learning.listen()
    first = learning.fast
    learning.restart()
    async with anyio.create_task_group() as aside:
        aside.start_soon(first.learn, aside)
        aside.start_soon(learning.fast.learn, aside)
    assert len(speaker.asked) == 1
    assert len(learning.candidates.candidates()) == 1


async def test_an_evolver_that_comes_back_writes(new_learning: NewLearning) -> None:
    speaker = Speaker("world/evolver", down)
    learning = await new_learning(evolver=speaker, pauses_s=(0.0, 0.0))
    answers: list[object] = [UpstreamError("not yet"), {"skills": [DATES]}]
    speaker.rule = lambda prompt: answers.pop(0)
    await corrected(learning)
    await learning.live()
    assert learning.names == ["iso-release-dates"]


async def test_an_attempt_that_was_interrupted_is_taken_up_again(new_learning: NewLearning) -> None:
    began, never = anyio.Event(), anyio.Event()

    class Hanging(Speaker):
        async def ask(self, request, purpose):  # type: ignore[no-untyped-def]
            began.set()
            await never.wait()

    learning = await new_learning(evolver=Hanging("world/evolver", lambda prompt: NOTHING))
    failed, _ = await corrected(learning)
    await learning.sense()
    await learning.listen()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as aside:
            await learning.fast.learn(aside)
            await began.wait()
            aside.cancel_scope.cancel()
    assert learning.role(failed) == "support"
    speaker = learning.evolver = evolver(DATES)
    learning.restart()
    await learning.live()
    assert speaker.asked == []
    await learning.take_up_again()
    assert learning.names == ["iso-release-dates"]
    await learning.take_up_again()
    assert len(speaker.asked) == 1


async def test_an_attempt_whose_failures_were_none_after_all_is_let_go(
    new_learning: NewLearning,
) -> None:
    speaker = evolver(DATES)
    learning = await new_learning(evolver=speaker)
    turn = await silently_failed(learning, 1)
    learning.candidates.begin_attempt("kind", 0, [turn])
    await learning.owner.feedback(turn, Outcome.PASS, "")
    await learning.take_up_again()
    assert (speaker.asked, learning.candidates.interrupted()) == ([], [])


async def test_rejected_proposals_are_shown_to_the_next_attempt(new_learning: NewLearning) -> None:
    vague = {**DATES, "name": "be-careful", "trigger": "Whenever needed", "body": "Be careful."}
    speaker = evolver(vague)
    learning = await new_learning(evolver=speaker)
    await corrected(learning)
    await learning.live()
    assert learning.of_standing(Standing.REJECTED) == ["be-careful"]
    speaker.rule = lambda prompt: {"skills": [DATES]}
    await corrected(learning, number=2)
    await learning.live()
    assert learning.names == ["iso-release-dates"]
    rejected = next(one for one in learning.candidates.candidates(Standing.REJECTED))
    assert "be-careful" in speaker.asked[1]
    assert rejected.reason[:40] in speaker.asked[1]


async def test_what_was_retired_is_shown_to_the_next_attempt_with_the_reason(
    new_learning: NewLearning,
) -> None:
    speaker = evolver(DATES)
    learning = await new_learning(evolver=speaker)
    await corrected(learning)
    await learning.live()
    await learning.admission.retire(learning.skill("iso-release-dates"), "it harms (e = 40)")
    await corrected(learning, number=2)
    await learning.live()
    assert "it harms (e = 40)" in speaker.asked[1]


async def test_another_persons_rejected_proposals_are_not_shown(new_learning: NewLearning) -> None:
    vague = {
        **DATES,
        "name": "adas-own",
        "trigger": "When writing a changelog with its release date",
        "body": "Be careful.",
    }
    speaker = evolver(vague)
    learning = await new_learning(evolver=speaker)
    await corrected(learning, Scope("ada"))
    await learning.live()
    await corrected(learning, Scope("bob"))
    await learning.live()
    assert len(speaker.asked) == 2
    assert "adas-own" not in speaker.asked[1]


async def test_an_edit_of_a_skill_that_has_changed_meanwhile_does_not_undo_the_change(
    new_learning: NewLearning,
) -> None:
    edit = {
        **DATES,
        "replaces": "iso-release-dates",
        "body": f"{DATES['body']}\n- Never leave the date out of the changelog.",
    }
    speaker = evolver(edit)
    learning = await new_learning(evolver=speaker)
    first = {"trigger": str(DATES["trigger"]), "body": str(DATES["body"])}
    learning.put_in_force("iso-release-dates", **first)
    newer = learned_skill(
        "iso-release-dates",
        trigger=first["trigger"],
        body=f"{first['body']}\n- Use a four-digit year.",
    )

    def meanwhile(prompt: str) -> object:
        learning.library.publish([newer], (), "somebody was faster")
        return {"skills": [edit]}

    speaker.rule = meanwhile
    await corrected(learning)
    await learning.live()
    assert learning.skill("iso-release-dates").body == newer.body
    assert learning.only_candidate().standing is Standing.REJECTED


async def test_an_edit_of_a_skill_that_was_withdrawn_does_not_bring_it_back(
    new_learning: NewLearning,
) -> None:
    edit = {
        **DATES,
        "replaces": "iso-release-dates",
        "body": f"{DATES['body']}\n- Never leave the date out of the changelog.",
    }
    speaker = evolver(edit)
    learning = await new_learning(evolver=speaker)
    learning.put_in_force(
        "iso-release-dates", trigger=str(DATES["trigger"]), body=str(DATES["body"])
    )

    def meanwhile(prompt: str) -> object:
        learning.library.retire(learned_skill("iso-release-dates").name)
        return {"skills": [edit]}

    speaker.rule = meanwhile
    await corrected(learning)
    await learning.live()
    assert learning.names == []
    assert "no longer in force" in learning.only_candidate().reason


async def test_a_session_that_is_forgotten_while_the_evolver_writes_teaches_nothing(
    new_learning: NewLearning,
) -> None:
    speaker = evolver(DATES)
    learning = await new_learning(evolver=speaker)
    talk = Talk(learning)
    await talk.say(TASK.format(1))
    await talk.say(CORRECTION)

    def forgotten(prompt: str) -> object:
        SqlForgetting(learning.database).forget_session(talk.session)
        return {"skills": [DATES]}

    speaker.rule = forgotten
    await learning.live()
    assert (learning.names, learning.candidates.candidates()) == ([], [])
    await corrected(learning, number=2)
    speaker.rule = lambda prompt: {"skills": [DATES]}
    await learning.live()
    assert learning.names == ["iso-release-dates"]


async def test_a_loop_that_cannot_read_what_was_unfinished_says_so_and_goes_on(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(evolver=evolver(DATES))

    def broken() -> None:
        raise StoreError("the disk is full")

    learning.candidates.interrupted = broken  # type: ignore[method-assign,assignment]
    await learning.take_up_again()
    del learning.candidates.interrupted
    await corrected(learning)
    await learning.live()
    assert learning.names == ["iso-release-dates"]


async def test_the_newest_failures_are_seen_however_many_wait_for_their_like(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(evolver=evolver(DATES), min_failures=1000)
    for number in range(201):
        await silently_failed(learning, number)
    await learning.owner.feedback(
        await Talk(learning).say(TASK.format(1)), Outcome.FAIL, CORRECTION
    )
    for _ in range(4):
        await learning.sense()
    await learning.learn()
    assert learning.names == ["iso-release-dates"]


async def failed_with(
    learning: ScriptedLearning, task: object, *skills: str, source: Source = Source.JUDGE
) -> TurnId:
    """A turn with these skills in its prompt that failed, though the person said nothing."""
    turn = await Talk(learning).say(TASK.format(task), skills=skills)
    learning.say(turn, Outcome.FAIL, source)
    return turn


async def test_failures_that_broke_a_check_in_their_prompt_are_left_to_the_weights(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(
        evolver=evolver(DATES), min_failures=2, may_train=lambda turn: True
    )
    learning.put_in_force("dates")
    turns = [
        await failed_with(learning, number, "dates", source=Source.CHECK) for number in range(4)
    ]
    await learning.learn()
    assert [learning.role(turn) for turn in turns] == [None] * 4
    assert learning.evolver is not None
    assert learning.evolver.asked == []
    assert learning.fast.counted == []


async def test_where_no_weights_are_trained_an_evolver_is_shown_broken_checks(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(evolver=evolver(), min_failures=2)
    learning.put_in_force("dates")
    turns = [
        await failed_with(learning, number, "dates", source=Source.CHECK) for number in range(4)
    ]
    await learning.learn()
    assert [learning.role(turn) for turn in turns] == ["support"] * 4


async def test_an_evolver_is_shown_no_more_failures_than_it_reads_in_full_where_the_rest_may_train(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(evolver=evolver(), min_failures=2, may_train=lambda turn: True)
    turns = [await failed_with(learning, number) for number in range(MOST_SHOWN + 4)]
    await learning.learn()
    await learning.learn()
    assert [learning.role(turn) for turn in turns] == ["support"] * MOST_SHOWN + [None] * 4


async def test_what_the_person_speaks_against_is_always_shown(new_learning: NewLearning) -> None:
    learning = await new_learning(evolver=evolver(), min_failures=2, may_train=lambda turn: True)
    for number in range(2):
        await failed_with(learning, number, "dates")
    await learning.learn()
    turn = await failed_with(learning, 2, "dates")
    await learning.owner.feedback(turn, Outcome.FAIL, CORRECTION)
    await learning.learn()
    assert learning.role(turn) == "support"


async def test_failures_that_an_evolver_could_not_be_asked_about_were_not_shown(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(
        evolver=Speaker("world/evolver", down), min_failures=2, may_train=lambda turn: True
    )
    for number in range(2):
        await failed_with(learning, number)
    await learning.learn()
    learning.evolver = evolver()
    later = [await failed_with(learning, number) for number in range(2, 4)]
    await learning.learn()
    assert [learning.role(turn) for turn in later] == ["support"] * 2


async def test_an_attempt_that_goes_on_after_a_restart_counts_as_shown(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(
        evolver=Speaker("world/evolver", down), min_failures=2, may_train=lambda turn: True
    )
    turns = [await failed_with(learning, number) for number in range(2)]
    learning.candidates.begin_attempt("judged", learning.library.view.generation, turns)
    learning.evolver = evolver()
    learning.restart()
    await learning.take_up_again()
    later = [await failed_with(learning, number) for number in range(2, 4)]
    await learning.learn()
    assert [learning.role(turn) for turn in later] == [None] * 2


async def test_failures_like_those_an_evolver_was_shown_are_left_to_the_weights(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(evolver=evolver(), min_failures=2, may_train=lambda turn: True)
    first = [await failed_with(learning, number) for number in range(2)]
    await learning.learn()
    later = [await failed_with(learning, number) for number in range(2, 6)]
    await learning.learn()
    assert [learning.role(turn) for turn in (*first, *later)] == ["support"] * 2 + [None] * 4


async def test_new_skills_do_not_reset_the_count(new_learning: NewLearning) -> None:
    speaker = evolver(DATES)
    learning = await new_learning(evolver=speaker, min_failures=3)
    for number in range(2):
        await silently_failed(learning, number)
    learning.clock.pass_by(seconds=1)
    learning.put_in_force("lint-reports")
    await silently_failed(learning, 3)
    await learning.learn()
    assert len(speaker.asked) == 1


async def test_failures_of_another_project_are_counted_apart(new_learning: NewLearning) -> None:
    learning = await new_learning(evolver=evolver(DATES), min_failures=2)
    for number, project in enumerate(("shop", "lab")):
        await silently_failed(learning, number, Scope("ada", project))
    await learning.learn()
    assert counts(learning) == [1, 1]


async def test_a_tool_call_that_failed_is_left_to_the_lessons(new_learning: NewLearning) -> None:
    learning = await new_learning(evolver=evolver(DATES))
    turn = await Talk(learning).say(TASK.format(1))
    signal = Signal("exit", 2.0, "exit code 1")
    learning.verdicts.record_verdict(
        Verdict(turn, Outcome.FAIL, Source.DETECTOR, 0.9, (signal,), fault=Fault.AGENT)
    )
    await learning.learn()
    assert (learning.role(turn), counts(learning)) == (None, [])
