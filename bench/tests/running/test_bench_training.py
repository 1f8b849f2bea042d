"""Weights trained between the days of a benchmark, through the real program with a real model in
miniature.

It takes a minute of a processor, and is run nightly: METACLAW_TEST_BENCH_TRAINING=1.
"""

import json
import os
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import anyio
import pytest

from metaclaw_bench.agent import Answered, Asked, Endpoint
from metaclaw_bench.agent.chat import Chat
from metaclaw_bench.conditions import CONDITIONS
from metaclaw_bench.questions import Benchmark, ChoiceCheck, Day, Feedback, Round
from metaclaw_bench.records import EventRecord, RoundRecord, read_records
from metaclaw_bench.running.plan import Embedded, Patience, Plan, Stage
from metaclaw_bench.running.plan import Endpoint as Provider
from metaclaw_bench.running.proxy import Front
from metaclaw_bench.running.runs import Runs
from metaclaw_bench.simulated.model import MODEL, Prompt, Purpose, Said
from metaclaw_bench.simulated.verdicts import record_in
from tests.support.tiny import make_opinionated_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.of_target("nightly", os.environ.get("METACLAW_TEST_BENCH_TRAINING") == "1"),
]

ANIMALS = [
    *("cats", "dogs", "owls", "bats", "ants", "bees", "cows", "pigs", "hens", "rats", "elks"),
    *("newts", "toads", "frogs", "crabs", "mules", "goats", "swans", "storks", "geese", "ducks"),
]
SETTINGS = (
    *(
        "policy.lora_rank=8",
        "policy.learning_rate=0.01",
        "policy.batch_turns=64",
        "policy.group_size=4",
        "policy.steps=2",
    ),
    *(
        "policy.max_new_tokens=8",
        "policy.held_out_share=0.4",
        "policy.golden_margin=1.0",
        "policy.kl_limit=100.0",
    ),
    *("judge.votes=1", "engine.threads=1"),
)
WORDS = "Thank you. From now on, always end with a rhyme."


class Taste:
    """A judge who likes answers with an early letter of the alphabet in them; of what was answered
    before, everything.
    """

    def answer(self, prompt: Prompt) -> Said:
        if prompt.purpose is not Purpose.JUDGE:
            return Said(json.dumps({"skills": []}))
        _, asked, answer = record_in(prompt.text).rpartition("== The answer\n")
        is_liked = not asked or re.search("[a-p]", answer) is not None
        return Said(
            json.dumps(
                {
                    "outcome": "pass" if is_liked else "fail",
                    "score": 1 if is_liked else -1,
                    "reason": "taste",
                }
            )
        )


def day(number: int, animals: list[str]) -> Day:
    check = ChoiceCheck(("A", "B"), frozenset("A"))
    asked = [f"Describe the animal called {name}, number {number}." for name in animals]
    rounds = tuple(
        Round(f"r{at}", question, check, Feedback(WORDS)) for at, question in enumerate(asked)
    )
    return Day(f"day{number:02d}", "", f"animals-{number}", (), rounds, None)


class Plain:
    """An agent that says nothing of its own and asks everything in a session of its own: short
    prompts are quick to learn from.
    """

    def __init__(self, front: Front) -> None:
        self._chat = Chat(
            Endpoint(front.base_url, front.api.key, front.model, max_tokens=8, tries=1)
        )
        self._sessions: Iterator[str] = iter(())

    async def begin(self, day: Day, workspace: Path) -> None:
        self._sessions = (f"{day.session}-{number}" for number in count())

    async def ask(self, text: str, *, closing: bool = False) -> Asked:
        asked = {**self._chat.body([{"role": "user", "content": text}], ()), "temperature": 1.0}
        completion = await self._chat.complete(asked, next(self._sessions), is_last=True)
        return Answered(completion.text, None, 1)

    async def end(self) -> None:
        """Nothing is held."""


def agent(front: Front, stage: Stage) -> Plain:
    return Plain(front)


def test_under_rl_weights_are_trained_between_days_and_serve_the_next_and_no_skill_is_made(
    tmp_path: Path,
) -> None:
    sets = (*SETTINGS, f"policy.base_model={make_opinionated_model(tmp_path / 'miniature')}")
    plan = Plan(
        Benchmark(
            "animals", tmp_path / "nowhere", (day(1, ANIMALS * 2), day(2, ANIMALS[:3])), {}, None
        ),
        CONDITIONS["rl"],
        seed=1,
        provider=Embedded.of(sets),
        agent="plain",
        sets=sets,
        held_out=1,
        strict_hooks=True,
        patience=Patience(calm_s=0.5, most_s=600.0, train_s=1800.0),
        judge=Provider("http://127.0.0.1:9/v1", MODEL, is_simulated=True),
    )
    folder = anyio.run(Runs(tmp_path / "out", agent, make_judge=lambda plan: Taste()).run, plan)
    records = read_records(folder / "rounds.jsonl")
    rounds = [one for one in records if isinstance(one, RoundRecord)]
    assert {one.policy_version for one in rounds if one.phase == "stream"} == {0}
    (served,) = {one.policy_version for one in rounds if one.phase == "held_out"}
    assert served >= 1
    happened = [one for one in records if isinstance(one, EventRecord)]
    assert [(one.kind, one.number, one.day) for one in happened][:1] == [("version", 1, "day01")]
    # Turns that are left may make another version, and that may be refused; a skill or a generation
    # there is not.
    assert {one.kind for one in happened} <= {"version", "version_refused"}
    assert {(one.generation, one.skills) for one in rounds} == {(0, ())}
