"""Checks that a model proposes for rules: which are taken, why others are not, and what confirms
them.
"""

from typing import Any

import pytest

from metaclaw.domain.candidate import Standing
from metaclaw.domain.chat import Text
from metaclaw.domain.skill import Rule
from metaclaw.domain.turn import Scope
from metaclaw.domain.verdict import Outcome, Source
from metaclaw.errors import UpstreamError
from metaclaw.ports import Purpose
from metaclaw.skills import check_of
from metaclaw.skills.rules import RuleFields, changed_rule, question_of
from tests.learn.learning import ADA, FAILED, PASSED, ScriptedLearning, Speaker, Talk
from tests.learn.recordings import call
from tests.learn.test_listen import NewLearning, Script, item

pytestmark = pytest.mark.anyio
PIP = r"not in calls of shell: \bpip install\b"
PROGRAM = (
    "program: |\n  import json, sys\n  sys.exit(1 if 'pip' in json.load(sys.stdin)['text'] else 0)"
)
SAID = "from here on we use uv and not pip"


def uv(
    check: str | None = PIP,
    violates: str | None = "pip install x",
    complies: str | None = "uv add x",
    **fields: Any,
) -> Any:
    return item("Use uv and not pip", check=check, violates=violates, complies=complies, **fields)


def listener(*items: dict[str, Any], correction: str | None = None) -> Speaker:
    again = {"items": [], "correction": "it used pip again"}
    return Speaker(
        "world/listener",
        Script({"uv": {"items": list(items), "correction": correction}, "wrong, that": again}),
    )


async def shell(
    learning: ScriptedLearning,
    *commands: str,
    words: str = "Go on.",
    scope: Scope = ADA,
    skills: tuple[str, ...] = (),
) -> Talk:
    """A task in which the agent runs these commands, one in each turn, and then reports."""
    talk = Talk(learning, scope)
    await run_in(talk, *commands, words=words, skills=skills)
    return talk


async def run_in(
    talk: Talk, *commands: str, words: str = "Go on.", skills: tuple[str, ...] = ()
) -> None:
    talk.agent.hear(words)
    talk.segment += 1
    for command in commands:
        await talk.answer(call("Bash", command=command), skills=skills)
        talk.agent.give("ok")
    await talk.answer(Text("It is done."), skills=skills)


async def read(learning: ScriptedLearning) -> None:
    """Read what was said; a day later, ask for checks."""
    await learning.sense()
    await learning.listen()
    learning.clock.pass_by(days=1)
    await learning.checks.run_once()


def rule(learning: ScriptedLearning) -> Rule:
    (found,) = learning.library.view.skills
    assert isinstance(found, Rule)
    return found


