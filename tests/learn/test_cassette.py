"""A cassette answers a recorded call after the same changes, and no other call."""

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaclaw.domain.chat import Text, ToolCall, ToolResult, Wire
from metaclaw.learn.cassette import (
    CallEffect,
    Cassette,
    ExactResult,
    Miss,
    Recording,
    SimilarResult,
    canonical_command,
    only_looks,
    paths_read,
    understand,
)
from metaclaw.learn.steps import StepBuilder
from tests.learn.recordings import Agent, call, words
from tests.support.cases import each


def recording(agent: Agent, begin: int = 0) -> Recording:
    return Recording.of(StepBuilder(words).chain(agent.turns[begin:]))


def play(cassette: Cassette, wanted: ToolCall) -> str:
    """What comes back, in short."""
    match cassette.play(wanted):
        case ExactResult(result):
            return text(result)
        case SimilarResult(result):
            return f"~{text(result)}"
        case Miss():
            return "-"


def text(result: ToolResult) -> str:
    return "".join(part.text for part in result.parts if isinstance(part, Text))


@pytest.mark.parametrize("wire", Wire)
def test_a_recorded_session_is_played_to_its_end(wire: Wire) -> None:
    agent = (
        Agent(wire)
        .hear("Fix it.")
        .use(call("Read", file_path="a.py"), "old")
        .use(call("Bash", command="pytest -q"), "1 failed")
    )
    agent.use(call("Edit", file_path="a.py", old_string="o", new_string="n"), "ok")
    agent.use(call("Bash", command="pytest -q"), "1 passed").answer(Text("Done."))
    cassette = Cassette(recording(agent))
    wanted = [part for recorded in StepBuilder(words).chain(agent.turns) for part in recorded.calls]
    assert [play(cassette, one) for one in wanted] == ["old", "1 failed", "ok", "1 passed"]


def test_a_result_carries_the_id_of_the_call_it_answers() -> None:
    cassette = Cassette(
        recording(
            Agent(Wire.CHAT).hear("Go.").use(call("Bash", command="ls"), "a").answer(Text("Done."))
        )
    )
    played = cassette.play(ToolCall("new_id", "Bash", '{"command":"ls"}'))
    assert isinstance(played, ExactResult)
    assert played.result.call_id == "new_id"


def test_what_was_seen_before_a_change_does_not_answer_for_after_it_nor_the_other_way() -> None:
    agent = Agent(Wire.CHAT).hear("Go.").use(call("Read", file_path="a.py"), "old")
    edit = call("Edit", file_path="a.py", old_string="o", new_string="n")
    agent.use(edit, "ok").use(call("Read", file_path="a.py"), "new").use(
        call("Bash", command="pytest"), "passed"
    ).answer(Text("Done."))
    tape = recording(agent)
    cassette = Cassette(tape)
    assert play(cassette, call("Bash", command="pytest")) == "-"
    assert play(cassette, call("Read", file_path="a.py")) == "old"
    assert play(cassette, call("Read", file_path="a.py")) == "old"
    assert play(cassette, edit) == "ok"
    assert play(cassette, call("Read", file_path="a.py")) == "new"
    assert play(cassette, call("Bash", command="pytest")) == "passed"
    assert play(cassette, edit) == "-"
    assert isinstance(miss := Cassette(tape).play(call("Bash", command="pytest")), Miss)
    assert miss.why == "Bash was recorded, but not after the same changes"


def test_changes_of_other_files_do_not_matter_to_a_file_and_may_come_in_any_order() -> None:
    agent = (
        Agent(Wire.CHAT)
        .hear("Go.")
        .use(call("Write", file_path="src/a.py", content="1"), "wrote a")
    )
    agent.use(call("Read", file_path="src/b.py"), "b").use(
        call("Write", file_path="src/b.py", content="2"), "wrote b"
    )
    agent.use(call("Grep", pattern="x", path="src"), "both").answer(Text("Done."))
    cassette = Cassette(recording(agent))
    assert play(cassette, call("Grep", pattern="x", path="src")) == "-"
    assert play(cassette, call("Read", file_path="./src//b.py")) == "b"
    assert play(cassette, call("Write", file_path="src/b.py", content="2")) == "wrote b"
    assert play(cassette, call("Read", file_path="/repo/src/b.py")) == "-"
    assert play(cassette, call("Write", file_path="src/a.py", content="1")) == "wrote a"
    assert play(cassette, call("Grep", pattern="x", path="src")) == "both"


