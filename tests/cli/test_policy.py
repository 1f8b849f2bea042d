"""`metaclaw policy`: read from a real store, done by a running proxy or, where none runs, in the
store itself.
"""

import resource
from pathlib import Path
from typing import Any

import pytest

from metaclaw.cli import policy
from metaclaw.domain.ids import SkillName, new_session_id
from metaclaw.domain.policy import Comparison, GateReport, Habit, Serving, Weights
from metaclaw.instance import acquire
from metaclaw.store import SqlBatches, SqlGenerations, SqlPolicies
from tests.cli.program import Done, metaclaw, program
from tests.cli.recorded import record, store, turn
from tests.cli.scripted import scripted

PASSED = GateReport(
    True,
    ("not worse", "the paired test favours it"),
    Comparison(40, 12, 3, 0.2, 25.0),
    0.9,
    0.95,
    0.01,
    "judge",
    habits=(Habit(SkillName("uv"), 60.0, 5.0),),
    left_recording=0.25,
    drawn_by="gpu in 3 of 3 steps",
)


@pytest.fixture
def three(home: Path) -> Path:
    """A home with three versions: the first retired, the second serving, the third not yet
    proven.
    """
    taught = turn(new_session_id())
    record(home, taught)
    with store(home) as database:
        for _ in range(2):
            SqlGenerations(database).publish([], "as the turn says")
        policies, batch = SqlPolicies(database), SqlBatches(database).open_batch(0, [taught.id])
        policies.publish(
            Weights("embedded", "policies/1"),
            parent=0,
            base="smol",
            batch=batch,
            steps=4,
            note="first",
        )
        policies.promote(1)
        policies.publish(
            Weights("embedded", "policies/2"), parent=1, base="smol", absorbed=[SkillName("a")]
        )
        policies.promote(2, "", PASSED)
        policies.publish(
            Weights("embedded", "policies/3"),
            parent=2,
            base="smol",
            note="esc \x1b[31m " + "long " * 40,
        )
    return home


def serving(home: Path) -> Serving:
    with store(home) as database:
        return SqlPolicies(database).serving()


def test_nothing_trained_is_said_and_makes_no_database(home: Path) -> None:
    assert (
        metaclaw("policy", "list").out == "Nothing was trained yet; the untrained model serves.\n"
    )
    assert metaclaw("policy", "list", "--json").facts == {
        "policy_version": 0,
        "versions": [],
    }
    assert metaclaw("policy", "show") == Done(
        0, "Nothing was trained yet; the untrained model serves.\n", ""
    )
    for shown in (("show", "--json"), ("show", "0", "--json")):
        assert metaclaw("policy", *shown).facts == {"version": 0, "state": "serving", "turns": []}
    for command in (("show", "1"), ("promote", "1"), ("rollback",)):
        done = metaclaw("policy", *command)
        assert (done.code, done.out) == (1, "")
        assert "the untrained model serves" in done.err
    assert not home.exists()


@pytest.mark.usefixtures("three")
def test_versions_are_listed_newest_first() -> None:
    lines = metaclaw("policy", "list").out.splitlines()
    assert lines[0].split() == ["VERSION", "STATE", "FROM", "STEPS", "GENERATION", "MADE", "WHY"]
    assert [line.split()[:3] for line in lines[1:]] == [
        ["3", "candidate", "2"],
        ["2", "serving", "1"],
        ["1", "retired", "0"],
    ]
    assert "\x1b" not in lines[1]
    assert "not worse; the paired test favours it" in lines[2]
    facts = metaclaw("policy", "list", "--limit", "2", "--json").facts
    assert (facts["policy_version"], [one["version"] for one in facts["versions"]]) == (2, [3, 2])
    assert metaclaw("policy", "list", "--limit", "0").code == 2


@pytest.mark.usefixtures("three")
def test_a_version_is_shown_with_what_taught_it_and_what_it_proved() -> None:
    out = metaclaw("policy", "show").out
    for words in (
        "version 2, serving",
        "trained from  version 1",
        "policies/2 (embedded)",
        "absorbed      a",
        "gate          passed",
        "the paired test favours it",
        "12 better and 3 worse of 40 pairs, gain +0.200, evidence against chance 25 : 1",
        "90.0% → 95.0%",
        "0.01 nats a token",
        "25% of answers left the recorded tool calls",
        "gpu in 3 of 3 steps",
        "uv is broken by 5 of 100 answers, before by 60",
    ):
        assert words in out
    assert out.count("the paired test favours it") == 1
    first = metaclaw("policy", "show", "1").out
    assert "1 turn, with skills of generation 2" in first
    assert "changed by    4 steps" in first
    assert "gate          not finished yet" in metaclaw("policy", "show", "3").out
    facts = metaclaw("policy", "show", "1", "--json").facts
    assert (
        facts["state"],
        facts["parent"],
        facts["batch"],
        len(facts["turns"]),
        facts["report"],
    ) == ("retired", 0, 1, 1, None)
    assert "there is no version 9; metaclaw policy list" in metaclaw("policy", "show", "9").err
    assert metaclaw("policy", "show", "0") == Done(
        0, "version 0, retired: the untrained model\n", ""
    )
    assert metaclaw("policy", "show", "two").code == 2


