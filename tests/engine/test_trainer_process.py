"""What the trainer process does with each message, in process, with a real learner on a tiny
model.
"""

from pathlib import Path

import pytest
import torch

from metaclaw.domain.ids import TurnId
from metaclaw.domain.policy import Weights
from metaclaw.domain.training import Datum, Drawing, RunProgress
from metaclaw.engine.training.calls import UNTRAINED, Source, TrainerCall
from metaclaw.engine.training.lora import read_adapter
from metaclaw.engine.training.process import Trainer
from metaclaw.errors import TrainingError
from metaclaw.ports import RunPlan
from tests.engine.cutting import ADAM, LOSS, PROMPTS, drive, go_on, make_trainer, plan
from tests.engine.tiny import make_tiny_model

_PAIR = ([1, 5, 6], [7, 8, 9])
_DRAWING = Drawing(count=2, max_tokens=5, seed=11)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def _scores(trainer: Trainer, source: Source) -> tuple[float, ...]:
    return trainer.score([_PAIR], source)[0]


def _datum(turn: str = "turn", length: int = 3) -> Datum:
    return Datum(TurnId(turn), (1, 5, 6), (7,) * length, (1.0,) * length, (-1.0,) * length)


def _teach(trainer: Trainer, folder: Path) -> None:
    opened = trainer.open(plan(folder))
    go_on(trainer, opened[0], 2, 2)


def test_kept_weights_are_what_the_run_had_and_can_be_drawn_from_without_it(
    model: Path, tmp_path: Path
) -> None:
    trainer = make_trainer(model)
    _teach(trainer, tmp_path / "run")
    trainer.keep(tmp_path / "kept")
    present = trainer.sample(PROMPTS, _DRAWING, None)
    assert make_trainer(model).sample(PROMPTS, _DRAWING, str(tmp_path / "kept")) == present
    assert make_trainer(model).sample(PROMPTS, _DRAWING, UNTRAINED) != present


def test_drawing_from_other_weights_leaves_the_run_as_it_was(model: Path, tmp_path: Path) -> None:
    trainer = make_trainer(model)
    opened = trainer.open(plan(tmp_path / "run"))
    trainer.keep(tmp_path / "beginning")
    go_on(trainer, opened[0], 1, 2)
    before = _scores(trainer, None)
    assert _scores(trainer, UNTRAINED) == pytest.approx(
        _scores(make_trainer(model), UNTRAINED), abs=1e-6
    )
    trainer.sample(PROMPTS, _DRAWING, str(tmp_path / "beginning"))
    assert _scores(trainer, None) == before
    go_on(trainer, RunProgress(1, 0), 3, 3)
    trainer.keep(tmp_path / "end")
    again = make_trainer(model)
    go_on(again, again.open(plan(tmp_path / "again"))[0], 1, 2)
    go_on(again, RunProgress(1, 0), 3, 3)
    again.keep(tmp_path / "undisturbed")
    _assert_same(tmp_path / "end", tmp_path / "undisturbed")


