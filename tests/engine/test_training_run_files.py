"""The files of a run are found again, damaged ones are skipped, and an incomplete adapter is
recognised without loading it.
"""

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from metaclaw.domain.chat import Json
from metaclaw.domain.training import RunProgress
from metaclaw.engine.training.run_files import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    RunFiles,
    is_complete_adapter,
    remove_run,
)
from metaclaw.errors import TrainingError

_PLAN: dict[str, Json] = {"name": "night", "rank": 8, "seed": 1, "start": None}


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def _claimed(folder: Path, clock: _Clock | None = None) -> RunFiles:
    pieces = RunFiles(folder, clock or _Clock())
    pieces.claim(_PLAN)
    return pieces


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def _write_two_steps(folder: Path) -> RunFiles:
    pieces = _claimed(folder)
    pieces.save_step(0, lambda: b"beginning")
    pieces.save_gradient(RunProgress(0, 1), lambda: b"one piece")
    pieces.save_gradient(RunProgress(0, 2), lambda: b"two pieces")
    pieces.save_step(1, lambda: b"first step")
    pieces.save_gradient(RunProgress(1, 1), lambda: b"its first piece")
    pieces.save_gradient(RunProgress(1, 3), lambda: b"its third piece")
    return pieces


def test_a_folder_without_a_run_has_nothing_to_go_on_from(tmp_path: Path) -> None:
    assert _claimed(tmp_path / "run").recover() is None


def test_the_furthest_state_is_found(tmp_path: Path) -> None:
    pieces = _write_two_steps(tmp_path)
    found = pieces.recover()
    assert found is not None
    assert (found.progress, found.step, found.gradient, found.notes) == (
        RunProgress(1, 3),
        b"first step",
        b"its third piece",
        [],
    )


def test_a_step_leaves_no_gradient_behind(tmp_path: Path) -> None:
    pieces = _write_two_steps(tmp_path)
    pieces.save_step(2, lambda: b"second step")
    found = pieces.recover()
    assert found is not None
    assert (found.progress, found.gradient) == (RunProgress(2, 0), None)


@pytest.mark.parametrize(
    ("damaged", "expected"),
    [
        (["gradient-00000001-00000003"], RunProgress(1, 1)),
        (["gradient-00000001-00000003", "gradient-00000001-00000001"], RunProgress(1, 0)),
        (["step-00000001"], RunProgress(0, 2)),
        (["step-00000001", "gradient-00000000-00000002"], RunProgress(0, 1)),
    ],
)
def test_a_damaged_file_is_passed_over_and_named(
    damaged: list[str], expected: RunProgress, tmp_path: Path
) -> None:
    pieces = _write_two_steps(tmp_path)
    for name in damaged:
        path = tmp_path / f"{name}.state"
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    found = pieces.recover()
    assert found is not None
    assert found.progress == expected
    assert [note.split(".")[0] for note in found.notes] == damaged


def test_where_nothing_is_whole_the_run_says_so(tmp_path: Path) -> None:
    pieces = _claimed(tmp_path)
    pieces.save_step(0, lambda: b"beginning")
    (tmp_path / "step-00000000.state").write_bytes(b"")
    with pytest.raises(TrainingError, match="step-00000000"):
        pieces.recover()