def test_what_nobody_knows_to_be_harmless_changes_everything() -> None:
    agent = (
        Agent(Wire.CHAT)
        .hear("Go.")
        .use(call("Read", file_path="a"), "a")
        .use(call("Deploy", target="live"), "deployed")
    )
    agent.use(call("Read", file_path="a"), "a2").answer(Text("Done."))
    cassette = Cassette(recording(agent))
    assert play(cassette, call("Deploy", target="live")) == "deployed"
    assert play(cassette, call("Read", file_path="a")) == "a2"
    assert play(cassette, call("Deploy", target="live")) == "-"
    assert play(cassette, call("Deploy", target="test")) == "-"


def test_a_call_that_was_never_recorded_is_a_miss_with_a_word_why() -> None:
    cassette = Cassette(
        recording(
            Agent(Wire.CHAT).hear("Go.").use(call("Bash", command="ls"), "a").answer(Text("Done."))
        )
    )
    assert cassette.play(call("Bash", command="rm -rf /")) == Miss(
        "this call of Bash was not recorded"
    )
    assert cassette.play(call("WebFetch", url="http://x")) == Miss(
        "no call of WebFetch was recorded"
    )
    assert Cassette(Recording.of([])).play(call("Bash", command="ls")) == Miss(
        "no call of Bash was recorded"
    )


def test_polling_gives_one_result_after_the_other_and_the_last_again() -> None:
    agent = Agent(Wire.CHAT).hear("Go.")
    for state in ("queued", "running", "finished"):
        agent.use(call("Bash", command="git status"), state)
    agent.answer(Text("Done."))
    cassette = Cassette(recording(agent))
    assert [play(cassette, call("Bash", command="git status")) for _ in range(4)] == [
        "queued",
        "running",
        "finished",
        "finished",
    ]


def test_a_replay_from_the_middle_begins_in_the_world_of_the_middle() -> None:
    agent = (
        Agent(Wire.CHAT)
        .hear("Go.")
        .use(call("Read", file_path="a"), "old")
        .use(call("Write", file_path="a", content="x"), "ok")
    )
    agent.use(call("Read", file_path="a"), "x").answer(Text("Done."))
    middle = recording(agent, begin=2)
    assert middle.start == 2
    assert play(Cassette(middle), call("Read", file_path="a")) == "x"
    assert play(Cassette(recording(agent)), call("Read", file_path="a")) == "old"


def test_results_that_the_client_has_emptied_answer_nothing() -> None:
    agent = (
        Agent(Wire.CHAT)
        .hear("Go.")
        .use(call("Read", file_path="a"), "[Old tool result content cleared]")
        .answer(Text("Done."))
    )
    assert play(Cassette(recording(agent)), call("Read", file_path="a")) == "-"


def test_a_write_that_failed_changed_nothing() -> None:
    agent = Agent(Wire.MESSAGES).hear("Go.")
    agent.use(
        call("Edit", file_path="a", old_string="1", new_string="2"), "not found", is_error=True
    )
    agent.use(call("Read", file_path="a"), "text").answer(Text("Done."))
    cassette = Cassette(recording(agent))
    assert play(cassette, call("Read", file_path="a")) == "text"
    assert play(cassette, call("Edit", file_path="a", old_string="9", new_string="2")) == "-"


