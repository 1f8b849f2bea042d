"""A day's questions as the tokens that serving makes of them, answered in one batch and marked.

Persona, the block of the skills that the product's placer would have in the session's prompt by now, the question. What is left out
is the session's history, for which so small a model has no room; so all skills stand in one block, at the end of the system text.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from benchmarks.house_rules.loop import Policy
from benchmarks.workdays.house import House, Session, render
from benchmarks.workdays.turns import Asked, Question, Score, read_answer
from metaclaw.domain.batch import Drawing
from metaclaw.domain.ids import SessionId, SkillName, TurnId
from metaclaw.domain.skill import Skill
from metaclaw.domain.turn import Scope, Stamp
from metaclaw.engine.text import Vocabulary
from metaclaw_bench.workdays.model import Workday

SYSTEM: Final = (
    "You work for an office. Answer with what was asked for, nothing else: letters in a box, or files. Examples:\n"
    "Which of these are fruits? A. plum B. brick C. pear -> \\bbox{A,C}\n"
    "Put this into notes/today.txt: lamp: new. -> FILE notes/today.txt\nlamp: new"
)
EXAMPLES: Final = (
    ("user", "Which of these are tools?\n\nA. cloud\nB. hammer\nC. river\nD. saw\n\nAnswer using \\bbox{X} or \\bbox{X,Y} format."),
    ("assistant", "\\bbox{B,D}"),
    ("user", "Put this into notes/monday.txt: tea: cold."),
    ("assistant", "FILE notes/monday.txt\ntea: cold"),
)
"""An exchange before the question that shows both forms; without it the model has to find out that they are meant."""

_AT_ONCE: Final = 42
"""So many long prompts side by side; more, and runs that share a GPU run out of its memory."""

Prompt = tuple[tuple[int, ...], tuple[SkillName, ...]]
"""The tokens, and the skills that stand in it."""


def questions_of(day: Workday, most: int) -> list[Question]:
    """The first so many questions of a day, each with the workspace that the day begins with."""
    return [
        Question(
            TurnId(f"{day.day.id}-{item.round.id}"),
            SessionId(day.day.session),
            day.number,
            Scope(user=day.user),
            item,
            dict(day.begins_with),
        )
        for item in day.items[:most]
    ]


def batches(questions: Sequence[Question], count: int) -> list[Sequence[Question]]:
    """The questions in order, in so many parts of about the same size."""
    edges = [round(len(questions) * number / count) for number in range(count + 1)]
    parts = [questions[begin:end] for begin, end in pairwise(edges)]
    return [part for part in parts if part]


class Sessions:
    """The sessions that are going on, by id."""

    def __init__(self) -> None:
        self._open: dict[SessionId, Session] = {}

    def place(self, house: House, question: Question) -> tuple[Skill, ...]:
        """The skills in the prompt of this question, the next one of its session."""
        session = self._open.setdefault(question.session, Session(house, question.scope))
        return session.place(question.text)


def shown(question: Question) -> str:
    """What the model gets to read: the question, and the files that it names and does not quote, since there are no tools."""
    named = [(path, text) for path, text in question.before.items() if path in question.text and text.strip() not in question.text]
    return "\n\n".join([question.text, *(f"{path}:\n{text.strip()}" for path, text in named)])


class Desk:
    """Where questions are answered. Without a house no skills are placed."""

    def __init__(
        self,
        policy: Policy,
        vocabulary: Vocabulary,
        score: Score,
        *,
        max_tokens: int,
        max_prompt_tokens: int,
        shows_examples: bool = False,
    ) -> None:
        self._policy, self._vocabulary, self._score = policy, vocabulary, score
        self._max_tokens, self._max_prompt_tokens = max_tokens, max_prompt_tokens
        self._examples = EXAMPLES if shows_examples else ()

    def prompt(self, question: Question, skills: Sequence[Skill]) -> Prompt:
        """The question with these skills; where it would be too long, without the last of them."""
        kept = list(skills)
        while True:
            block = render(kept)
            turns = [("system", SYSTEM + block.text), *self._examples, ("user", shown(question))]
            tokens = tuple(self._vocabulary.render(turns, ""))
            if len(tokens) <= self._max_prompt_tokens or not kept:
                return tokens, block.skills
            kept.pop()

    def ask(self, questions: Sequence[Question], house: House | None, sessions: Sessions, version: int = 0) -> list[Asked]:
        """Every question answered greedily, as the product's own agent asks for it, and marked."""
        if not questions:
            return []
        placed = [sessions.place(house, question) if house else () for question in questions]
        prompts = [self.prompt(question, skills) for question, skills in zip(questions, placed, strict=True)]
        drawing = Drawing(1, self._max_tokens, temperature=0.0)
        drawn = [
            one
            for at in range(0, len(prompts), _AT_ONCE)
            for one in self._policy.sample([p for p, _ in prompts[at : at + _AT_ONCE]], drawing)
        ]
        clock = (house.view.generation, version, house.view.hash) if house else (0, version, "")
        asked = []
        for question, (tokens, skills), (one, *_) in zip(questions, prompts, drawn, strict=True):
            marks = self._score(question.item, read_answer(one.text), question.before)
            asked.append(
                Asked(question, tokens, Stamp(*clock, skills), one.text, one.tokens_T, one.is_whole, marks.passed, marks.score)
            )
        return asked