def _assert_same(one: Path, other: Path) -> None:
    mine, theirs = read_adapter(one), read_adapter(other)
    for module, pair in mine.pairs.items():
        torch.testing.assert_close(pair.a, theirs.pairs[module].a, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(pair.b, theirs.pairs[module].b, rtol=1e-6, atol=1e-8)


def test_a_run_that_starts_from_kept_weights_goes_on_with_their_moments(
    model: Path, tmp_path: Path
) -> None:
    first = make_trainer(model)
    _teach(first, tmp_path / "first")
    first.keep(tmp_path / "kept")
    go_on(first, RunProgress(2, 0), 4, 2)
    first.keep(tmp_path / "straight")
    second = make_trainer(model)
    start = Weights("embedded", str(tmp_path / "kept"), str(tmp_path / "kept"))
    opened = second.open(RunPlan("second", start, 4, 3, tmp_path / "second"))
    assert opened[0] == RunProgress(0, 0)
    assert opened[1] == []
    go_on(second, RunProgress(2, 0), 4, 2)  # the same drawing seeds as the straight run had
    second.keep(tmp_path / "in two")
    _assert_same(tmp_path / "straight", tmp_path / "in two")


@pytest.mark.parametrize(
    ("backend", "rank", "has_moments"),
    [("embedded", 4, False), ("embedded", 8, True), ("cloud", 4, True)],
)
def test_weights_without_fitting_moments_are_gone_on_from_and_that_is_said(
    backend: str, rank: int, has_moments: bool, model: Path, tmp_path: Path
) -> None:
    trainer = make_trainer(model)
    _teach(trainer, tmp_path / "run")
    trainer.keep(tmp_path / "kept")
    kept = _scores(trainer, None)
    start = Weights(
        backend, str(tmp_path / "kept"), str(tmp_path / "kept") if has_moments else None
    )
    opened = trainer.open(RunPlan("next", start, rank, 3, tmp_path / "next"))
    assert "optimiser starts from zero" in opened[1][0]
    assert _scores(trainer, None) == pytest.approx(kept, abs=1e-5)


def test_another_plan_for_the_same_folder_is_refused(model: Path, tmp_path: Path) -> None:
    drive(model, tmp_path, 1, 1)
    for other in ({"rank": 8}, {"seed": 4}):
        with pytest.raises(TrainingError, match=f"another {next(iter(other))}"):
            make_trainer(model).open(plan(tmp_path / "run", **other))


def test_opening_an_open_run_again_says_how_far_it_is(model: Path, tmp_path: Path) -> None:
    trainer = make_trainer(model)
    _teach(trainer, tmp_path / "run")
    trainer.accumulate([_datum()], LOSS)
    assert trainer.open(plan(tmp_path / "run"))[0] == RunProgress(2, 1)
    assert trainer.open(plan(tmp_path / "elsewhere"))[0] == RunProgress()


def test_closing_puts_on_disk_what_was_not_there_yet(model: Path, tmp_path: Path) -> None:
    trainer = make_trainer(model)
    _teach(trainer, tmp_path / "run")
    for number in range(5):
        trainer.accumulate([_datum(str(number))], LOSS)
    trainer.close(discard=False)
    assert make_trainer(model).open(plan(tmp_path / "run"))[0] == RunProgress(2, 5)


def test_opening_another_run_closes_the_first_and_does_not_mix_them(
    model: Path, tmp_path: Path
) -> None:
    trainer = make_trainer(model)
    _teach(trainer, tmp_path / "run")
    other = trainer.open(RunPlan("other", None, 4, 3, tmp_path / "other"))
    assert other[0] == RunProgress()
    assert _scores(trainer, None) == pytest.approx(_scores(trainer, UNTRAINED), abs=1e-6)
    assert trainer.open(plan(tmp_path / "run"))[0] == RunProgress(2, 0)


def test_a_discarded_run_begins_anew(model: Path, tmp_path: Path) -> None:
    trainer = make_trainer(model)
    _teach(trainer, tmp_path / "run")
    trainer.close(discard=True)
    assert not (tmp_path / "run").exists()
    assert trainer.open(plan(tmp_path / "run"))[0] == RunProgress()


def test_a_datum_that_is_too_long_is_refused_by_name_and_the_run_goes_on(
    model: Path, tmp_path: Path
) -> None:
    trainer = make_trainer(model)
    trainer.open(plan(tmp_path / "run"))
    trainer.accumulate([_datum()], LOSS)
    with pytest.raises(TrainingError, match="turn endless"):
        trainer.accumulate([_datum("endless", 500)], LOSS)
    assert trainer.open(plan(tmp_path / "run"))[0] == RunProgress(0, 1)
    trainer.apply(ADAM, 1.0)


def test_a_step_that_cannot_be_put_on_disk_did_not_happen(model: Path, tmp_path: Path) -> None:
    trainer = make_trainer(model)
    _teach(trainer, tmp_path / "run")
    before = _scores(trainer, None)
    trainer.accumulate([_datum()], LOSS)
    (tmp_path / "run" / "step-00000003.state").mkdir()  # where the next state would be written
    with pytest.raises(TrainingError, match="step-00000003"):
        trainer.apply(ADAM, 1.0)
    with pytest.raises(TrainingError, match="no run is open"):
        trainer.apply(ADAM, 1.0)
    (tmp_path / "run" / "step-00000003.state").rmdir()
    assert trainer.open(plan(tmp_path / "run"))[0].steps == 2
    assert _scores(trainer, None) == before


def test_keeping_again_replaces_and_leaves_no_rubbish(model: Path, tmp_path: Path) -> None:
    trainer = make_trainer(model)
    _teach(trainer, tmp_path / "run")
    policies = tmp_path / "policies"
    (policies / ".000001.tmp").mkdir(parents=True)
    (policies / "..000001.tmp.77.part").mkdir()
    for _ in range(2):
        trainer.keep(policies / "000001")
    assert [path.name for path in policies.iterdir()] == ["000001"]
    assert _scores(trainer, str(policies / "000001")) == pytest.approx(
        _scores(trainer, None), abs=1e-6
    )


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("accumulate", ([_datum()], LOSS)),
        ("apply", (ADAM, 1.0)),
        ("keep", (Path("nowhere"),)),
        ("score", ([_PAIR], None)),
        ("score", ([_PAIR], "nowhere")),
    ],
)
def test_what_needs_a_run_or_weights_that_are_not_there_is_refused(
    method: str, arguments: tuple[object, ...], model: Path
) -> None:
    answer = make_trainer(model).answer(TrainerCall(method, arguments))
    assert isinstance(answer, TrainingError)