def test_the_nearest_serves_where_only_the_amount_a_note_or_the_written_text_differ() -> None:
    agent = (
        Agent(Wire.CHAT)
        .hear("Go.")
        .use(call("Read", file_path="a", limit=50), "a")
        .use(call("TodoWrite", todos="1"), "noted")
    )
    agent.use(call("Read", file_path="b"), "no such file")
    agent.use(call("Write", file_path="b", content="x"), "written").use(
        call("Bash", command="pytest"), "passed"
    ).answer(Text("Done."))
    cassette = Cassette(recording(agent))
    assert play(cassette, call("Read", file_path="a", limit=100)) == "~a"
    assert play(cassette, call("Read", file_path="a")) == "~a"
    assert play(cassette, call("TodoWrite", todos="2")) == "~noted"
    played = cassette.play(call("Write", file_path="b", content="y"))
    assert isinstance(played, SimilarResult)
    assert played.differs == "what is written"
    # From here on the world is one that nobody has seen.
    assert play(cassette, call("Read", file_path="b")) == "-"
    assert play(cassette, call("Bash", command="pytest")) == "-"
    assert play(cassette, call("Write", file_path="c", content="x")) == "-"


def test_a_session_that_ended_with_a_call_ends_with_it_again() -> None:
    submit = call("Bash", command="echo COMPLETE_TASK")
    agent = Agent(Wire.CHAT).hear("Go.").use(call("Bash", command="ls"), "a").answer(submit)
    cassette = Cassette(recording(agent))
    assert play(cassette, submit) == "-"
    assert cassette.closes(submit)
    assert not cassette.closes(call("Bash", command="ls"))
    assert not Cassette(recording(agent.give("ok").answer(Text("Done.")))).closes(submit)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab c", max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("xyz", min_size=1, max_size=2), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.text("xyz", min_size=1, max_size=3), JSON, max_size=4), st.randoms())
def test_order_of_keys_and_blanks_make_no_difference(
    arguments: dict[str, object], random: Random
) -> None:
    shuffled = list(arguments.items())
    random.shuffle(shuffled)
    plain = ToolCall("1", "Deploy", json.dumps(arguments))
    other = ToolCall("2", "Deploy", json.dumps(dict(shuffled), indent=3))
    assert understand(plain).key == understand(other).key


@given(JSON, JSON)
def test_different_arguments_of_a_tool_that_may_do_anything_are_different_calls(
    one: object, other: object
) -> None:
    same = (
        understand(call("Deploy", target=one)).key == understand(call("Deploy", target=other)).key
    )
    assert same == (bare(one) == bare(other))


def bare(value: object) -> str:
    """Without what stands for nothing."""
    match value:
        case dict():
            return json.dumps(
                {key: bare(inner) for key, inner in value.items() if inner is not None},
                sort_keys=True,
            )
        case list():
            return json.dumps([bare(inner) for inner in value])
        case _:
            return json.dumps(value)


@each(
    ("one", "other"),
    [
        ("ls  -la   src", " ls -la src ; "),
        ("grep 'foo' a.py", 'grep "foo" a.py'),
        ("cat 'a b.txt'", 'cat "a b.txt"'),
        ("a && b|c", "a  &&  b | c"),
        ("x --name='v'", "x --name=v"),
    ],
)
def test_commands_that_differ_in_trifles_are_the_same(one: str, other: str) -> None:
    assert canonical_command(one) == canonical_command(other)
    assert (
        understand(call("Bash", command=one, description="Look")).key
        == understand(call("Bash", command=other, timeout=5)).key
    )


@each(
    ("one", "other"),
    [
        ("echo '$HOME'", 'echo "$HOME"'),
        ("echo '*'", "echo *"),
        ("echo 2 > f", "echo 2> f"),
        ("ls &> f", "ls & > f"),
        ("ls 12> f", "ls 1 2> f"),
        ("cat <<E\na  b\nE", "cat <<E\na b\nE"),
        ("echo 'a  b'", "echo 'a b'"),
        ("a\nb", "a b"),
        ("a & b", "a && b"),
        ("echo a\\ b", "echo a b"),
        ("echo ''", "echo"),
    ],
)
def test_commands_that_a_shell_takes_differently_are_not(one: str, other: str) -> None:
    assert canonical_command(one) != canonical_command(other)


