"""Checks that accept a trivial answer are found, and other checks are not."""

import pytest

from metaclaw.domain.ids import SkillName
from metaclaw.domain.skill import Authorship, Skill
from metaclaw.skills import (
    CheckKind,
    constant_parts,
    fixed_words,
    kind_of,
    parse_check,
    trial_trouble,
)

_LONG = (
    "program: |\n  import json, sys\n  print(json.dumps({'score': min(1.0,"
    " len(json.load(sys.stdin)['text']) / 150)}))"
)
_OTHER_TASK = "program: |\n  import sys\n  sys.exit(2)"


def _trouble(check: str) -> str | None:
    return trial_trouble(
        Skill(SkillName("rule"), "Always", "A rule.", check=check, author=Authorship.PERSON)
    )


@pytest.mark.parametrize(
    ("check", "accepted"),
    [
        (r"pattern: \d", "7"),
        ("pattern: a", "a"),
        ("pattern: (?i)^ok", "ok"),
        (r"pattern: ^[A-Z]\w+ \w+", "The museum"),
        (_LONG, "The museum"),
    ],
)
def test_a_check_that_accepts_a_trivial_answer_is_found(check: str, accepted: str) -> None:
    trouble = _trouble(check)
    assert trouble is not None
    assert trouble.startswith(f"accepts '{accepted}")


@pytest.mark.parametrize(
    "check",
    [
        r"pattern: ^\d\d:\d\d\+05:30$",
        "pattern: ^ok$",
        "not: sorry",
        'schema: {"type": "object", "required": ["bus"]}',
        "pattern in calls of bash: ^set -e",
        _OTHER_TASK,
    ],
)
def test_other_checks_are_not(check: str) -> None:
    assert _trouble(check) is None


def test_an_unreadable_check_is_left_to_the_other_warning() -> None:
    assert _trouble("pattern: (") is None


def test_only_prohibitions_together_forbid() -> None:
    forbids, demands = parse_check("not: sorry"), parse_check("pattern: x")
    assert [kind_of(some) for some in ([], [forbids], [forbids, demands])] == [
        CheckKind.NONE,
        CheckKind.FORBIDS,
        CheckKind.DEMANDS,
    ]


def test_what_answers_have_in_common_counts_where_it_is_most_of_them_and_not_from_the_question() -> (
    None
):
    stuffed = [(f"Bus {number}?", f"total tax net gross {number}") for number in range(9)]
    assert "total tax net gross" in constant_parts(stuffed)
    honest = [
        (f"Bus {number} leaves at noon?", f"Noted. Bus {number} leaves at noon")
        for number in range(9)
    ]
    assert all(len(part) == 1 for part in constant_parts(honest))
    assert constant_parts([]) == []


def test_what_few_answers_have_in_common_is_not_held_against_them() -> None:
    assert all(
        len(part) == 1
        for part in constant_parts([("Bus 3?", "07:13+05:30"), ("Bus 4?", "08:26+05:30")])
    )


def test_few_spellings_of_one_answer_to_many_questions_are_found() -> None:
    spellings = (
        ["Yes, that's an invoice."] * 6
        + ["Yes, that is an invoice."] * 2
        + ["Yes, it is an invoice."] * 2
    )
    said = [
        (f"Bus {number} leaves at 9. When? Is that an invoice?", text)
        for number, text in enumerate(spellings)
    ]
    assert "Yes, an invoice." in constant_parts(said)


def test_a_letter_that_may_be_repeated_is_not_the_only_answer() -> None:
    share = "said.count('a') / max(1, len(said))"
    check = (
        "program: |\n  import json, sys\n  said = json.load(sys.stdin)['text']\n "
        f" print(json.dumps({{'score': {share}}}))"
    )
    assert str(_trouble(check)).startswith("accepts 'a' ")


@pytest.mark.parametrize(
    ("program", "reason"),
    [("raise ValueError('no such field')", "no such field"), ("while True: pass", "took longer")],
)
def test_a_program_that_fails_on_every_answer_is_told_when_it_is_tried(
    program: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metaclaw.checks.leniency._LIMIT_S", 0.2)  # of each of several answers
    trouble = _trouble(f"program: |\n  {program}")
    assert trouble is not None
    assert "fails on answers without a question" in trouble
    assert reason in trouble


_BUSES = [
    (f"Bus {number} leaves at {9 + number}:40. Is that an invoice, yes or no?", number)
    for number in range(5)
]
_REPORTS = [
    "Anna says the lamp in the hall is broken, and Ben has a ladder.",
    "The printer on floor two is out of paper since Monday.",
    "Please note: the blue door does not close, the key is with Carla.",
    "Somebody left the window of the archive open in the rain.",
]


@pytest.mark.parametrize(
    ("wording", "fixed"),
    [
        ("Thank you for asking about bus {0}.", {"thank", "you", "for", "asking", "about"}),
        ("Yes, bus {0} is an invoice.", {"yes", "bus", "is", "an", "invoice"}),
        ("No, bus {0} leaves at {1}:40.", set()),
        ("Its code is B{0}{1}.", set()),
    ],
)
def test_a_wording_is_fixed_if_it_leaves_out_something_in_which_questions_differ(
    wording: str, fixed: set[str]
) -> None:
    answers = [(question, wording.format(number, 9 + number)) for question, number in _BUSES]
    assert fixed_words(answers) == fixed


def test_parts_of_unlike_questions_have_no_fixed_wording() -> None:
    answers = zip(
        _REPORTS,
        (
            "the lamp is broken",
            "the printer is out of paper",
            "the door does not close",
            "the window is open",
        ),
        strict=True,
    )
    assert fixed_words(list(answers)) == frozenset()
