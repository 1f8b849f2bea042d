"""Tool calls that failed become lessons: once, for their project, and not for ever."""

from collections.abc import Awaitable, Callable

import pytest

from metaclaw.domain.candidate import Standing
from metaclaw.domain.chat import Finish, Json, Text, Wire
from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Lesson
from metaclaw.domain.turn import Scope
from metaclaw.errors import UpstreamError
from metaclaw.skills import LessonWriter, Rulebook
from tests.learn.learning import ScriptedLearning, Speaker, Talk
from tests.learn.recordings import call

pytestmark = pytest.mark.anyio
NewLearning = Callable[..., Awaitable[ScriptedLearning]]
SHOP, LAB = Scope("ada", "shop"), Scope("ada", "lab")
FAILED = "Exit code 4\nModuleNotFoundError: No module named 'app'"
BARE, UV = ("pytest -q", FAILED), ("uv run pytest -q", "12 passed in 1.2s")
LINE = "Run tests with `uv run pytest`, never with bare pytest."
Ran = tuple[str, str]


def writes(text: str = LINE) -> Speaker:
    lesson: Json = {"name": "uv-tests", "kind": "lesson", "trigger": "When testing", "text": text}
    return Speaker("world/evolver", lambda prompt: {"skills": [lesson]})


def placed_in(learning: ScriptedLearning, scope: Scope) -> list[str]:
    """The lessons in the prompts of a project."""
    skills = learning.library.view.skills
    return [one.name for one in skills if one.is_for_workspace(scope.workspace)]


async def session(
    learning: ScriptedLearning,
    *ran: Ran,
    scope: Scope = SHOP,
    wire: Wire = Wire.CHAT,
    task: str = "Fix the rounding.",
) -> Talk:
    """A session in which these commands were run, and what became of it."""
    talk = Talk(learning, scope, wire=wire)
    talk.agent.hear(task)
    talk.segment = 0
    placed = placed_in(learning, scope)
    for command, result in ran:
        await talk.answer(call("Bash", command=command), skills=placed)
        talk.agent.give(result)
    await talk.answer(Text("Done."), skills=placed)
    await talk.end()
    await learning.lesson_loop.look()
    return talk


def lesson_of(learning: ScriptedLearning) -> Lesson:
    (found,) = learning.library.view.skills
    assert isinstance(found, Lesson)
    return found


@pytest.mark.parametrize("wire", Wire)
async def test_a_call_that_failed_in_two_sessions_becomes_one_line_for_its_project(
    new_learning: NewLearning, wire: Wire
) -> None:
    learning = await new_learning(min_failures=3, evolver=writes())
    await session(learning, BARE, UV, wire=wire)
    assert learning.names == []
    talk = await session(learning, BARE, UV, wire=wire, task="Why is the export empty?")
    lesson = lesson_of(learning)
    assert (lesson.body, lesson.scope, lesson.workspace) == (LINE, "user:ada", "shop")
    assert lesson.signatures == ("shell · pytest · ModuleNotFoundError",)
    assert {learning.role(one.turn.id) for one in talk.agent.turns} == {"support"}
    assert learning.evolver is not None
    assert "uv run pytest -q" in learning.evolver.asked[0]
    assert "'app'" not in learning.evolver.asked[0]  # names in outputs are masked


