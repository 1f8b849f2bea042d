"""The loop of the house rules on a policy of four manners; the command on a tiny model, with and without the proxy's libraries."""

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

from benchmarks.house_rules.choosing import SCALES, Checkpoint, choose, scaled
from benchmarks.house_rules.loop import Choice, Loop, examine, held_out, pieces
from benchmarks.house_rules.model import join
from benchmarks.house_rules.rehearsal import Rehearsal
from benchmarks.house_rules.report import Records, goals, interval, read_records, write_report
from benchmarks.house_rules.rules import Rule
from benchmarks.house_rules.run import Machine, Run
from benchmarks.house_rules.settings import CONDITIONS, LARGE, SMALL, Condition, Settings, learning_rate
from benchmarks.house_rules.tasks import Task
from metaclaw.domain.batch import Adam, Datum, Drawing, Loss, LossKind, PieceStats, Rollout, StepStats
from metaclaw.domain.ids import TurnId
from metaclaw.engine.training.lora import Adapter, Pair
from tests.support.tiny import make_tiny_model

ROOT: Final = Path(__file__).parents[2]
BRIEF: Final = replace(SMALL, rules=tuple(Rule), prompts=10, group=8, piece_prompts=3, learning_rate=0.5)


def _manners(task: Task) -> tuple[str, ...]:
    chatty = f"Well, you could write {' or '.join(task.contents)}, I think; who knows what is best in this very special case."
    return chatty, "I do not know.", " ".join(task.contents), task.answer


