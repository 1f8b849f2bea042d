"""The engine's own loop, told in a fixed order what otherwise comes when it comes."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.scoring import load_model, score
from metaclaw.domain.policy import Weights
from metaclaw.engine import frames
from metaclaw.engine.serve import Engine, Line
from metaclaw.engine.served_model import ServedModel
from tests.engine.small import make_small_model, merge, write_adapter


class _Over(Exception):  # noqa: N818 - the end of the play, not a failure
    pass


class _Script(Line):
    """Says its lines one scene after the other, all lines of a scene at once. A scene begins when
    the engine waits.
    """

    def __init__(self, *scenes: list[frames.ToEngine]) -> None:
        self._scenes = iter(scenes)
        self._lines: Iterator[frames.ToEngine] = iter(())
        self.said: list[frames.FromEngine] = []

    def send(self, message: frames.FromEngine) -> None:
        self.said.append(message)

    def wait(self) -> frames.ToEngine:
        scene = next(self._scenes, None)
        if scene is None:
            raise _Over
        self._lines = iter(scene)
        return next(self._lines)

    def look(self) -> frames.ToEngine | None:
        return next(self._lines, None)


def _play(small: Path, *scenes: list[frames.ToEngine]) -> list[frames.FromEngine]:
    script = _Script(*scenes)
    with pytest.raises(_Over):
        Engine(script, small, 2, torch.float32).run({})
    return script.said


def _ask(number: int, version: int) -> frames.Generate:
    return frames.Generate(
        number,
        [frames.WrittenTurn("user", "Tell me.")],
        version=version,
        max_tokens=8,
        temperature=0.0,
    )


def _answers(said: list[frames.FromEngine]) -> dict[int, frames.Finished]:
    return {message.id: message for message in said if isinstance(message, frames.Finished)}


@pytest.fixture(scope="module")
def small(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_small_model(folder, tmp_path_factory.mktemp("models") / "small")


@pytest.fixture(scope="module")
def adapters(small: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Weights]:
    root = tmp_path_factory.mktemp("adapters")
    return [write_adapter(small, root / str(seed), seed=seed, size=0.7) for seed in (1, 2)]


@pytest.fixture(scope="module")
def truths(
    small: Path, adapters: list[Weights], tmp_path_factory: pytest.TempPathFactory
) -> list[ServedModel]:
    root = tmp_path_factory.mktemp("merged")
    return [
        load_model(merge(small, weights, root / str(at))) for at, weights in enumerate(adapters)
    ]


def _is_by(answer: frames.Finished, truth: ServedModel) -> bool:
    scored = score(truth, tuple(answer.prompt_ids), tuple(answer.sampled_ids))
    return list(answer.logprobs) == pytest.approx(scored, abs=1e-3)


def test_a_number_that_was_let_go_takes_other_weights_while_the_old_ones_still_answer(
    small: Path, adapters: list[Weights], truths: list[ServedModel]
) -> None:
    one, other = (weights.adapter for weights in adapters)
    said = _play(
        small,
        [frames.Load(1, 1, one)],
        [_ask(1, 1), frames.Unload(1), frames.Load(2, 1, other)],
        [_ask(2, 1)],
        [frames.Unload(1)],
    )
    assert [message.id for message in said if isinstance(message, frames.Loaded)] == [1, 2]
    answers = _answers(said)
    assert _is_by(answers[1], truths[0])
    assert not _is_by(answers[1], truths[1])
    assert _is_by(answers[2], truths[1])
    assert [message.version for message in said if isinstance(message, frames.Unloaded)] == [1]


def test_a_number_that_is_wanted_back_keeps_its_weights_and_its_answers(
    small: Path, adapters: list[Weights], truths: list[ServedModel]
) -> None:
    one = adapters[0].adapter
    said = _play(
        small,
        [frames.Load(1, 1, one)],
        [_ask(1, 1), frames.Unload(1), frames.Load(2, 1, one)],
        [_ask(2, 1)],
    )
    assert [message.id for message in said if isinstance(message, frames.Loaded)] == [1, 2]
    answers = _answers(said)
    assert sorted(answers) == [1, 2]
    assert all(_is_by(answer, truths[0]) for answer in answers.values())
    assert not [message for message in said if isinstance(message, frames.Unloaded)]
