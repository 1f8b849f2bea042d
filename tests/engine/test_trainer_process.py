"""What the trainer process does with each message, in process, with a real learner on a tiny
model.
"""

from pathlib import Path

import pytest
import torch

from metaclaw.domain.ids import TurnId
from metaclaw.domain.policy import Weights
from metaclaw.domain.training import Datum, Drawing, Rollout, RunProgress
from metaclaw.engine.training import frames
from metaclaw.engine.training.lora import read_adapter
from metaclaw.engine.training.process import Trainer
from metaclaw.errors import TrainingError
from tests.engine.cutting import ADAM, LOSS, PROMPTS, drive, go_on, make_trainer, open_message
from tests.engine.tiny import make_tiny_model

_PAIR = ([1, 5, 6], [7, 8, 9])
_DRAWING = Drawing(count=2, max_tokens=5, seed=11)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def _opened(trainer: Trainer, message: frames.Open) -> frames.Opened:
    answer = trainer.answer(message)
    assert isinstance(answer, frames.Opened)
    return answer


def _sampled(trainer: Trainer, source: frames.Source) -> list[list[Rollout]]:
    answer = trainer.answer(frames.Sample([list(prompt) for prompt in PROMPTS], _DRAWING, source))
    assert isinstance(answer, frames.Sampled)
    return answer.groups


def _scores(trainer: Trainer, source: frames.Source) -> tuple[float, ...]:
    answer = trainer.answer(frames.Score([_PAIR], source))
    assert isinstance(answer, frames.Scored)
    return answer.logprobs[0]


def _datum(turn: str = "turn", length: int = 3) -> Datum:
    return Datum(TurnId(turn), (1, 5, 6), (7,) * length, (1.0,) * length, (-1.0,) * length)


def _teach(trainer: Trainer, folder: Path) -> None:
    opened = _opened(trainer, open_message(folder))
    go_on(trainer.answer, opened.progress, 2, 2)


def test_kept_weights_are_what_the_run_had_and_can_be_drawn_from_without_it(
    model: Path, tmp_path: Path
) -> None:
    trainer = make_trainer(model)
    _teach(trainer, tmp_path / "run")
    trainer.answer(frames.Keep(str(tmp_path / "kept")))
    present = _sampled(trainer, frames.Present())
    assert _sampled(make_trainer(model), frames.Kept(str(tmp_path / "kept"))) == present
    assert _sampled(make_trainer(model), frames.Base()) != present


def test_drawing_from_other_weights_leaves_the_run_as_it_was(model: Path, tmp_path: Path) -> None:
    trainer = make_trainer(model)
    opened = _opened(trainer, open_message(tmp_path / "run"))
    trainer.answer(frames.Keep(str(tmp_path / "beginning")))
    go_on(trainer.answer, opened.progress, 1, 2)
    before = _scores(trainer, frames.Present())
    assert _scores(trainer, frames.Base()) == pytest.approx(
        _scores(make_trainer(model), frames.Base()), abs=1e-6
    )
    _sampled(trainer, frames.Kept(str(tmp_path / "beginning")))
    assert _scores(trainer, frames.Present()) == before
    go_on(trainer.answer, RunProgress(1, 0), 3, 3)
    trainer.answer(frames.Keep(str(tmp_path / "end")))
    again = make_trainer(model)
    go_on(again.answer, _opened(again, open_message(tmp_path / "again")).progress, 1, 2)
    go_on(again.answer, RunProgress(1, 0), 3, 3)
    again.answer(frames.Keep(str(tmp_path / "undisturbed")))
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
    first.answer(frames.Keep(str(tmp_path / "kept")))
    go_on(first.answer, RunProgress(2, 0), 4, 2)
    first.answer(frames.Keep(str(tmp_path / "straight")))
    second = make_trainer(model)
    start = Weights("embedded", str(tmp_path / "kept"), str(tmp_path / "kept"))
    opened = _opened(second, frames.Open("second", start, 4, 3, str(tmp_path / "second")))
    assert opened.progress == RunProgress(0, 0)
    assert opened.notes == []
    go_on(second.answer, RunProgress(2, 0), 4, 2)  # the same drawing seeds as the straight run had
    second.answer(frames.Keep(str(tmp_path / "in two")))
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
    trainer.answer(frames.Keep(str(tmp_path / "kept")))
    kept = _scores(trainer, frames.Present())
    start = Weights(
        backend, str(tmp_path / "kept"), str(tmp_path / "kept") if has_moments else None
    )
    opened = _opened(trainer, frames.Open("next", start, rank, 3, str(tmp_path / "next")))
    assert "optimiser starts from zero" in opened.notes[0]
    assert _scores(trainer, frames.Present()) == pytest.approx(kept, abs=1e-5)


