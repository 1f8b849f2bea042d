"""The checkers of a generated benchmark as a judge: it says of an answer what they say, and of a
skill what the person said.

It stands behind the proxy where a real model answers and nobody else could say how good an answer
is. It is not a model. What it writes as a skill are the person's own words from the evidence it is
shown: it tells nothing that only the benchmark knows."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from metaclaw_bench.agent.direct import files_in
from metaclaw_bench.json_types import Json
from metaclaw_bench.questions import KEEP_IN_MIND
from metaclaw_bench.simulated.model import Prompt, Purpose, Said, Thought
from metaclaw_bench.simulated.verdicts import bare, judged
from metaclaw_bench.workdays.marking import score
from metaclaw_bench.workdays.model import Answer, Files, Item, Marks

_CALL: Final = re.compile(r"^\[call(?:s|ed) write with (\{.*\})\]$", re.MULTILINE)
_MOST_SKILLS: Final = 3
_TASK_CHARS: Final = 300


class RuleJudge:
    """A simulated model that judges and writes skills. `before` is the workspace a day begins with,
    by question.
    """

    def __init__(self, items: Sequence[Item], before: Mapping[str, Files]) -> None:
        self._items = {bare(item.round.question): item for item in items}
        self._before = before

    def answer(self, prompt: Prompt) -> Thought:
        """What it says in the role it is asked in; it has no other."""
        match prompt.purpose:
            case Purpose.JUDGE:
                return Said(json.dumps(judged(prompt.text, self._items, self._tried, self._worth)))
            case Purpose.EVOLVE:
                return Said(
                    json.dumps({"skills": list(self._repeated(prompt.text))[:_MOST_SKILLS]})
                )
            case _:
                return Said("Understood.")

    def _tried(self, meant: Sequence[Item], answer: str) -> bool:
        return any(marks.passed for marks in self._marks(meant, answer))

    def _worth(self, meant: Sequence[Item], answer: str) -> float:
        """The share of what was asked that an answer does."""
        return max((marks.partial for marks in self._marks(meant, answer)), default=0.0)

    def _marks(self, meant: Sequence[Item], answer: str) -> list[Marks]:
        text, files = files_in(answer)
        done = Answer(text, {**files, **_written(answer)})
        return [score(item, done, self._before.get(item.round.question, {})) for item in meant]

    def _repeated(self, prompt: str) -> Iterator[Json]:
        words = bare(prompt)
        for question, item in self._items.items():
            told = [
                text
                for text in (item.round.feedback.incorrect, *item.round.feedback.options.values())
                if bare(text) in words
            ]
            if question in words and told:
                yield _skill(
                    question, [bare(text.replace(KEEP_IN_MIND, "")) for text in told if text]
                )


def _written(answer: str) -> dict[str, str]:
    """The files that an answer's calls write."""
    files: dict[str, str] = {}
    for call in _CALL.finditer(answer):
        try:
            given = json.loads(call[1])
        except ValueError:
            continue
        if (
            isinstance(given, dict)
            and isinstance(given.get("path"), str)
            and isinstance(given.get("content"), str)
        ):
            files[given["path"]] = given["content"]
    return files


def _skill(question: str, told: Sequence[str]) -> Json:
    lines = [*told, "Look at the finished work once more before saying that it is done."]
    body = "\n".join(f"{number}. {line}" for number, line in enumerate(lines, 1))
    return {
        "name": f"said-{hashlib.sha256(body.encode()).hexdigest()[:8]}",
        "trigger": f"When a task is like this one: {question[:_TASK_CHARS]}",
        "body": f"{body}\nAnti-pattern: to do it as before, although it was said how it is wanted.",
        "category": "house",
        "check": None,
        "replaces": None,
    }
