"""The story of a policy in miniature, told to the real program: animals are asked about, and a
skill's check says what is good.
"""

import json
import re
import time
from collections.abc import Callable
from typing import Any, Final

import httpx

from tests.support.program import Program

POLICY: Final = """
mode = "rl"
lora_rank = 8
learning_rate = 0.005
batch_turns = 8
group_size = 16
prompts_per_step = 4
steps = 16
rehearsal = 0.0
max_new_tokens = 8
held_out_share = 0.4
golden_margin = 1.0
kl_limit = 100.0
"""
"""Keys of `[policy]` with which it is told quickly."""
NOBODY_WRITES: Final = """
[judge]
max_share = 0.0

[evolver]
min_failures = 1000
"""
PATTERN: Final = "^(?=[a-l]{4}$)[b-l]*a([b-l]*a[b-l]*a)?[b-l]*$"
"""One a or three. The miniature that speaks answers with four letters from a to l: one answer in
four follows the rule before it is trained. Any other letter in an answer that follows it breaks it,
so that the gate believes the check even if the miniature, which does not understand its questions,
has one answer for all of them."""
SKILL: Final = f"""---
name: animals
description: When asked to describe an animal
check: 'pattern: {PATTERN}'
---
Every answer has one a or three.
"""
ANIMALS: Final = [
    *("cats", "dogs", "owls", "bats", "ants", "bees", "cows", "pigs", "hens", "rats", "elks"),
    *("newts", "toads", "frogs", "crabs", "mules", "goats", "swans", "storks", "geese", "ducks"),
]


def prepare(program: Program) -> Program:
    """Put the skill there."""
    folder = program.home / "skills" / "animals"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(SKILL)
    return program


def question(animal: str) -> str:
    return f"Describe the animal called {animal}."


def ask(program: Program, animal: str, seed: int, *, ends: bool = True) -> httpx.Response:
    """One answer, in a session of its own; a turn whose session has not ended does not train. A
    scripted provider answers `echo` with the question itself."""
    body = {
        "model": "echo",
        "messages": [{"role": "user", "content": question(animal)}],
        "max_tokens": 8,
        "temperature": 1,
    }
    headers = (
        program.auth
        | {"X-Session-Id": f"{animal}-{seed}"}
        | ({"X-Session-Done": "true"} if ends else {})
    )
    answer = httpx.post(
        f"{program.url}/v1/chat/completions",
        json=body | {"seed": seed},
        headers=headers,
        timeout=180,
    )
    assert answer.status_code == 200, answer.text
    return answer


def said(answer: httpx.Response) -> str:
    return str(answer.json()["choices"][0]["message"]["content"])


def recorded(program: Program, answer: httpx.Response) -> Any:
    return program.get(f"/api/turns/{answer.headers['x-metaclaw-turn']}")


def is_ours(program: Program, answer: httpx.Response) -> bool:
    """Whether the policy's own provider answered."""
    return bool(recorded(program, answer)["provider"] == "policy")


def ask_about_all(program: Program, seed: int) -> None:
    """A turn about each animal. While the policy's server compiles it answers nobody, and somebody
    else does.
    """
    answers = [ask(program, animal, seed) for animal in ANIMALS]
    assert sum(is_ours(program, answer) for answer in answers) > len(answers) / 2


def share(program: Program, first_seed: int) -> float:
    """The share of the policy's answers that follow the rule, to within 0.1. With one seed a
    miniature says nearly the same to all animals, so only other seeds make other answers."""
    answers = [
        ask(program, ANIMALS[0], seed, ends=False) for seed in range(first_seed, first_seed + 100)
    ]
    ours = [answer for answer in answers if is_ours(program, answer)]
    assert len(ours) > len(answers) / 2
    return sum(re.search(PATTERN, said(answer)) is not None for answer in ours) / len(ours)


def wait_until(wanted: Callable[[], bool], program: Program, within_s: float = 1500) -> None:
    """Asked seldom: on few cores every question costs whoever trains."""
    deadline = time.monotonic() + within_s
    while not wanted():
        assert time.monotonic() < deadline, (
            program.get("/api/status")["training"],
            program.log.read_text()[-4000:],
        )
        time.sleep(0.5)


def judged(program: Program) -> list[int]:
    """The versions on which the gate has ruled."""
    return [
        one["version"]
        for one in program.get("/api/policy")["versions"]
        if one["state"] != "candidate"
    ]


def wait_until_served(program: Program) -> int:
    """Wait until trained weights serve; their version. A miniature may learn to give one answer to
    everything, which the gate refuses: then it learns from more turns."""
    seeds = iter((107, 207, 307))
    refused: set[int] = set()

    def is_served() -> bool:
        if new := set(judged(program)) - refused - {serving(program)}:
            refused.update(new)
            ask_about_all(program, next(seeds))
        return serving(program) > 0

    wait_until(is_served, program)
    return serving(program)


def serving(program: Program) -> int:
    return int(program.get("/api/policy")["policy_version"])


def commanded(program: Program, *arguments: str) -> Any:
    """What `metaclaw policy …` says."""
    done = program.command("policy", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