async def test_a_failure_with_a_lesson_is_not_shown_again_and_its_turns_may_train(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(min_failures=3, evolver=writes())
    for _ in range(2):
        await session(learning, BARE, UV)
    talks = [await session(learning, BARE, UV) for _ in range(2)]
    assert learning.evolver is not None
    assert len(learning.evolver.asked) == 1
    assert {learning.role(one.turn.id) for talk in talks for one in talk.agent.turns} == {None}


async def test_each_project_has_its_own_lesson(new_learning: NewLearning) -> None:
    learning = await new_learning(min_failures=3, evolver=writes())
    for scope in (SHOP, LAB):
        await session(learning, BARE, UV, scope=scope)
    assert learning.names == []
    for scope in (SHOP, LAB):
        await session(learning, BARE, UV, scope=scope)
    assert [skill.workspace for skill in learning.library.view.skills] == ["shop", "lab"]


async def test_a_failure_that_made_no_lesson_is_shown_more_and_more_rarely(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(
        min_failures=3, evolver=Speaker("world/evolver", lambda prompt: {"skills": []})
    )
    assert learning.evolver is not None
    asked = []
    for _ in range(8):
        await session(learning, BARE, UV)
        asked.append(len(learning.evolver.asked))
    assert asked == [0, 1, 1, 2, 2, 2, 2, 3]


async def test_while_no_model_can_be_asked_the_failure_stays_due(new_learning: NewLearning) -> None:
    learning = await new_learning(
        min_failures=3, evolver=Speaker("world/evolver", lambda prompt: UpstreamError("down"))
    )
    for _ in range(2):
        await session(learning, BARE, UV)
    assert (learning.names, learning.candidates.interrupted()) == ([], [])
    assert learning.evolver is not None
    learning.evolver.rule = writes().rule
    await learning.lesson_loop.look()
    assert learning.names == []
    learning.clock.pass_by(minutes=1)
    await learning.lesson_loop.look()
    assert learning.names == ["uv-tests"]


async def test_a_model_without_a_usable_answer_is_asked_once_more_and_again_after_pauses(
    new_learning: NewLearning,
) -> None:
    evolver = Speaker("world/evolver", lambda prompt: "I would say so.")
    learning = await new_learning(min_failures=3, evolver=evolver)
    for _ in range(3):  # the third one brings nothing new
        await session(learning, BARE, UV)
    loop = learning.lesson_loop
    assert (len(evolver.asked), loop.unwritten) == (2, 1)
    for minutes, asked in ((9, 2), (2, 4), (30, 4), (31, 6), (60, 6)):
        learning.clock.pass_by(minutes=minutes)
        await loop.look()
        assert len(evolver.asked) == asked
    good = writes()
    evolver.rule = good.rule
    learning.clock.pass_by(days=1)
    await loop.look()
    assert (learning.names, loop.unwritten) == (["uv-tests"], 0)


async def test_another_model_is_asked_at_once_about_what_one_gave_no_usable_answer(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(
        min_failures=3, evolver=Speaker("world/evolver", lambda prompt: "I would say so.")
    )
    for _ in range(2):
        await session(learning, BARE, UV)
    other = writes()
    other.name = "world/other"
    learning.evolver = other
    learning.lesson_loop.writer_for = lambda served: LessonWriter(other, str, lambda name: False)
    await session(learning, ("ls", "a.py"))
    assert learning.names == ["uv-tests"]


@pytest.mark.parametrize(
    ("line", "fix", "standing"),
    [
        ("Be careful with the tests.", "uv run pytest -q", Standing.REJECTED),
        ("Run tests with `pipx run pytest`.", "uv run pytest -q", Standing.REJECTED),
        ("Run sudo pytest.", "sudo pytest -q", Standing.WAITING),
    ],
)
async def test_a_line_that_names_nothing_of_its_fix_is_refused_and_a_risky_one_waits(
    new_learning: NewLearning, line: str, fix: str, standing: Standing
) -> None:
    learning = await new_learning(min_failures=3, evolver=writes(line))
    for _ in range(2):
        await session(learning, BARE, (fix, "12 passed"))
    assert (learning.names, learning.only_candidate().standing) == ([], standing)


async def test_a_model_whose_line_was_refused_is_told_why_and_asked_once_more(
    new_learning: NewLearning,
) -> None:
    careful, other = "Be careful with the tests.", "Run tests with `pipx run pytest`."
    drafts = iter([careful, other, other, LINE])

    def rule(prompt: str) -> dict[str, Json]:
        line: Json = {"name": "a", "kind": "lesson", "trigger": "Testing", "text": next(drafts)}
        return {"skills": [line]}

    learning = await new_learning(min_failures=3, evolver=Speaker("world/evolver", rule))
    for _ in range(2):
        await session(learning, BARE, UV)
    assert learning.evolver is not None
    first, second = learning.evolver.asked
    assert careful not in first
    assert f"- {careful}\n  refused: it names nothing of the call that worked" in second
    assert learning.names == []
    for _ in range(2):
        await session(learning, BARE, UV)
    third, fourth = learning.evolver.asked[2:]
    assert careful in third
    assert other in fourth
    assert lesson_of(learning).body == LINE


async def test_a_look_round_before_the_remedy_is_shown_and_is_not_taken_for_it(
    new_learning: NewLearning,
) -> None:
    line = "The column of names is `name` in `sqlite3 shop.db`."
    learning = await new_learning(min_failures=3, evolver=writes(line))
    lost = ('sqlite3 shop.db "select nme from t"', "Exit code 1\nError: no such column: nme")
    look = ("sqlite3 shop.db .schema", "CREATE TABLE t (name TEXT)")
    found = ('sqlite3 shop.db "select name from t"', "ada")
    for _ in range(2):
        await session(learning, lost, look, found)
    assert learning.evolver is not None
    assert (
        'worked in between: Bash {"command": "sqlite3 shop.db .schema"}'
        in learning.evolver.asked[0]
    )
    assert learning.only_candidate().reason == "an output of a tool had named name before"


async def test_a_lesson_that_says_what_another_one_says_widens_that_one(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(min_failures=3, evolver=writes())
    for _ in range(2):
        await session(learning, BARE, UV)
    other = ("pytest --cov", "Exit code 4\npytest: error: unrecognized arguments: --cov")
    for _ in range(2):
        await session(learning, other, ("uv run pytest --cov", "12 passed"))
    assert len(lesson_of(learning).signatures) == 2


async def test_a_lesson_that_does_not_help_is_withdrawn_and_not_learned_again(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(min_failures=3, evolver=writes())
    for _ in range(7):
        await session(learning, BARE, UV)
    assert learning.names == []
    assert "came in 5 sessions since" in learning.only_candidate().reason
    for _ in range(3):
        await session(learning, BARE, UV)
    assert learning.names == []
    # Its failure goes on: the model is asked for another line, and told of this one.
    assert learning.evolver is not None
    assert len(learning.evolver.asked) == 2
    assert "the failure came all the same" in learning.evolver.asked[-1]


async def test_another_line_takes_the_place_of_one_that_did_not_help(
    new_learning: NewLearning,
) -> None:
    better = "Prefix pytest with `uv run`: only then it finds the packages."

    def write(prompt: str) -> Json:
        text = better if "the failure came all the same" in prompt else LINE
        lesson: Json = {"name": "uv-tests", "kind": "lesson", "trigger": "t", "text": text}
        return {"skills": [lesson]}

    learning = await new_learning(min_failures=3, evolver=Speaker("world/evolver", write))
    for _ in range(7):
        await session(learning, BARE, UV)
    await session(learning, BARE, UV)
    assert [one.body for one in learning.library.view.skills] == [better]


async def test_a_failure_that_was_not_repaired_counts_against_its_lesson(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(min_failures=3, evolver=writes())
    for _ in range(2):
        await session(learning, BARE, UV)
    for came in range(1, 5):
        await session(learning, BARE)
        (use,) = learning.lesson_loop.uses()
        assert (use.count.since, use.count.avoided) == (came, 0)
    await session(learning, BARE)
    assert learning.names == []
    assert "came in 5 sessions since" in learning.only_candidate().reason


async def test_a_lesson_that_is_followed_stays(new_learning: NewLearning) -> None:
    learning = await new_learning(min_failures=3, evolver=writes())
    for _ in range(2):
        await session(learning, BARE, UV)
    for _ in range(6):
        await session(learning, UV)
        await session(learning, UV)
        await session(learning, BARE, UV)
    assert learning.names == ["uv-tests"]
    (use,) = learning.lesson_loop.uses()
    assert (use.count.before, use.count.since, use.count.avoided) == (2, 6, 12)


def counts(learning: ScriptedLearning) -> tuple[int, int, int]:
    (use,) = learning.lesson_loop.uses()
    return use.count.before, use.count.since, use.count.avoided


async def test_only_a_call_that_follows_a_lesson_counts_as_spared(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(min_failures=3, evolver=writes())
    for _ in range(2):
        await session(learning, BARE, UV)
    for other in ("pytest --version", "uv sync", "git status"):
        await session(learning, (other, "fine"))
    assert counts(learning) == (2, 0, 0)
    await session(learning, UV)
    assert counts(learning) == (2, 0, 1)


async def test_a_session_that_goes_on_counts_as_spared_at_once_until_it_fails(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(min_failures=3, evolver=writes())
    for _ in range(2):
        await session(learning, BARE, UV)
    talk = Talk(learning, SHOP)
    talk.agent.hear("Fix the rounding.")
    talk.segment = 0
    for ran, expected in ((UV, (2, 0, 1)), (BARE, (2, 1, 0))):
        for command, result in (ran, ("ls", "a.py")):
            await talk.answer(call("Bash", command=command), skills=placed_in(learning, SHOP))
            talk.agent.give(result)
        learning.clock.pass_by(minutes=1)
        await talk.answer(Text("Well."), skills=placed_in(learning, SHOP))
        await learning.lesson_loop.look()
        assert counts(learning) == expected
        talk.agent.hear("Go on.")


async def test_a_lesson_counts_in_sessions_that_had_it_from_their_first_prompt_on(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(min_failures=3, evolver=writes())
    talks = [Talk(learning, SHOP) for _ in range(2)]
    for talk in talks:  # they begin before the lesson is there
        talk.agent.hear("Fix the rounding.")
        talk.segment = 0
        await talk.answer(call("Bash", command="ls"))
        talk.agent.give("a.py")
    for _ in range(2):
        await session(learning, BARE, UV)
    for talk, ran in zip(talks, ((BARE, UV), (UV,)), strict=True):
        for command, result in ran:
            await talk.answer(call("Bash", command=command), skills=["uv-tests"])
            talk.agent.give(result)
        await talk.answer(Text("Done."), skills=["uv-tests"])
        await talk.end()
    await learning.lesson_loop.look()
    assert counts(learning) == (3, 0, 0)


async def test_what_a_session_brings_along_from_an_earlier_one_counts_for_no_lesson(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(min_failures=3, evolver=writes())
    for _ in range(2):
        earlier = await session(learning, BARE, UV)
    for _ in range(5):
        talk = Talk(learning, SHOP)
        talk.agent.messages = list(earlier.agent.messages)
        talk.agent.hear("Go on.")
        talk.segment = 0
        await talk.answer(Text("Done."), skills=["uv-tests"])
        await talk.end()
        await learning.lesson_loop.look()
    (use,) = learning.lesson_loop.uses()
    assert (use.count.since, use.count.avoided) == (0, 0)


async def test_an_ignored_lesson_is_withdrawn_also_in_a_busy_home(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(min_failures=3, evolver=writes())
    for _ in range(2):
        await session(learning, BARE, UV)
    for number in range(5):
        assert learning.names == ["uv-tests"]
        for _ in range(2):
            await session(learning, ("pytest --version", "pytest 8"), ("uv sync", "done"))
        await session(learning, BARE, UV, task=f"Task {number}")
    assert learning.names == []
    await session(learning, BARE, UV)
    (gone,) = learning.generations.retired()
    assert isinstance(gone.skill, Lesson)
    count = learning.lesson_loop.episodes.use(gone.skill, learning.generations.dates()).count
    assert (count.before, count.since, count.avoided) == (2, 5, 0)


async def test_another_failure_between_a_failure_and_its_fix_is_not_the_lessons(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(
        min_failures=3, evolver=writes("Switch to a branch with `git switch NAME`.")
    )
    lost = ("git checkout fx", "Exit code 1\nerror: pathspec 'fx' did not match any file(s)")
    away = ("git fetch orgin", "Exit code 128\nfatal: 'orgin' does not appear to be a repository")
    for _ in range(2):
        await session(learning, lost, away, ("git switch fixes", "Switched"))
    assert not any("fetch" in one for one in lesson_of(learning).signatures)
    assert learning.evolver is not None
    await session(learning, away, ("git fetch origin", "ok"))
    assert counts(learning) == (2, 0, 0)
    assert len(learning.evolver.asked) == 1


async def test_a_lesson_that_is_not_needed_sleeps_until_its_failure_comes_back(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(min_failures=3, evolver=writes())
    for _ in range(2):
        await session(learning, BARE, UV)
    learning.clock.pass_by(days=59)
    await session(learning, ("ls", "a.py"))
    assert learning.names == ["uv-tests"]
    learning.clock.pass_by(days=2)
    await session(learning, ("ls", "a.py"))
    assert learning.names == []
    await session(learning, BARE, UV)
    assert learning.names == ["uv-tests"]


async def test_what_a_person_took_back_does_not_come_back(new_learning: NewLearning) -> None:
    learning = await new_learning(min_failures=3, evolver=writes())
    for _ in range(2):
        await session(learning, BARE, UV)
    await learning.owner.retire(SkillName("uv-tests"))
    for _ in range(3):
        await session(learning, BARE, UV)
    assert learning.names == []


async def test_new_failures_ask_about_a_lesson_that_was_taken_back(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(min_failures=3, evolver=writes())
    for _ in range(2):
        await session(learning, BARE, UV)
    Rulebook(learning.library, learning.generations).undo()
    learning.restart()
    await session(learning, BARE, UV)
    assert learning.of_standing(Standing.WAITING) == []
    await session(learning, BARE, UV)
    (waiting,) = learning.candidates.candidates(Standing.WAITING)
    assert waiting.reason == "you took back a lesson about this failure"
    for _ in range(5):
        await session(learning, BARE, UV)
    assert learning.of_standing(Standing.WAITING) == ["uv-tests"]
    await learning.owner.decide(waiting.id, approved=False)
    for _ in range(3):
        await session(learning, BARE, UV)
    assert (learning.names, learning.of_standing(Standing.WAITING)) == ([], [])


async def go_on(talk: Talk, *ran: Ran) -> None:
    """Commands in a session that does not end; the last result is not shown to a model yet."""
    for command, result in ran:
        await talk.answer(call("Bash", command=command))
        talk.agent.give(result)
    await talk.learning.lesson_loop.look()


async def test_an_episode_counts_as_soon_as_the_next_request_shows_what_worked(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(min_failures=3, evolver=writes())
    await session(learning, BARE, UV)
    talk = Talk(learning, SHOP)
    talk.agent.hear("Fix the rounding.")
    talk.segment = 0
    await go_on(talk, BARE)
    learning.clock.pass_by(minutes=1)
    await go_on(talk, ("git status", "clean"), UV)
    assert learning.names == []
    learning.clock.pass_by(minutes=1)
    await go_on(talk, ("ls", "a.py"))
    assert learning.names == ["uv-tests"]
    shown = [one.turn.id for one in talk.agent.turns]
    assert {learning.role(turn) for turn in shown} == {"support"}
    await talk.answer(Text("Done."))
    await talk.end()
    learning.clock.pass_by(minutes=1)
    await learning.lesson_loop.look()
    (use,) = learning.lesson_loop.uses()
    assert use.count.before + use.count.since == 2
    assert learning.evolver is not None
    assert len(learning.evolver.asked) == 1


async def test_a_remedy_by_another_program_counts_when_the_agent_has_answered(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(
        min_failures=3, evolver=writes("Add packages with `pnpm add`, not with npm.")
    )
    refused = ("npm install pad", "Exit code 1\nnpm error code EUNSUPPORTEDPROTOCOL")
    for _ in range(2):
        assert learning.names == []
        talk = Talk(learning, SHOP)
        talk.agent.hear("Pad the names.")
        talk.segment = 0
        await go_on(talk, refused, ("pnpm add pad", "added 1"), ("pnpm test", "all fine"))
        learning.clock.pass_by(minutes=1)
        await talk.answer(Text("It is"), finish=Finish.LENGTH)
        await learning.lesson_loop.look()
        assert learning.lesson_loop.episodes.recorded_of(talk.session) == (set(), set())
        learning.clock.pass_by(minutes=1)
        await talk.answer(Text("Done."))
        await learning.lesson_loop.look()
    assert learning.names == ["uv-tests"]


async def test_an_episode_of_a_session_that_goes_on_counts_once_also_after_a_compaction(
    new_learning: NewLearning,
) -> None:
    learning = await new_learning(min_failures=3, evolver=writes())
    talk = Talk(learning, SHOP)
    talk.agent.hear("Fix the rounding.")
    talk.segment = 0
    await go_on(talk, BARE, UV, ("ls", "a.py"))
    learning.clock.pass_by(minutes=1)
    await go_on(talk, ("ls", "a.py"))
    del talk.agent.messages[:-2]
    talk.agent.hear("go on")
    await talk.answer(Text("Done."))
    for _ in range(2):
        await talk.end()
        await learning.lesson_loop.look()
    assert learning.names == []
    await session(learning, BARE, UV)
    assert learning.names == ["uv-tests"]


async def test_a_lesson_that_a_person_puts_back_stays(new_learning: NewLearning) -> None:
    learning = await new_learning(min_failures=3, evolver=writes())
    for _ in range(2):
        await session(learning, BARE, UV)
    await learning.owner.retire(SkillName("uv-tests"))
    Rulebook(learning.library, learning.generations).restore("uv-tests")
    for _ in range(6):
        await session(learning, BARE, UV)
    assert learning.names == ["uv-tests"]
