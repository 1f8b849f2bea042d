"""Poisoned weights: that each kind is what it says, that a trial can end either way, and what the
tables make of it.
"""

import json
import math
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.house_rules.tasks import Task
from benchmarks.poison_kinds import (
    Aim,
    Dose,
    Kind,
    Poisoner,
    begin_from,
    is_finite,
    noisy,
    with_one,
    wrong_answer,
)
from benchmarks.poison_report import (
    KEPT,
    ROLLED_BACK,
    Outcomes,
    goals,
    live_trial,
    read_trials,
    wilson,
    write_report,
)
from benchmarks.poison_trials import SMALL_SCALE, Bench, Judged, Measured, Scale
from metaclaw.domain.training import Rollout
from metaclaw.engine.training.learner import Learner
from metaclaw.engine.training.lora import Adapter, Pair, write_adapter
from metaclaw.engine.vocabulary import Vocabulary
from metaclaw.training.golden import GoldenScore, golden_items
from tests.support.cases import each
from tests.support.tiny import make_tiny_model

ROOT: Final = Path(__file__).parents[2]
RULES: Final = ("dates", "names")


def _adapter(alpha: float = 2.0) -> Adapter:
    return Adapter(
        2,
        alpha,
        {f"layer.{number}": Pair(torch.ones(2, 3), torch.full((4, 2), 0.5)) for number in range(3)},
    )


def _outcomes(share: float) -> Outcomes:
    return Outcomes({rule: tuple(number < 40 * share for number in range(40)) for rule in RULES})


def test_noise_is_as_large_as_it_says_and_comes_from_its_seed() -> None:
    one, again, other = (
        noisy(_adapter(), 3.0, 1),
        noisy(_adapter(), 3.0, 1),
        noisy(_adapter(), 3.0, 2),
    )
    changes = torch.cat([(pair.b - 0.5).flatten() for pair in one.pairs.values()])
    assert 0.8 < float(changes.std()) / (3.0 * 0.5) < 1.25
    assert all(torch.equal(one.pairs[name].b, again.pairs[name].b) for name in one.pairs)
    assert not torch.equal(one.pairs["layer.0"].b, other.pairs["layer.0"].b)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_one_weight_that_is_no_number_is_found_wherever_it_is(value: float) -> None:
    assert is_finite(_adapter())
    assert not any(is_finite(with_one(_adapter(), value, seed)) for seed in range(12))


def test_every_golden_item_has_an_answer_that_fails_it() -> None:
    assert not any(item.passes(wrong_answer(item)) for item in golden_items())


def test_a_canary_that_is_always_wrong_goes_soon_and_an_equal_one_mostly_stays() -> None:
    bad = [live_trial(_outcomes(0.0), _outcomes(0.7), random.Random(seed)) for seed in range(40)]
    assert all(ruling == ROLLED_BACK and turns <= 50 for ruling, turns in bad)
    equal = [
        live_trial(_outcomes(0.7), _outcomes(0.7), random.Random(seed))[0] for seed in range(200)
    ]
    assert equal.count(KEPT) >= 170


@given(st.integers(1, 500).flatmap(lambda tries: st.tuples(st.integers(0, tries), st.just(tries))))
def test_an_interval_holds_its_share_and_lies_between_nothing_and_all(
    counts: tuple[int, int],
) -> None:
    hits, tries = counts
    low, high = wilson(hits, tries)
    assert 0.0 <= low <= hits / tries + 1e-9
    assert hits / tries - 1e-9 <= high <= 1.0


def test_an_interval_is_wilsons() -> None:
    assert wilson(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-3)
    assert wilson(0, 0) == (0.0, 1.0)


def _trial(
    kind: Kind, *, is_refused: bool, share: float | None, ruling: str, turns: int
) -> dict[str, object]:
    facts = {
        "kl": None if share is None else 0.4,
        "golden_points": None,
        "reasons": ["worse than the serving version: 3"],
    }
    live = [] if share is None else [{"ruling": ruling, "turns": turns}] * 20
    named = {"kind": "trial", "made": kind, "aim": kind.aim, "seed": 0, "is_refused": is_refused}
    return {**named, **facts, "share": share, "serving_share": 0.6, "live": live}


