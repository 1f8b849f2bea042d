"""The benchmark of planted secrets: it can fail, its secrets are many and different, and the goals
hold on a sample.
"""

import json
import random
import subprocess
import sys
from pathlib import Path

from benchmarks.secrets import step_with, survives, words_of
from benchmarks.secrets_ordinary import ordinary
from benchmarks.secrets_planted import KINDS, KNOWN, Planted, plant
from metaclaw.privacy import Redactor

ROOT = Path(__file__).parents[2]


def test_there_are_at_least_thirty_kinds_and_every_text_holds_its_secret() -> None:
    rng = random.Random(5)
    assert len(KINDS) >= 30
    for kind in (*KINDS, KNOWN):
        planted = plant(rng, kind)
        disguised = planted.carrier in (
            "concatenated",
            "wrapped",
            "percent-encoded",
            "escaped",
            "JSON",
            "JSON in JSON",
            "YAML",
            "plain string",
            "Python",
        )
        assert disguised or all(hidden in planted.text for hidden in planted.hidden), planted


def test_the_same_seed_plants_the_same_secrets() -> None:
    assert plant(random.Random(3), "jwt") == plant(random.Random(3), "jwt")
    assert plant(random.Random(3), "jwt") != plant(random.Random(4), "jwt")


def test_a_survivor_is_noticed_also_in_part() -> None:
    planted = Planted("x", "y", "", ("abcdefghijklmnopqrst",))
    assert survives(planted, "...efghijklmn...")
    assert not survives(planted, "...efghijklm ...")
    assert survives(Planted("x", "y", "", ("short1",)), "a short1 b")


def test_an_unredacted_step_would_be_noticed_wherever_the_secret_is() -> None:
    rng = random.Random(1)
    planted = plant(rng, "github classic")
    for place in ("task", "answer", "arguments", "result", "said after", "two parts"):
        assert survives(planted, words_of(step_with(planted, place, rng)))


def test_the_goals_hold_on_a_sample() -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.secrets",
        "--seed",
        "11",
        "--count",
        "315",
        "--json",
        "--quick",
    ]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    numbers = json.loads(done.stdout)
    assert numbers["survived"] == 0, numbers["survivors"]
    assert numbers["planted"] == 315


def test_ordinary_text_is_left_alone() -> None:
    redactor = Redactor()
    for name, text in ordinary(1, library_chars=0).items():
        found = redactor.text(text).found
        assert len(found) <= 1, (name, [text[one.start : one.end] for one in found])
