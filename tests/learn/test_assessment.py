"""Verdicts on turns by checks, detectors and the judge, and scores of replays."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaclaw.domain.chat import Message, Role, Text
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.skill import Authorship, Skill
from metaclaw.domain.turn import ModelAt, Scope, Stamp, Step, TurnEnd
from metaclaw.domain.verdict import Fault, Outcome, Source, Verdict, Votes
from metaclaw.learn.assessment import Assessment, CalibrationLoop, always_match
from metaclaw.outcome import Calibration, Judge
from metaclaw.outcome.detectors import signal
from tests.learn.learning import CORRECTION, FAILED, TASK, THANKS, Speaker, learned_skill

pytestmark = pytest.mark.anyio
PLAIN = "Please prepare the report about our harbour cranes."


def step(
    answer: str, said_after: str | None = None, task: str = PLAIN, skills: Sequence[str] = ()
) -> Step:
    after = () if said_after is None else (Message(Role.USER, (Text(said_after),)),)
    return Step(
        turn=TurnId("t_1"),
        session=SessionId("s_1"),
        scope=Scope("ada"),
        stamp=Stamp(0, 0, "", tuple(SkillName(name) for name in skills)),
        model="m-1",
        task=task,
        history=(Message(Role.USER, (Text(task),)),),
        tools=(),
        answer=(Text(answer),),
        end=TurnEnd.COMPLETED,
        after=after,
        said_after=said_after,
        is_last=said_after is None,
    )


def assessment(skills: Sequence[Skill] = (), judge: Speaker | None = None) -> Assessment:
    known = {skill.name: skill for skill in skills}

    async def judged(model: str) -> None:
        pass

    return Assessment(
        judge_for=judges(judge),
        skill=known.get,
        calibration=Calibration,
        matches=always_match,
        judged=judged,
    )


def judges(speaker: Speaker | None) -> Callable[[ModelAt], Judge | None]:
    return lambda served: None if speaker is None else Judge(speaker, 3, lambda step: step.task)


DATED = learned_skill("dated", check=r"pattern: \d{4}-\d{2}-\d{2}")
BRIEF = learned_skill("brief", check="not: (?i)in conclusion")


def test_a_check_that_fails_is_a_failure_whatever_else_is_said() -> None:
    verdict = (
        assessment([DATED, BRIEF])
        .at_once(step("On 01/02/2026.", THANKS, skills=["dated", "brief"]))
        .verdict
    )
    assert verdict is not None
    assert (verdict.outcome, verdict.source) == (Outcome.FAIL, Source.CHECK)


def test_checks_that_pass_pass_a_turn_that_nobody_complains_about() -> None:
    verdict = (
        assessment([DATED, BRIEF])
        .at_once(step("On 2026-02-01.", skills=["dated", "brief"]))
        .verdict
    )
    assert verdict is not None
    assert (verdict.outcome, verdict.source) == (Outcome.PASS, Source.CHECK)


def test_a_check_that_passes_does_not_silence_a_complaint_about_something_else() -> None:
    verdict = (
        assessment([BRIEF])
        .at_once(step("On 01/02/2026.", CORRECTION, TASK.format(1), skills=["brief"]))
        .verdict
    )
    assert verdict is not None
    assert (verdict.outcome, verdict.source) == (Outcome.FAIL, Source.DETECTOR)


def test_a_skill_that_is_gone_or_has_no_check_says_nothing() -> None:
    assert (
        assessment([learned_skill("plain")])
        .at_once(step("Done.", skills=["plain", "gone"]))
        .verdict
        is None
    )


def test_a_check_that_cannot_be_read_says_nothing_and_stops_nothing() -> None:
    broken = learned_skill("broken", check="whatever this is")
    assert assessment([broken]).at_once(step("Done.", skills=["broken"])).verdict is None


def test_a_check_that_fails_to_run_says_nothing_and_is_named() -> None:
    broken = learned_skill(
        "broken",
        check="program: |\n  raise LookupError('no such field')",
        author=Authorship.PERSON,
    )
    found = assessment([broken]).at_once(step("Done.", skills=["broken"]))
    assert (found.verdict, found.failed_check) == (None, "broken")


def test_the_next_answer_is_looked_at_where_it_is_known() -> None:
    first = step("The crane is blue.", "Is it?")
    sorry = step("I apologize, I was wrong: the crane is red.", task="Is it?")
    with_later, without = (
        assessment().at_once(first, sorry).verdict,
        assessment().at_once(first).verdict,
    )
    names = {signal.detector for signal in with_later.signals} if with_later is not None else set()
    assert with_later != without
    assert "apology.next" in names


async def test_the_judge_is_asked_where_there_is_one() -> None:
    speaker = Speaker("world/judge", lambda prompt: FAILED)
    mine = assessment(judge=speaker)
    assert mine.has_judge(step("Done."))
    verdict = await mine.asked(step("Done."))
    assert verdict is not None
    assert (verdict.outcome, verdict.source) == (Outcome.FAIL, Source.JUDGE)
    assert not assessment().has_judge(step("Done."))
    assert await assessment().asked(step("Done.")) is None


Graded = list[tuple[Verdict, Outcome]]


def sensed(p_fail: float | None = 0.98, *, detector: str = "correction.plain") -> Verdict:
    """What a detector said of a turn."""
    return Verdict(
        TurnId("t"),
        Outcome.FAIL,
        Source.DETECTOR,
        p_fail,
        (signal(detector, "x"),),
        fault=Fault.AGENT,
    )


def judged(failed: int, passed: int, p_fail: float = 0.9) -> Verdict:
    """What a judge voted."""
    votes = Votes(passed, failed, 0, "judge-model")
    return Verdict(TurnId("t"), Outcome.UNKNOWN, Source.JUDGE, p_fail, (), votes)


def refitted(graded: Graded) -> CalibrationLoop:
    calibration = CalibrationLoop(lambda limit: graded[:limit])
    calibration.refit()
    return calibration


def test_before_anything_is_known_every_score_stands_as_it_is() -> None:
    calibration = refitted([])
    for score in (0.02, 0.5, 0.98):
        assert calibration.current.sensed.apply(score) == pytest.approx(score, abs=0.03)
        assert calibration.current.judged.apply(score) == pytest.approx(score, abs=0.03)


def test_detectors_that_cry_wolf_are_believed_less_and_the_judge_as_before() -> None:
    wrong = refitted([(sensed(), Outcome.PASS)] * 60)
    right = refitted([(sensed(), Outcome.FAIL)] * 60)
    assert wrong.current.sensed.apply(0.98) < 0.3
    assert right.current.sensed.apply(0.98) > 0.9
    assert wrong.current.judged == Calibration(judged=refitted([]).current.judged).judged


def test_votes_are_calibrated_by_themselves() -> None:
    calibration = refitted([(judged(3, 0), Outcome.PASS)] * 60)
    assert calibration.current.judged.apply(0.8) < 0.3
    assert calibration.current.sensed == refitted([]).current.sensed


def test_votes_of_which_none_could_be_read_teach_nothing() -> None:
    unread = Verdict(
        TurnId("t"), Outcome.UNKNOWN, Source.JUDGE, None, (), Votes(0, 0, 3, "judge-model")
    )
    calibration = refitted([(unread, Outcome.FAIL)] * 60)
    assert calibration.current == refitted([]).current


scores = st.tuples(
    st.integers(0, 3), st.integers(0, 3), st.sampled_from([Outcome.PASS, Outcome.FAIL])
)


@given(st.lists(scores, max_size=40))
def test_whatever_is_known_a_higher_score_is_never_believed_less(
    known: list[tuple[int, int, Outcome]],
) -> None:
    graded: Graded = [(judged(failed, passed), truth) for failed, passed, truth in known]
    calibration = refitted(graded).current
    believed = [calibration.judged.apply(step / 50) for step in range(51)]
    assert believed == sorted(believed)
    assert all(0 < p_fail < 1 for p_fail in believed)