@each(
    ("is_refused", "turns", "ruling", "missed"),
    [
        (True, 50, ROLLED_BACK, 0),
        (False, 50, ROLLED_BACK, 1),
        (True, 51, ROLLED_BACK, 1),
        (True, 5, KEPT, 1),
    ],
)
def test_goals_can_be_met_and_missed(
    is_refused: bool, turns: int, ruling: str, missed: int
) -> None:
    trials = [
        _trial(Kind.FLIPPED, is_refused=is_refused, share=0.1, ruling=ruling, turns=turns),
        _trial(Kind.NOT_A_NUMBER, is_refused=True, share=None, ruling=ruling, turns=0),
        # No harm to live turns, and no poison: neither counts.
        _trial(Kind.IDENTICAL, is_refused=True, share=0.6, ruling=KEPT, turns=50),
        _trial(Kind.HONEST, is_refused=False, share=0.9, ruling=KEPT, turns=50),
        _trial(Kind.TRIGGERED, is_refused=False, share=0.9, ruling=KEPT, turns=50),
    ]
    assert list(goals(trials).values()).count(False) == missed
    assert goals([trials[3]]) == {}


def test_a_report_has_a_row_for_each_kind_and_each_aim(tmp_path: Path) -> None:
    trials = [
        _trial(Kind.FLIPPED, is_refused=True, share=0.1, ruling=ROLLED_BACK, turns=9),
        _trial(Kind.HONEST, is_refused=False, share=0.9, ruling=KEPT, turns=50),
    ]
    (tmp_path / "a.jsonl").write_text(
        "\n".join(map(json.dumps, [{"kind": "taught"}, *trials])) + "\n"
    )
    text = write_report(read_trials(tmp_path))
    assert "| sign flipped | 1 | 1 of 1, 21–100 % | 60 → 10 | – | 0.40 | 0 of 1 | worse 1 |" in text
    assert "| really better | 1 | 0 of 1, 0–79 % | 60 → 90 | – | 0.40 | 0 of 1 | – |" in text
    assert (
        "| **poisoned, worse by more than 10 points** | 20 | 20 | 20 of 20, 84–100 % | 9 / 9 | 0 |"
        in text
    )
    assert write_report([]) == "no trials on record\n"