@settings(deadline=None, max_examples=60)
@given(
    body=st.binary(max_size=200),
    length=st.integers(0, 250),
    flipped=st.none() | st.integers(0, 250),
)
def test_no_torn_or_altered_file_is_ever_taken_for_whole(
    body: bytes, length: int, flipped: int | None, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("run")
    pieces = _claimed(folder)
    pieces.save_step(0, lambda: b"beginning")
    pieces.save_step(1, lambda: body)
    path = folder / "step-00000001.state"
    before = path.read_bytes()
    altered = bytearray(before[:length])
    if flipped is not None and flipped < len(altered):
        altered[flipped] ^= 1
    path.write_bytes(altered)
    found = pieces.recover()
    assert found is not None
    assert found.step == (body if altered == before else b"beginning")


def test_only_what_may_be_needed_again_is_kept(tmp_path: Path) -> None:
    pieces = _claimed(tmp_path)
    for step in range(6):
        pieces.save_step(step, lambda: b"step")
        for number in range(1, 6):
            pieces.save_gradient(RunProgress(step, number), lambda: b"gradient")
    assert _names(tmp_path) == {
        "run.json",
        "lock",
        *(f"step-0000000{step}.state" for step in (4, 5)),
        *(f"gradient-0000000{step}-0000000{number}.state" for step in (4, 5) for number in (4, 5)),
    }


def test_what_a_killed_process_was_writing_is_swept_away(tmp_path: Path) -> None:
    (tmp_path / ".step-00000007.state.5eed.tmp").write_bytes(b"half of")
    assert _claimed(tmp_path).recover() is None
    assert ".step-00000007.state.5eed.tmp" not in _names(tmp_path)


@pytest.mark.parametrize(
    "change", [{"name": "day"}, {"rank": 4}, {"seed": 2}, {"start": {"adapter": "x"}}]
)
def test_another_runs_folder_is_refused_and_the_difference_named(
    change: dict[str, Json], tmp_path: Path
) -> None:
    _write_two_steps(tmp_path).release(discard=False)
    with pytest.raises(TrainingError, match=f"another {next(iter(change))}"):
        RunFiles(tmp_path).claim(_PLAN | change)


def test_two_processes_cannot_have_one_run(tmp_path: Path) -> None:
    held = _claimed(tmp_path)
    with pytest.raises(TrainingError, match="another process"):
        _claimed(tmp_path)
    held.release(discard=False)
    _claimed(tmp_path)


def test_gradients_are_kept_as_often_as_a_twentieth_of_the_time_allows(tmp_path: Path) -> None:
    clock = _Clock()
    pieces = _claimed(tmp_path, clock)
    pieces.save_step(0, lambda: b"")

    def slow() -> bytes:
        clock.now += 2.0
        return b""

    found = [pieces.is_due]
    pieces.save_gradient(RunProgress(0, 1), slow)
    for worked_s in (39.0, 2.0):
        clock.now += worked_s
        found.append(pieces.is_due)
    assert found == [True, False, True]


def test_one_write_across_a_long_stop_does_not_end_all_writing(tmp_path: Path) -> None:
    clock = _Clock()
    pieces = _claimed(tmp_path, clock)
    pieces.save_step(0, lambda: b"")
    for number, cost_s in enumerate((1.0, 3600.0), 1):

        def write(cost_s: float = cost_s) -> bytes:
            clock.now += cost_s
            return b""

        pieces.save_gradient(RunProgress(0, number), write)
    clock.now += 21.0
    assert pieces.is_due


def test_a_full_disk_is_a_training_error_and_leaves_what_was_there(tmp_path: Path) -> None:
    pieces = _write_two_steps(tmp_path)

    def fail() -> bytes:
        raise OSError(28, "No space left on device")

    with pytest.raises(TrainingError, match="No space left"):
        pieces.save_step(2, fail)
    found = pieces.recover()
    assert found is not None
    assert found.progress == RunProgress(1, 3)


def test_removing_a_run_leaves_what_is_not_its_own(tmp_path: Path) -> None:
    run = tmp_path / "run"
    _write_two_steps(run).release(discard=False)
    (run / "drawn").mkdir()
    remove_run(run)
    assert _names(run) == {"drawn"}
    (run / "drawn").rmdir()
    remove_run(run)
    assert not run.exists()
    remove_run(run)
    assert not _names(tmp_path)


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    save_file(
        {"a": torch.ones(3, 5), "b": torch.zeros(7)},
        tmp_path / WEIGHTS_FILE,
        metadata={"format": "pt"},
    )
    (tmp_path / CONFIG_FILE).write_text("{}")
    return tmp_path


def test_what_is_all_there_is_whole(adapter: Path) -> None:
    assert is_complete_adapter(adapter)


@pytest.mark.parametrize("name", [CONFIG_FILE, WEIGHTS_FILE])
def test_without_one_of_its_files_it_is_not(adapter: Path, name: str) -> None:
    (adapter / name).unlink()
    assert not is_complete_adapter(adapter)


def test_nor_with_an_empty_configuration(adapter: Path) -> None:
    (adapter / CONFIG_FILE).write_bytes(b"")
    assert not is_complete_adapter(adapter)


def test_nor_cut_at_any_byte(adapter: Path) -> None:
    body = (adapter / WEIGHTS_FILE).read_bytes()
    for length in range(len(body)):
        (adapter / WEIGHTS_FILE).write_bytes(body[:length])
        assert not is_complete_adapter(adapter)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.binary(max_size=64))
def test_whatever_else_stands_there_is_no_adapter(adapter: Path, rubbish: bytes) -> None:
    (adapter / WEIGHTS_FILE).write_bytes(len(rubbish).to_bytes(8, "little") + rubbish + b"more")
    assert not is_complete_adapter(adapter)