def test_without_a_proxy_one_goes_back_and_forth_in_the_store(three: Path) -> None:
    assert metaclaw("policy", "rollback").out == "Version 1 serves.\n"
    assert serving(three).version == 1
    assert metaclaw("policy", "rollback", "0", "--json").facts == {
        "policy_version": 0,
        "rolled_back": [1],
    }
    nothing = metaclaw("policy", "rollback")
    assert (nothing.code, nothing.err) == (
        1,
        "metaclaw: the untrained model serves; there is nothing to roll back\n",
    )
    assert metaclaw("policy", "promote", "3").out == "Version 3 serves.\n"
    assert "version 3 serves already" in metaclaw("policy", "promote", "3").err
    assert metaclaw("policy", "rollback", "0").out == "The untrained model serves.\n"


def test_a_proxy_that_is_starting_is_not_gone_around(three: Path) -> None:
    with acquire(three):
        done = metaclaw("policy", "rollback")
    assert (done.code, "is starting" in done.err) == (1, True)
    assert serving(three).version == 2


def test_training_needs_a_running_proxy_and_says_so() -> None:
    done = metaclaw("policy", "train")
    assert (done.code, done.out) == (1, "")
    assert "metaclaw start --detach" in done.err


def test_training_waits_for_verdicts_only_while_their_number_falls(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "_LOOK_S", 0.01)
    monkeypatch.setattr(policy, "_JUDGING_S", 0.1)
    answers: dict[str, tuple[int, dict[str, Any]]] = {
        "GET /api/status": (200, {"learning": {"pending": {"sessions": 2, "turns": 0}}}),
        "POST /api/policy/train": (
            200,
            {"started": True, "turns": 12, "given_back": 0, "rejections": {}},
        ),
    }
    with scripted(home, answers) as asked:
        assert "Training begins with 12 turns" in metaclaw("policy", "train").out
    lines = [one.line.rpartition("/")[2] for one in asked]
    assert len(lines) > 3
    assert lines == ["status"] * (len(lines) - 1) + ["train"]


class _Course(dict[str, tuple[int, dict[str, Any]]]):
    """Answers of a proxy that makes and tests a version: each question about the policy finds the
    run further on.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "GET /api/status": (200, {"learning": {"pending": None}}),
                "POST /api/policy/train": (
                    200,
                    {"started": True, "turns": 12, "given_back": 0, "rejections": {}},
                ),
            }
        )
        states = [
            "preparing a run",
            "training",
            "testing the new version",
            "checking which skills the new weights have absorbed",
        ]
        versions = [None, None, "candidate", "serving"]
        self._left = list(zip(states, versions, strict=True))

    def get(self, line: str, default: Any = None) -> Any:
        if line != "GET /api/policy":
            return super().get(line, default)
        state, version = self._left.pop(0) if len(self._left) > 1 else self._left[0]
        return 200, {
            "training": {"state": state, "paused_reason": None},
            "versions": [] if version is None else [{"version": 1, "state": version}],
        }


def test_waiting_for_training_outlasts_its_preparation_and_its_test(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "_LOOK_S", 0.01)
    with scripted(home, _Course()):
        assert (
            "Version 1 is serving; metaclaw policy show 1"
            in metaclaw("policy", "train", "--wait").out
        )


def test_a_running_proxy_is_asked_and_its_answer_told(home: Path) -> None:
    answers: dict[str, tuple[int, dict[str, Any]]] = {
        "GET /api/status": (200, {"learning": {"pending": None}}),
        "POST /api/policy/train": (
            200,
            {"started": True, "turns": 12, "given_back": 0, "rejections": {}},
        ),
        "POST /api/policy/promote": (200, {"promoted": 3, "policy_version": 3}),
        "POST /api/policy/rollback": (200, {"policy_version": 0, "rolled_back": [3]}),
    }
    with scripted(home, answers) as asked:
        assert "Training begins with 12 turns" in metaclaw("policy", "train").out
        assert metaclaw("policy", "promote", "3").out == "Version 3 serves.\n"
        assert metaclaw("policy", "rollback").out == "The untrained model serves.\n"
        assert metaclaw("policy", "rollback", "0", "--json").facts["rolled_back"] == [3]
    assert [(one.line.rpartition("/")[2], one.said) for one in asked] == [
        ("status", None),
        ("train", None),
        ("promote", {"version": 3}),
        ("rollback", {}),
        ("rollback", {"version": 0}),
    ]


def test_what_the_proxy_refuses_is_told_in_its_words(home: Path) -> None:
    refused = (409, {"error": {"message": "version 3 serves already"}})
    rejections = {"no verdict": 4, "side turn": 2}
    answers: dict[str, tuple[int, dict[str, Any]]] = {
        "GET /api/status": (200, {"learning": {"pending": None}}),
        "POST /api/policy/promote": refused,
        "POST /api/policy/train": (
            200,
            {"started": False, "turns": 0, "batch_turns": 32, "rejections": rejections},
        ),
    }
    with scripted(home, answers):
        assert metaclaw("policy", "promote", "3").err == "metaclaw: version 3 serves already\n"
        train, as_json = metaclaw("policy", "train"), metaclaw("policy", "train", "--json")
    assert (train.code, train.out.splitlines()[0][:65]) == (
        1,
        "No turn may train now. Set aside: 4 no verdict, 2 side turn. The ",
    )
    assert "when the session ends: metaclaw sessions end --all" in train.out
    assert (as_json.code, as_json.facts["rejections"]) == (1, rejections)


def test_going_back_costs_less_than_a_second(home: Path) -> None:
    """The command's own processor time, which a busy machine does not change; the proxy's part is
    measured where it is real.
    """
    with scripted(
        home, {"POST /api/policy/rollback": (200, {"policy_version": 1, "rolled_back": [2]})}
    ):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = program("policy", "rollback", "--json")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.facts["policy_version"] == 1
    assert after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime < 1.0
