"""How somebody who knows a generated benchmark judges: by what the person said next, or by trying a
new answer.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from metaclaw_bench.json_types import Json
from metaclaw_bench.questions import KEEP_IN_MIND
from metaclaw_bench.workdays.model import Item

# A record stands between two lines with a mark that it cannot hold itself.
_RECORD: Final = re.compile(
    r"^(?P<mark>[0-9a-f]{16}) begin\n(?P<record>.*)\n(?P=mark) end$", re.DOTALL | re.MULTILINE
)
_SAID_NEXT: Final = "## What the person said next"
_REQUIREMENT: Final = re.compile(
    r"== The requirement\n(?P<wanted>.*?)\n\n== The answer\n(?P<answer>.*)", re.DOTALL
)
_RANKING: Final = re.compile(
    r"== The requirement\n(?P<wanted>.*?)\n\n(?P<answers>== Answer 1\n.*)", re.DOTALL
)
_EACH: Final = re.compile(r"^== Answer \d+\n", re.MULTILINE)
_RULES: Final = "Rules that hold for the answer:"
_NO_BOX: Final = "did not include a \\bbox"
_SCORES: Final = {"pass": 1, "fail": -1, "unknown": 0}


def judged(
    prompt: str,
    items: Mapping[str, Item],
    tried: Callable[[Sequence[Item], str], bool],
    worth: Callable[[Sequence[Item], str], float] | None = None,
) -> dict[str, Json]:
    """The verdict on what a judge is asked, or its ranking of several answers.

    `items` are known by their bare questions; `tried` says whether an answer is right for any of
    those that can be meant, `worth` how much of it is, for who can tell."""
    record = record_in(prompt)
    ranking = _RANKING.search(record)
    if ranking is not None:
        meant = _meant(ranking["wanted"], items)
        answers = [answer.strip("\n") for answer in _EACH.split(ranking["answers"])[1:]]
        points = [(worth or tried)(meant, answer) for answer in answers]
        places = sorted(set(points), reverse=True)
        return {
            "ranks": [1 + places.index(one) for one in points],
            "reason": "compared with what was asked",
        }
    trial = _REQUIREMENT.search(record)
    if trial is None:
        _, found, said = record.rpartition(_SAID_NEXT)
        is_wrong = bool(found) and (KEEP_IN_MIND in said or _NO_BOX in said)
        return (
            _verdict("fail", "the person says what was wrong with it")
            if is_wrong
            else _verdict("pass", "the work went on")
        )
    meant = _meant(trial["wanted"], items)
    if not meant:
        return _verdict("unknown", "this item is not known")
    return _verdict(
        "pass" if tried(meant, trial["answer"]) else "fail", "compared with what was asked for"
    )


def _meant(text: str, items: Mapping[str, Item]) -> list[Item]:
    """The items that a requirement can be about. Rules that stand behind the task may quote other
    tasks as examples.
    """
    wanted = bare(text.partition(_RULES)[0])
    return [
        item for question, item in items.items() if question in wanted or _complains(item, wanted)
    ]


def record_in(prompt: str) -> str:
    """What a judge is shown, without the rules it is told before and after."""
    found = _RECORD.search(prompt)
    return prompt if found is None else found["record"]


def bare(text: str) -> str:
    """A text without what rendering does to it: headings moved aside, lines wrapped."""
    return " ".join(text.split())


def _complains(item: Item, words: str) -> bool:
    feedback = item.round.feedback
    return any(
        bare(text) in words for text in (feedback.incorrect, *feedback.options.values()) if text
    )


def _verdict(outcome: str, reason: str) -> dict[str, Json]:
    return {"outcome": outcome, "score": _SCORES[outcome], "reason": reason}
