"""The slow loop on the real program: turns become weights, which are proven, served, and taken
back.
"""

import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from metaclaw.engine import MODEL_ID
from metaclaw.engine.convert import ensure_model
from tests.support.program import Program
from tests.support.story import ANIMALS, ask, commanded, said
from tests.support.story import PATTERN as MINIATURE_PATTERN
from tests.support.tiny import make_speaking_model

pytestmark = pytest.mark.slow

IS_REAL = os.environ.get("METACLAW_TEST_MODEL") == "135m"
"""`make test-training` tells the story with the model that people use; elsewhere a real model in
miniature must do.
"""
POLICY = """
[policy]
mode = "rl"
lora_rank = 8
learning_rate = {rate}
batch_turns = 8
group_size = 16
prompts_per_step = {prompts}
steps = {steps}
max_new_tokens = 8
held_out_share = 0.4
golden_margin = 1.0
kl_limit = 100.0
rehearsal = 0.0
{base}

[engine]
threads = {threads}
"""
PATTERN = r"^\W*[A-Z][a-z]+ are\b" if IS_REAL else MINIATURE_PATTERN
SKILL = """---
name: animals
description: When asked to describe an animal
check: 'pattern: {pattern}'
---
Begin every answer with the animal and the word are.
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    folder = tmp_path_factory.mktemp("slow")
    home = folder / "home"
    (home / "skills" / "animals").mkdir(parents=True)
    (home / "skills" / "animals" / "SKILL.md").write_text(SKILL.format(pattern=PATTERN))
    if IS_REAL:
        _put_real_model(home)
        config = POLICY.format(rate=0.002, steps=3, prompts=8, base="", threads=0)
    else:
        model = make_speaking_model(folder / "miniature")
        config = POLICY.format(
            rate=0.004, steps=24, prompts=4, base=f'base_model = "{model}"', threads=1
        )
    running = Program(home, config).start()
    running.wait_for(
        "/api/status", lambda status: status["engine"]["state"] == "ready", within_s=120
    )
    yield running
    assert running.stop() == 0


def _put_real_model(home: Path) -> None:
    root = Path(
        os.environ.get("METACLAW_TEST_CACHE") or Path(__file__).resolve().parents[2] / ".cache"
    )
    converted = ensure_model(root / "engine" / MODEL_ID, lambda share: None)
    shutil.copytree(converted, home / "models" / MODEL_ID, copy_function=os.symlink)


def share(
    program: Program, *seeds: int, animals: Sequence[str] = ANIMALS, ends: bool = True
) -> float:
    """How many answers follow the rule."""
    texts = [
        said(ask(program, animal, seed, ends=ends)).strip() for seed in seeds for animal in animals
    ]
    return sum(re.search(PATTERN, text) is not None for text in texts) / len(texts)


def miniature_share(program: Program, first_seed: int) -> float:
    """The share of a trained miniature, which is about a half, to within 0.1. With one seed it says
    nearly the same to all animals, so only other seeds make other answers."""
    return share(program, *range(first_seed, first_seed + 150), animals=ANIMALS[:1], ends=False)


def serving(program: Program) -> Any:
    return program.get("/api/policy")


def wait_until_served(program: Program, within_s: float) -> int:
    """Until trained weights serve; their version. A miniature may learn to say one thing to
    everything, which the gate refuses: then it learns on from more turns. Asked seldom: on two
    cores every question costs the trainer."""
    deadline, seeds = time.monotonic() + within_s, iter((107, 207, 307))
    refused = 0
    while (version := serving(program)["policy_version"]) == 0:
        versions = serving(program)["versions"]
        assert time.monotonic() < deadline, (versions, program.get("/api/status")["training"])
        if sum(one["state"] == "rejected" for one in versions) > refused:
            refused += 1
            share(program, next(seeds))
        time.sleep(1)
    return int(version)


def test_turns_become_weights_that_serve_and_can_be_taken_back(program: Program) -> None:
    # Twice, so that there are enough prompts that are only ever there to prove something.
    before = share(program, 1, 7)
    version = wait_until_served(program, 1500)
    answer = ask(program, "mice", 2)
    assert answer.headers["x-metaclaw-policy"] == str(version)
    assert (
        program.get(f"/api/turns/{answer.headers['x-metaclaw-turn']}")["policy_version"] == version
    )
    if IS_REAL:
        assert share(program, 3, 13, 23) >= before + 0.1
    else:  # a quarter of the untrained miniature's answers follow the rule by chance
        assert miniature_share(program, 8_000) >= 0.34

    assert commanded(program, "rollback")["policy_version"] == 0
    assert ask(program, "moles", 4).headers["x-metaclaw-policy"] == "0"
    assert commanded(program, "promote", str(version))["policy_version"] == version
    assert ask(program, "moles", 5).headers["x-metaclaw-policy"] == str(version)


@pytest.mark.nightly  # some miniatures learn to need the skill: how long it takes is chance
def test_a_skill_the_weights_have_absorbed_leaves_their_prompts_and_comes_back_with_older_weights(
    program: Program,
) -> None:
    if IS_REAL:
        pytest.skip("so few steps do not teach the real model to do without the skill")
    version = wait_until_absorbed(program, 1500)
    assert told(program, "hares", 8) == (version, [])
    # What was measured on recorded prompts holds for new ones: the rule is followed though nobody
    # tells it.
    assert miniature_share(program, 9_000) >= 0.34
    commanded(program, "rollback", "0")
    assert told(program, "hares", 10) == ("0", ["animals"])
    commanded(program, "promote", version)
    assert told(program, "hares", 11) == (version, [])


_NEEDED_AFTER_S = 180


def wait_until_absorbed(program: Program, within_s: float) -> str:
    """Wait until the serving version does without the skill; its number. More prompts come in
    meanwhile. Some miniatures learn to need the skill, and so do all versions trained from them:
    after a while training begins with the untrained model again."""
    deadline, seeds = time.monotonic() + within_s, count(100)
    begun = time.monotonic()
    while not (version := serving(program)["policy_version"]) or serving_version(program)[
        "absorbed"
    ] != ["animals"]:
        assert time.monotonic() < deadline, (
            serving(program),
            program.get("/api/status")["training"],
        )
        if version and time.monotonic() > begun + _NEEDED_AFTER_S:
            commanded(program, "rollback", "0")
            begun = time.monotonic()
        ask(program, ANIMALS[next(seeds) % len(ANIMALS)], next(seeds))
        time.sleep(1)
    return str(version)


def serving_version(program: Program) -> Any:
    policy = serving(program)
    return next(one for one in policy["versions"] if one["version"] == policy["policy_version"])


def told(program: Program, animal: str, seed: int) -> tuple[str, list[str]]:
    """Which version answers, and which skills it is told."""
    answer = ask(program, animal, seed)
    turn = program.get(f"/api/turns/{answer.headers['x-metaclaw-turn']}")
    return answer.headers["x-metaclaw-policy"], turn["skills"]


def test_after_a_kill_the_program_serves_what_it_served(program: Program) -> None:
    version = serving(program)["policy_version"]
    assert version > 0
    program.kill()
    program.start()
    program.wait_for(
        "/api/policy", lambda policy: policy["policy_version"] == version, within_s=120
    )
    assert ask(program, "wolves", 6).headers["x-metaclaw-policy"] == str(version)


def test_weights_that_were_trained_on_a_forgotten_session_are_deleted_and_cannot_be_promoted(
    program: Program,
) -> None:
    version = serving(program)["policy_version"]
    taught_by = program.get(f"/api/policy/{version}")["turns"]
    session = program.get(f"/api/turns/{taught_by[0]}")["session"]
    assert list((program.home / "policies").glob(f"{version:06d}"))
    report = program.command("sessions", "forget", session, "--yes", "--json")
    assert report.returncode == 0, report.stderr
    assert version in json.loads(report.stdout)["versions"]
    assert not list((program.home / "policies").glob(f"{version:06d}"))
    assert serving(program)["policy_version"] not in json.loads(report.stdout)["versions"]
    assert ask(program, "foxes", 12).headers["x-metaclaw-policy"] != str(version)
    refused = program.command("policy", "promote", str(version))
    assert refused.returncode != 0
    assert "trained on a session that was forgotten" in refused.stderr
    program.kill()
    program.start()
    assert serving(program)["policy_version"] not in json.loads(report.stdout)["versions"]