@each(
    "command",
    """ls -la
cat a | grep x | head -3
cd src && git log --oneline -5
git -C repo --no-pager diff
python -m pytest -q 2>&1 | tail -5
timeout 60 pytest tests
sed -n 1,5p a.py
find . -name '*.py'
FOO=1 npm run test
rg x > /dev/null
ls &> /dev/null
(cd src && ls)""".splitlines(),
)
def test_commands_that_only_look(command: str) -> None:
    assert only_looks(command)
    assert understand(call("Bash", command=command)).effect is CallEffect.LOOK


@each(
    "command",
    """rm a
cat a > b
cat a > 1
ls() { rm -r b; }; ls
sed -i s/a/b/ c
find . -delete
find . -exec rm {} +
git commit -m x
git -C repo push
python run.py
python -m pip install x
npm install
ls $(rm a)
ls `rm a`
ls & rm a
ruff check --fix
echo hi | tee f
curl http://x

true; rm x
awk '{print > "f"}' a
sudo ls
cat <<E > f""".splitlines(),
)
def test_commands_that_may_change_something(command: str) -> None:
    assert not only_looks(command)


def test_files_that_a_command_reads() -> None:
    assert paths_read("head -n 5 a.py") == ("a.py",)
    assert paths_read("cat 'a b' c 2>/dev/null") == ("a b", "c")
    assert paths_read("cat *.py") is None
    assert paths_read("cat a | grep x") is None
    assert paths_read("pytest") is None
    assert paths_read("cat") is None
    assert paths_read("cat a > 2") is None
    assert paths_read("X=1 cat a") is None


@each(
    ("wanted", "effect"),
    [
        (call("Read", file_path="a"), CallEffect.LOOK),
        (call("mcp__github__get_issue", number=1), CallEffect.LOOK),
        (call("mcp__github__create_issue", title="x"), CallEffect.ANYTHING),
        (call("WebSearch", query="x"), CallEffect.LOOK),
        (call("NotebookEdit", notebook_path="a"), CallEffect.WRITE),
        (call("str_replace_editor", command="view", path="a"), CallEffect.LOOK),
        (call("str_replace_editor", command="str_replace", path="a"), CallEffect.WRITE),
        (
            call("apply_patch", input="*** Begin Patch\n*** Update File: src/a.py\n@@"),
            CallEffect.WRITE,
        ),
        (call("apply_patch", input="what"), CallEffect.ANYTHING),
        (call("update_plan", plan="x"), CallEffect.NOTE),
        (call("TodoWrite", todos=[]), CallEffect.NOTE),
        (call("plan_release", plan="x"), CallEffect.ANYTHING),
        (call("shell", command=["bash", "-lc", "ls"]), CallEffect.LOOK),
        (call("shell", command=["rm", "a b"]), CallEffect.ANYTHING),
        (call("exec_command", cmd="ls", yield_time_ms=5), CallEffect.LOOK),
        (call("db_query", sql="drop table x"), CallEffect.ANYTHING),
        (call("run"), CallEffect.ANYTHING),
        (ToolCall("1", "Read", "not json"), CallEffect.ANYTHING),
        (ToolCall("1", "LS", ""), CallEffect.LOOK),
    ],
)
def test_what_a_call_does_is_told_by_its_name_and_its_command(
    wanted: ToolCall, effect: CallEffect
) -> None:
    assert understand(wanted).effect is effect


def test_a_shell_that_is_given_a_line_and_one_that_is_given_words_are_told_alike() -> None:
    assert (
        understand(call("shell", command=["bash", "-lc", "ls  -l"])).key
        == understand(call("shell", command="ls -l")).key
    )
    assert (
        understand(call("shell", command=["ls", "-l"])).key
        == understand(call("shell", command="ls -l")).key
    )