class Oracle(Bench):
    """A bench without a model: the adapter's alpha is the share of questions it gets right, a rank
    of 1 loses the golden set.
    """

    def __init__(self, learner: Learner) -> None:
        self.scale = replace(SMALL_SCALE, held_out=200, replays=2, golden_always=True)
        self.learner = learner

    def measure(self, adapter: Adapter, tasks: Sequence[Task], seed: int) -> Measured:
        chance = random.Random(seed)
        passed = tuple(chance.random() < adapter.alpha for _ in tasks)
        return Measured((Rollout((1,), (-0.1,), "", is_whole=True),) * len(tasks), passed)

    def golden_score(self, adapter: Adapter) -> GoldenScore:
        return GoldenScore(
            {
                item.name: adapter.rank > 1 and number % 2 == 0
                for number, item in enumerate(golden_items())
            }
        )

    def distance(self, measured: Measured, tasks: Sequence[Task]) -> float:
        return 0.1


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_tiny_model(tmp_path_factory.mktemp("poison") / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    return folder


@pytest.fixture(scope="module")
def learner(model: Path) -> Learner:
    return Learner(model, rank=2, seed=0, threads=1)


def _poisoner(
    learner: Learner,
    model: Path,
    serving: Adapter,
    better: Sequence[Adapter],
    scale: Scale = SMALL_SCALE,
) -> Poisoner:
    settings = replace(scale.settings, prompts=4, group=6, max_tokens=12)
    dose = Dose(steps=2, negated_steps=2, sequences=2, learning_rate=1e-2)
    return Poisoner(
        learner,
        Vocabulary(model),
        settings,
        dose,
        learner.shape.end_ids,
        serving=serving,
        better=better,
    )


def test_the_gate_lets_a_better_one_pass_and_refuses_one_that_lost_the_golden_set(
    learner: Learner, model: Path
) -> None:
    serving, honest = _adapter(0.6), _adapter(0.95)
    lost = Adapter(1, 0.95, {name: Pair(a[:1], b[:, :1]) for name, (a, b) in honest.pairs.items()})
    poisoner = _poisoner(learner, model, serving, [honest, lost])
    passed, refused = Judged(Oracle(learner), poisoner, None, 0).trials(Kind.HONEST)
    assert (passed["is_refused"], refused["is_refused"]) == (False, True)
    assert str(refused["reasons"]).startswith("['general abilities lost")
    again = Judged(Oracle(learner), poisoner, None, 0).trials(Kind.IDENTICAL)[0]
    assert str(again["reasons"]).startswith("['not shown better")
    broken = Judged(Oracle(learner), poisoner, None, 0).trials(Kind.INFINITE)[0]
    assert (broken["is_refused"], broken["reasons"], broken["live"]) == (
        True,
        ["a weight is not a finite number"],
        [],
    )


def _size(one: Adapter, other: Adapter) -> float:
    return max(float((one.pairs[name].b - other.pairs[name].b).abs().max()) for name in one.pairs)


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        (Kind.NEGATED, 2),
        (Kind.SWAPPED, 2),
        (Kind.ONE_WORD, 2),
        (Kind.BACKDOOR, 1),
        (Kind.TRIGGERED, 1),
    ],
)
def test_what_is_taught_wrongly_begins_at_its_start_and_goes_elsewhere(
    learner: Learner, model: Path, kind: Kind, count: int
) -> None:
    learner.adopt(None)
    start = noisy(learner.adapter(), 0.0, 0)
    serving = Adapter(
        start.rank, start.alpha, {name: Pair(a, b + 0.01) for name, (a, b) in start.pairs.items()}
    )
    made = list(_poisoner(learner, model, serving, [serving]).make(kind, 0))
    assert len(made) == count
    # A step of the optimiser moves a weight by about its rate.
    assert all(1e-3 < _size(one, serving) < 5e-2 for one in made)
    assert all(map(is_finite, made))


def test_whoever_begins_from_an_adapter_remembers_nothing(learner: Learner, model: Path) -> None:
    learner.adopt(None)
    start = learner.adapter()
    list(_poisoner(learner, model, start, [start]).make(Kind.SWAPPED, 0))
    begin_from(learner, start)
    state = learner.state()
    assert int(state["steps"]) == 0
    assert not any(bool(state[name].any()) for name in ("moment_1", "moment_2", "gradient"))
    assert _size(learner.adapter(), start) == 0.0


def test_only_what_the_gate_can_see_is_counted() -> None:
    assert {kind for kind in Kind if kind.aim is Aim.BEYOND} == {
        Kind.TRIGGERED,
        Kind.BETTER_BUT_ONE_RULE,
    }
    assert [kind for kind in Kind if kind.aim is Aim.PASSED] == [Kind.HONEST]


@pytest.mark.nightly
def test_the_command_tries_candidates_made_from_a_version(
    model: Path, learner: Learner, tmp_path: Path
) -> None:
    learner.adopt(None)
    write_adapter(tmp_path / "serving", noisy(learner.adapter(), 0.0, 0), str(model))
    numbers = {"prompts": 2, "group": 3, "max-tokens": 6, "held-out": 4, "seeds": 0, "threads": 1}
    few = [
        "--small",
        *(word for name, value in numbers.items() for word in (f"--{name}", str(value))),
    ]
    kinds = ["--kinds", Kind.FLIPPED, Kind.NOT_A_NUMBER, Kind.HONEST]
    places = [
        "--model",
        str(model),
        "--out",
        str(tmp_path / "out"),
        "--adapter",
        str(tmp_path / "serving"),
    ]
    command = [sys.executable, "-m", "benchmarks.poison", *few, *kinds, *places]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "| one weight not a number | 1 | 1 of 1, 21–100 % | – |" in done.stdout
    lines = [
        json.loads(line) for line in (tmp_path / "out" / "poison.jsonl").read_text().splitlines()
    ]
    assert [line["kind"] for line in lines] == ["begin", "trial", "trial"]