async def test_a_check_that_passes_its_trials_is_taken_and_waits_for_a_real_turn(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(listener=listener(uv()))
    await shell(learning, "uv add requests", "git status")
    await Talk(learning).say(SAID, "All right.")
    await read(learning)
    found = rule(learning)
    assert (found.check, found.check_state, found.check_note) == (
        PIP,
        "proposed",
        None,
    )


async def test_a_check_is_asked_for_when_the_rule_has_stayed_a_day_and_once(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(listener=listener(uv(None)))
    assert learning.listener is not None
    await Talk(learning).say(SAID, "All right.")
    await learning.listen()
    for hours, asked in ((1, 0), (23, 1), (48, 1)):
        learning.clock.pass_by(hours=hours)
        await learning.checks.run_once()
        assert learning.listener.purposes.count(Purpose.CHECK) == asked
    assert "no check can tell" in str(rule(learning).check_note)


async def test_a_check_is_asked_for_at_once_where_the_rule_was_broken(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(listener=listener(uv(), correction="it used pip"))
    talk = await shell(learning, "pip install requests")
    await talk.say(SAID, "All right.")
    await learning.sense()
    await learning.listen()
    await learning.checks.run_once()
    assert rule(learning).check == PIP


@pytest.mark.parametrize(
    ("proposed", "reason"),
    [
        (uv(violates=None), "there is no example that breaks the rule"),
        (uv(complies=None), "there is no example that breaks the rule and one that follows it"),
        (
            uv(r"not in calls of shell: \bpip3 install\b"),
            "does not notice the example that breaks the rule (it passes it)",
        ),
        (
            uv("not: pip install", violates=" `` "),
            "does not notice the example that breaks the rule (it passes it)",
        ),
        (
            uv("not in calls of shell: install|add"),
            "does not pass the example that follows the rule (it fails it)",
        ),
        (uv("not in calls of shell: (broken"), "not a regular expression"),
        (uv("nonsense"), "a check begins with"),
        (
            uv("not in calls of shell: pip # sk-proj-" + "Zk3vQ9xT7bLm2Rw8Yc5N" * 2),
            "it holds a secret",
        ),
    ],
)
async def test_a_check_that_fails_a_trial_is_not_taken_and_the_rule_says_why(
    new_learning: NewLearning, proposed: Any, reason: str
) -> None:
    learning = await new_learning(listener=listener(proposed))
    await shell(learning, "uv add requests", "git status")
    await Talk(learning).say(SAID, "All right.")
    await read(learning)
    found = rule(learning)
    assert (found.body, found.check, found.check_state) == (
        "Use uv and not pip",
        None,
        None,
    )
    assert reason in str(found.check_note)


@pytest.mark.parametrize(
    ("outcome", "source", "is_taken"),
    [
        (Outcome.PASS, Source.USER, False),
        (Outcome.PASS, Source.CHECK, False),
        (Outcome.PASS, Source.JUDGE, True),
        (Outcome.UNKNOWN, Source.UNDECIDED, True),
    ],
)
async def test_an_earlier_turn_speaks_against_a_check_only_where_it_was_passed(
    new_learning: NewLearning, outcome: Outcome, source: Source, is_taken: bool
) -> None:
    learning = await new_learning(listener=listener(uv()))
    habit = await shell(learning, "pip install requests")
    for one in habit.agent.turns:
        learning.say(one.turn.id, outcome, source)
    await Talk(learning).say(SAID, "All right.")
    await read(learning)
    found = rule(learning)
    assert (found.check == PIP) is is_taken
    assert is_taken or "fails turns that were fine, such as t_" in str(found.check_note)


@pytest.mark.parametrize(
    ("said", "is_taken"),
    [
        (PASSED, False),
        (FAILED, True),
        ("nonsense", True),
        (UpstreamError("down", status=503), True),
    ],
)
async def test_a_judge_says_whether_earlier_turns_that_a_check_fails_follow_the_rule(
    new_learning: NewLearning, said: object, is_taken: bool
) -> None:
    asked: list[str] = []

    def judge(prompt: str) -> object:
        if "followed one rule" not in prompt:
            return "nonsense"
        asked.append(prompt)
        return said

    learning = await new_learning(listener=listener(uv()), judge=Speaker("world/judge", judge))
    for package in ("requests", "httpx", "anyio", "numpy"):
        await shell(learning, f"pip install {package}")
    talk = Talk(learning)
    await talk.say(SAID, "All right.")
    await read(learning)
    found = rule(learning)
    assert (found.check == PIP) is is_taken
    assert is_taken or "fails turns that were fine, such as t_" in str(found.check_note)
    assert "Rule (always): Use uv and not pip" in asked[0]
    assert "pip install" in asked[0]


async def test_turns_that_failed_or_belong_to_others_do_not_count_as_fine(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(listener=listener(uv()))
    wrong = await shell(learning, "pip install requests")
    for one in wrong.agent.turns:
        learning.say(one.turn.id, Outcome.FAIL, Source.USER)
    await shell(learning, "pip install requests", scope=Scope("bob"))
    await Talk(learning).say(SAID, "All right.")
    await read(learning)
    assert rule(learning).check == PIP


async def test_the_task_that_the_rule_is_said_about_does_not_count_as_fine(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(listener=listener(uv()))
    talk = await shell(learning, "pip install requests")
    await talk.say(SAID, "All right.")
    await read(learning)
    assert rule(learning).check == PIP


@pytest.mark.parametrize(
    ("command", "is_taken"), [("pip install requests", True), ("conda install requests", False)]
)
async def test_a_check_must_notice_the_answer_that_was_corrected(
    new_learning: NewLearning, command: str, is_taken: bool
) -> None:
    learning = await new_learning(listener=listener(uv(), correction="it used another installer"))
    talk = await shell(learning, "ls", command)
    await talk.say(f"no! {SAID}", "All right.")
    await read(learning)
    found = rule(learning)
    assert (found.check == PIP) is is_taken
    assert is_taken or "the answer that you corrected" in str(found.check_note)


@pytest.mark.parametrize(
    ("command", "reply", "state"),
    [
        ("uv add numpy", "Thanks.", "confirmed"),
        ("pip install numpy", "wrong, that was pip again", "confirmed"),
        ("pip install numpy", "Thanks.", "proposed"),
        ("uv add numpy", "wrong, that was pip again", "proposed"),
    ],
)
async def test_a_real_turn_confirms_a_check_that_agrees_with_the_person(
    new_learning: NewLearning, command: str, reply: str, state: str
) -> None:
    learning = await new_learning(listener=listener(uv()))
    await Talk(learning).say(SAID, "All right.")
    await read(learning)
    name = rule(learning).name
    talk = await shell(learning, "ls", command, words="Add numpy.", skills=(name,))
    await talk.say(reply, "Fine.")
    await read(learning)
    found = rule(learning)
    assert (found.check, found.check_state) == (PIP, state)


async def test_a_turn_without_the_rule_or_without_calls_confirms_nothing(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(listener=listener(uv()))
    await Talk(learning).say(SAID, "All right.")
    await read(learning)
    name = rule(learning).name
    for commands, skills in ((("uv add numpy",), ()), ((), (name,))):
        talk = await shell(learning, *commands, skills=skills)
        await talk.say("Thanks.", "Fine.")
    await read(learning)
    assert rule(learning).check_state == "proposed"


async def test_a_proposed_check_is_no_verdict(new_learning: NewLearning) -> None:
    learning = await new_learning(listener=listener(uv()))
    await Talk(learning).say(SAID, "All right.")
    await read(learning)
    name = rule(learning).name
    talk = await shell(learning, "pip install numpy", skills=(name,))
    await talk.end()
    await read(learning)
    assert learning.verdict(talk.agent.turns[0].turn.id).source is not Source.CHECK


async def test_a_program_waits_for_a_person_and_the_rule_is_in_force_meanwhile(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(listener=listener(uv(PROGRAM)))
    await Talk(learning).say(SAID, "All right.")
    await read(learning)
    found = rule(learning)
    assert found.check is None
    assert "a program that a model wrote" in str(found.check_note)
    (waiting,) = learning.candidates.candidates(Standing.WAITING, 5)
    decided = await learning.admission.decide(waiting, approved=True)
    assert decided.standing is Standing.ACCEPTED, decided.reason
    found = rule(learning)
    assert (found.check, found.check_state, found.check_note) == (
        PROGRAM,
        None,
        None,
    )
    assert check_of(found) is not None


@pytest.mark.parametrize(
    ("fields", "standing"),
    [
        ({"enforce": "hold"}, Standing.ACCEPTED),
        ({"text": "Use uv, never pip or conda"}, Standing.REJECTED),
    ],
)
async def test_an_approved_check_leaves_what_the_person_changed_meanwhile(
    new_learning: NewLearning, fields: RuleFields, standing: Standing
) -> None:
    learning = await new_learning(listener=listener(uv(PROGRAM)))
    await Talk(learning).say(SAID, "All right.")
    await read(learning)
    changed = changed_rule(rule(learning), fields, learning.clock().date())
    learning.library.publish((changed,), (), "a person edits it", by_person=True)
    (waiting,) = learning.candidates.candidates(Standing.WAITING, 5)
    decided = await learning.admission.decide(waiting, approved=True)
    assert decided.standing is standing, decided.reason
    found = rule(learning)
    assert (found.body, found.enforce) == (changed.body, changed.enforce)
    assert (found.check == PROGRAM) is (standing is Standing.ACCEPTED)


async def test_who_says_never_ever_is_asked_whether_to_hold(new_learning: NewLearning) -> None:
    learning = await new_learning(listener=listener(uv()))
    await Talk(learning).say("never, ever pip: use uv and not pip", "All right.")
    await read(learning)
    found = rule(learning)
    assert (
        question_of(found)
        == f"hold it? metaclaw rules edit {found.name} --enforce hold (or --enforce remind)"
    )