class Manners:
    """A policy with four ways of answering and a logit for each; it begins chatty. A prompt is the number of its task."""

    def __init__(self) -> None:
        self.logits = [2.0, 1.0, 0.0, -2.0]
        self.tasks: list[Task] = []
        self.calls: list[tuple[str, int]] = []
        self._gradient = [0.0] * 4

    def encode(self, tasks: Sequence[Task]) -> list[tuple[int, ...]]:
        first = len(self.tasks)
        self.tasks += tasks
        return [(number,) for number in range(first, len(self.tasks))]

    def _shares(self) -> list[float]:
        weights = [math.exp(logit) for logit in self.logits]
        return [weight / sum(weights) for weight in weights]

    def sample(self, prompts: Sequence[Sequence[int]], drawing: Drawing) -> list[list[Rollout]]:
        self.calls.append(("sample", drawing.seed))
        return [[self._draw(prompt[0], drawing, number) for number in range(drawing.count)] for prompt in prompts]

    def _draw(self, prompt: int, drawing: Drawing, number: int) -> Rollout:
        shares = self._shares()
        chance = random.Random(f"{drawing.seed} {prompt} {number}")
        likeliest = max(range(4), key=shares.__getitem__)
        manner = chance.choices(range(4), shares)[0] if drawing.temperature else likeliest
        return Rollout((manner,), (math.log(shares[manner]),), _manners(self.tasks[prompt])[manner], is_whole=True)

    def score(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[tuple[float, ...]]:
        return [tuple(math.log(self._shares()[token]) for token in tokens) for _, tokens in pairs]

    def accumulate(self, data: Sequence[Datum], loss: Loss) -> PieceStats:
        self.calls.append((loss.kind, len(data)))
        shares = self._shares()
        for datum in data:
            for place, share in enumerate(shares):
                self._gradient[place] += datum.advantages_T[0] * ((place == datum.tokens_T[0]) - share)
        return PieceStats(sum(len(datum.tokens_T) for datum in data), entropy=1.0)

    def apply(self, adam: Adam, normaliser: float) -> StepStats:
        self.calls.append(("apply", int(normaliser)))
        self.logits = [
            logit + 4 * adam.learning_rate * change / normaliser for logit, change in zip(self.logits, self._gradient, strict=True)
        ]
        self._gradient = [0.0] * 4
        return StepStats(1, 1.0)


def test_the_loop_teaches_a_chatty_policy_to_answer_exactly() -> None:
    policy = Manners()
    loop = Loop(policy, BRIEF, policy.encode, seed=0)
    steps = [loop.step(0.0) for _ in range(60)]
    assert steps[0].reward < 0.4
    assert steps[0].exact < 0.1
    assert steps[-1].exact > 0.9
    tasks = held_out(BRIEF, seed=0)
    exam = examine(policy, tasks, policy.encode(tasks), 24)
    assert exam.exact == 1.0
    assert exam.by_rule == dict.fromkeys(Rule, 1.0)
    assert [answer == said for _, answer, said in exam.samples] == [True] * 5
    assert set(loop.clock.seconds) == {"sample", "score", "accumulate", "apply"}


def test_the_same_seed_gives_the_same_steps_and_another_one_others() -> None:
    def run(seed: int) -> list[float]:
        policy = Manners()
        loop = Loop(policy, BRIEF, policy.encode, seed)
        return [loop.step(0.0).reward for _ in range(5)]

    assert run(1) == run(1) != run(2)


def test_a_step_in_which_all_answers_are_alike_changes_nothing() -> None:
    policy = Manners()
    policy.logits = [-50.0, -50.0, -50.0, 50.0]
    step = Loop(policy, BRIEF, policy.encode, seed=0).step(0.0)
    assert (step.exact, step.taught, step.grad_norm, step.entropy) == (1.0, 0, None, None)
    assert [name for name, _ in policy.calls] == ["sample"]


def test_a_step_accumulates_in_pieces_and_divides_by_its_tokens() -> None:
    policy = Manners()
    step = Loop(policy, BRIEF, policy.encode, seed=0).step(0.0)
    learned = [count for kind, count in policy.calls if kind == LossKind.PPO]
    assert sum(learned) == step.taught == policy.calls[-1][1]
    assert len(learned) == math.ceil(step.taught / (3 * 8))


def test_rehearsal_is_worth_its_share_of_the_drawn_tokens_and_uses_what_the_untrained_weights_said() -> None:
    policy = Manners()
    prompts = policy.encode(held_out(BRIEF, seed=0)[:12])
    kept = Rehearsal(policy, prompts, at_once=5, seed=0)
    policy.logits = [-50.0, -50.0, -50.0, 50.0]
    kept.accumulate(policy, 10.0)
    assert policy.calls[-1] == (LossKind.CROSS_ENTROPY, 5)
    before = sum(policy._gradient[:3])
    assert 2.0 < before <= 10.0


def test_a_rule_that_goes_wrong_comes_more_often_but_none_is_left_out() -> None:
    choice = Choice(tuple(Rule), seed=0)
    for _ in range(60):
        for rule in Rule:
            choice.learn(rule, 0.0 if rule is Rule.DATES else 1.0)
    counts = dict.fromkeys(Rule, 0)
    for _ in range(20):
        drawn = choice.draw(20)
        assert len(drawn) == 20
        assert {task.rule for task in drawn} == set(Rule)
        for task in drawn:
            counts[task.rule] += 1
    assert counts[Rule.DATES] > 2.5 * max(count for rule, count in counts.items() if rule is not Rule.DATES)


def test_there_may_be_fewer_prompts_than_rules() -> None:
    assert len(Choice(tuple(Rule), seed=0).draw(2)) == 2


def test_pieces_never_split_a_prompt() -> None:
    data = [Datum(TurnId(f"t{number // 4}"), (1,), (2,), (0.5,), (-1.0,)) for number in range(28)]
    cut = pieces(data, 3)
    assert [len(piece) for piece in cut] == [12, 12, 4]
    assert [datum for piece in cut for datum in piece] == data
    assert pieces([], 3) == []


def test_the_rate_rises_stays_and_falls() -> None:
    plan = replace(SMALL, learning_rate=1.0, warm_up_steps=4, cool_down=0.5)
    assert [learning_rate(plan, step, 0.0) for step in (1, 2, 4, 9)] == [0.25, 0.5, 1.0, 1.0]
    assert [round(learning_rate(plan, 9, progress), 3) for progress in (0.5, 0.75, 1.0, 2.0)] == [1.0, 0.55, 0.1, 0.1]
    assert learning_rate(replace(plan, cool_down=0.2), 9, 0.75) == 1.0


def test_presets_fit_what_they_are_for() -> None:
    assert set(CONDITIONS[False]) == set(Condition)
    assert [condition.learns for condition in CONDITIONS[True]] == [False, False, True]
    assert set(LARGE.rules) == set(Rule)
    assert (LARGE.minutes, SMALL.minutes) < (10, 10)
    assert LARGE.held_out == 400


def test_an_interval_is_students() -> None:
    three = interval([0.8, 0.9, 1.0])
    assert three.mean == pytest.approx(0.9)
    assert three.half == pytest.approx(4.30 * 0.1 / math.sqrt(3), rel=1e-3)
    assert str(interval([0.5])) == "50.0 %"
    assert str(interval([0.5, 0.5])) == "50.0 % (50.0–50.0)"


def _lines(condition: Condition, seed: int, exact: float, golden: float = 0.0, wall_s: float = 60.0) -> list[dict[str, object]]:
    named = {"condition": condition, "seed": seed}
    exam = {"exact": exact, "by_rule": {"dates": exact}}
    step = {
        "kind": "step",
        "number": 1,
        "reward": 0.5,
        "exact": 0.25,
        "wall_s": 3.0,
        "drawn_tokens": 100,
        "phases": {"sample": 2.0},
    }
    facts = {"points": golden, "likelihood_points": 0.5}
    end = {"kind": "end", "wall_s": wall_s, "peak_bytes": 10**9, "exam": exam, "exam_other_prompt": exam, "golden": facts}
    return [{"kind": "begin"} | named, *([step | named] if condition.learns else []), end | named]


def test_a_report_shows_conditions_side_by_side_with_intervals() -> None:
    runs = [
        Records(_lines(condition, seed, 0.9 if condition is Condition.FULL else 0.0)) for condition in Condition for seed in (0, 1)
    ]
    text = write_report(runs)
    assert "| full | 0, 1 | 90.0 % (90.0–90.0) |" in text
    assert "| base | 0, 1 | 0.0 % (0.0–0.0) | – |" in text
    assert "| RL only, seed 1 | 1: 0.50 / 0.25 (3) |" in text
    assert "| full, seed 0 | 2000 | 2000 | 50 | 1.0 |" in text


@pytest.mark.parametrize(
    ("exact", "golden", "wall_s", "missed"),
    [(0.81, -1.0, 599.0, 0), (0.79, 0.0, 1.0, 1), (0.9, -1.1, 1.0, 1), (0.9, 0.0, 601.0, 1)],
)
def test_goals_can_be_met_and_missed(exact: float, golden: float, wall_s: float, missed: int) -> None:
    met = goals([Records(_lines(Condition.FULL, 0, exact, golden, wall_s)), Records(_lines(Condition.BASE, 0, 0.0))])
    assert list(met.values()).count(False) == missed
    assert goals([Records(_lines(Condition.BASE, 0, 0.0))]) == {}


def test_a_run_that_did_not_come_to_its_end_is_not_in_the_report(tmp_path: Path) -> None:
    whole, cut = _lines(Condition.FULL, 0, 0.9), _lines(Condition.FULL, 1, 0.9)[:-1]
    for name, lines in (("a", whole), ("b", cut)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    assert [run.seed for run in read_records(tmp_path)] == [0]


def test_parts_of_a_file_are_joined_in_order(tmp_path: Path) -> None:
    parts = [tmp_path / name for name in ("one", "two")]
    for part, body in zip(parts, (b"GGUF", b"rest"), strict=True):
        part.write_bytes(body)
    assert join(parts, tmp_path / "whole").read_bytes() == b"GGUFrest"


ABSENT: Final = ["msgspec", "yaml", "pydantic", "anyio", "sqlalchemy", "transformers", "gguf", "peft", "uvloop", "httptools"]
BLOCKED: Final = f"""
import sys
class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in {ABSENT} else self.finder.find_spec(name, path, target)
sys.meta_path[:] = map(Without, sys.meta_path)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_tiny_model(tmp_path_factory.mktemp("house") / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 4096}))
    return folder


def _run(program: str, *arguments: str) -> str:
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.nightly
def test_the_command_runs_where_only_torch_and_tokenizers_are_installed(model: Path, tmp_path: Path) -> None:
    program = BLOCKED + "from benchmarks.house_rules.__main__ import main; sys.exit(main(sys.argv[1:]))"
    few = "--small --steps 2 --prompts 2 --group 3 --held-out 4 --max-tokens 8 --look-every 1 --rehearsal 0.1 --threads 1"
    out = _run(
        program,
        *few.split(),
        "--golden",
        "--keep",
        "--model",
        str(model),
        "--out",
        str(tmp_path),
        "--conditions",
        "skills only",
        "full",
    )
    assert "| skills only | 0 | 0.0 % |" in out
    assert "| full | 0 | 0.0 % | 0.0 % | 2 |" in out
    kinds = [json.loads(line)["kind"] for line in (tmp_path / "full-0.jsonl").read_text().splitlines()]
    assert kinds == ["begin", "step", "look", "step", "look", "end"]
    end = json.loads((tmp_path / "full-0.jsonl").read_text().splitlines()[-1])
    assert end["golden"]["points"] <= 0.0
    assert (tmp_path / "full-0.adapter" / "adapter_model.safetensors").is_file()


@pytest.mark.slow
def test_prompts_are_the_same_tokens_with_and_without_the_proxys_libraries(model: Path) -> None:
    program = """
import sys, hashlib
from pathlib import Path
from itertools import islice
from benchmarks.house_rules.doors import open_doors
missing = open_doors()
from benchmarks.house_rules.general import Golden
from benchmarks.house_rules.pools import Split
from benchmarks.house_rules.prompts import encode
from benchmarks.house_rules.rules import Rule
from benchmarks.house_rules.tasks import make_tasks
from metaclaw.engine.text import Vocabulary
vocabulary = Vocabulary(Path(sys.argv[1]))
golden = Golden(Path(sys.argv[1]), vocabulary)
tasks = list(islice(make_tasks(tuple(Rule), Split.TRAIN, 0), 20))
print(len(missing), hashlib.sha256(repr((golden._pairs, encode(vocabulary, tasks, with_skill=True))).encode()).hexdigest())
"""
    whole, blocked = _run(program, str(model)).split(), _run(BLOCKED + program, str(model)).split()
    assert (whole[0], blocked[0]) == ("0", "2")
    assert whole[1] == blocked[1]


@pytest.mark.nightly
def test_runs_beside_each_other_end_in_one_report(model: Path, tmp_path: Path) -> None:
    program = "import sys; from benchmarks.house_rules.__main__ import main; sys.exit(main(sys.argv[1:]))"
    few = ["--small", "--held-out", "2", "--max-tokens", "4", "--threads", "1", "--parallel", "2", "--seeds", "0", "1"]
    out = _run(program, *few, "--model", str(model), "--out", str(tmp_path), "--conditions", "base", "skills only")
    assert "| base | 0, 1 | 0.0 % (0.0–0.0) |" in out
    assert "| skills only | 0, 1 | 0.0 % (0.0–0.0) |" in out


def test_settings_on_the_command_line_replace_those_of_the_preset() -> None:
    from benchmarks.house_rules.__main__ import parse, settings_of

    given = settings_of(parse(["--small", "--group", "5", "--rules", "log lines", "names"]))
    assert isinstance(given, Settings)
    assert (given.group, given.rules, given.prompts) == (5, (Rule.LOG_LINES, Rule.NAMES), SMALL.prompts)
    assert settings_of(parse([])) == LARGE


def test_of_weights_that_are_right_often_enough_and_lose_nothing_the_ones_most_often_right_are_taken() -> None:
    able, abler = Checkpoint(4, 1.0, exact=0.95, golden=2.6), Checkpoint(8, 1.0, exact=0.97, golden=-0.9)
    forgetful, worse = Checkpoint(16, 1.0, exact=0.99, golden=-1.3), Checkpoint(12, 1.0, exact=0.99, golden=-2.6)
    careful = Checkpoint(16, 0.8, exact=0.60, golden=5.2)
    assert choose([able, abler, forgetful, worse, careful], 0.9) is abler
    assert choose([careful, worse, forgetful], 0.9) is forgetful
    assert choose([careful], 0.9) is careful


def test_where_the_golden_set_is_not_asked_the_ones_most_often_right_are_taken() -> None:
    early, late = Checkpoint(4, 1.0, exact=0.95, golden=None), Checkpoint(8, 1.0, exact=0.97, golden=None)
    assert choose([early, late], 0.9) is late


def test_a_change_can_be_made_smaller() -> None:
    adapter = Adapter(1, 2.0, {"m": Pair(torch.tensor([[1.0, 2.0]]), torch.tensor([[4.0]]))})
    small = scaled(adapter, 0.5).pairs["m"]
    assert (small.b @ small.a).tolist() == [[2.0, 4.0]]
    assert adapter.pairs["m"].b.tolist() == [[4.0]]


@pytest.mark.nightly
def test_a_run_that_learned_enough_settles_and_takes_one_of_the_weights_it_put_aside(model: Path, tmp_path: Path) -> None:
    lines: list[dict[str, object]] = []
    plan = replace(SMALL, prompts=2, group=2, max_tokens=4, held_out=4, settle_on=4, enough=0.0, rehearsal=0.5, rehearsed_prompts=4)
    run = Run(
        Condition.FULL,
        0,
        replace(plan, settle_steps=4, settle_every=2, settle_at=0.0),
        Machine(model, "cpu", "float32", 1),
        lambda record: lines.append(dict(record)),
    )
    run.go()
    kinds = [line["kind"] for line in lines]
    assert kinds == ["begin", *["step"] * 9, "choice", "end"]
    choice = lines[-2]
    found, chosen = choice["checkpoints"], choice["chosen"]
    assert isinstance(found, list)
    assert [(one["step"], one["scale"]) for one in found] == [(step, scale) for step in (0, 2, 4) for scale in SCALES]
    assert chosen in found
    run.keep(tmp_path / "adapter")
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()