def test_another_plan_for_the_same_folder_is_refused(model: Path, tmp_path: Path) -> None:
    drive(model, tmp_path, 1, 1)
    for other in ({"rank": 8}, {"seed": 4}):
        with pytest.raises(TrainingError, match=f"another {next(iter(other))}"):
            make_trainer(model).answer(open_message(tmp_path / "run", **other))


def test_opening_an_open_run_again_says_how_far_it_is(model: Path, tmp_path: Path) -> None:
    trainer = make_trainer(model)
    _teach(trainer, tmp_path / "run")
    trainer.answer(frames.Accumulate([_datum()], LOSS))
    assert _opened(trainer, open_message(tmp_path / "run")).progress == RunProgress(2, 1)
    assert _opened(trainer, open_message(tmp_path / "elsewhere")).progress == RunProgress()


def test_closing_puts_on_disk_what_was_not_there_yet(model: Path, tmp_path: Path) -> None:
    trainer = make_trainer(model)
    _teach(trainer, tmp_path / "run")
    for number in range(5):
        trainer.answer(frames.Accumulate([_datum(str(number))], LOSS))
    trainer.answer(frames.Close(discard=False))
    assert _opened(make_trainer(model), open_message(tmp_path / "run")).progress == RunProgress(
        2, 5
    )


def test_opening_another_run_closes_the_first_and_does_not_mix_them(
    model: Path, tmp_path: Path
) -> None:
    trainer = make_trainer(model)
    _teach(trainer, tmp_path / "run")
    other = _opened(trainer, frames.Open("other", None, 4, 3, str(tmp_path / "other")))
    assert other.progress == RunProgress()
    assert _scores(trainer, frames.Present()) == pytest.approx(
        _scores(trainer, frames.Base()), abs=1e-6
    )
    assert _opened(trainer, open_message(tmp_path / "run")).progress == RunProgress(2, 0)


def test_a_discarded_run_begins_anew(model: Path, tmp_path: Path) -> None:
    trainer = make_trainer(model)
    _teach(trainer, tmp_path / "run")
    trainer.answer(frames.Close(discard=True))
    assert not (tmp_path / "run").exists()
    assert _opened(trainer, open_message(tmp_path / "run")).progress == RunProgress()


def test_a_datum_that_is_too_long_is_refused_by_name_and_the_run_goes_on(
    model: Path, tmp_path: Path
) -> None:
    trainer = make_trainer(model)
    _opened(trainer, open_message(tmp_path / "run"))
    trainer.answer(frames.Accumulate([_datum()], LOSS))
    with pytest.raises(TrainingError, match="turn endless"):
        trainer.answer(frames.Accumulate([_datum("endless", 500)], LOSS))
    assert _opened(trainer, open_message(tmp_path / "run")).progress == RunProgress(0, 1)
    trainer.answer(frames.Apply(ADAM, 1.0))


def test_a_step_that_cannot_be_put_on_disk_did_not_happen(model: Path, tmp_path: Path) -> None:
    trainer = make_trainer(model)
    _teach(trainer, tmp_path / "run")
    before = _scores(trainer, frames.Present())
    trainer.answer(frames.Accumulate([_datum()], LOSS))
    (tmp_path / "run" / "step-00000003.state").mkdir()  # where the next state would be written
    with pytest.raises(TrainingError, match="step-00000003"):
        trainer.answer(frames.Apply(ADAM, 1.0))
    with pytest.raises(TrainingError, match="no run is open"):
        trainer.answer(frames.Apply(ADAM, 1.0))
    (tmp_path / "run" / "step-00000003.state").rmdir()
    assert _opened(trainer, open_message(tmp_path / "run")).progress.steps == 2
    assert _scores(trainer, frames.Present()) == before


def test_keeping_again_replaces_and_leaves_no_rubbish(model: Path, tmp_path: Path) -> None:
    trainer = make_trainer(model)
    _teach(trainer, tmp_path / "run")
    policies = tmp_path / "policies"
    (policies / ".000001.tmp").mkdir(parents=True)
    (policies / "..000001.tmp.77.part").mkdir()
    for _ in range(2):
        trainer.answer(frames.Keep(str(policies / "000001")))
    assert [path.name for path in policies.iterdir()] == ["000001"]
    assert _scores(trainer, frames.Kept(str(policies / "000001"))) == pytest.approx(
        _scores(trainer, frames.Present()), abs=1e-6
    )


@pytest.mark.parametrize(
    "message",
    [
        frames.Accumulate([_datum()], LOSS),
        frames.Apply(ADAM, 1.0),
        frames.Keep("nowhere"),
        frames.Score([_PAIR], frames.Present()),
        frames.Score([_PAIR], frames.Kept("nowhere")),
    ],
)
def test_what_needs_a_run_or_weights_that_are_not_there_is_refused(
    message: frames.ToTrainer, model: Path
) -> None:
    with pytest.raises(TrainingError):
        make_trainer(model).answer(message)
