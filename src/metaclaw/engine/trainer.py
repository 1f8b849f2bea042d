"""Train the embedded model in a child process, and pause training during answers.

With few cores a low priority is not enough, so a signal stops the trainer's whole process group
before an answer begins, and another continues it afterwards. Imports nothing heavy."""

import asyncio
import ctypes
import logging
import os
import pickle
import re
import shutil
from collections.abc import Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from msgspec.structs import replace

from metaclaw.domain.policy import Weights
from metaclaw.domain.training import (
    Adam,
    Datum,
    Drawing,
    Loss,
    PieceStats,
    Rollout,
    RunProgress,
    StepStats,
)
from metaclaw.engine.child_process import TrainerProcess, default_threads, start_trainer
from metaclaw.engine.frames import TrainerOptions, pack
from metaclaw.engine.training.calls import UNTRAINED, Planned, Source, TrainerCall
from metaclaw.engine.training.run_files import remove_run
from metaclaw.errors import TrainerMemoryError, TrainingError
from metaclaw.ports import Abilities, RunPlan

log = logging.getLogger(__name__)

_LABEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_Pairs: TypeAlias = Sequence[tuple[Sequence[int], Sequence[int]]]


class Pausable(Protocol):
    """A process that can be stopped and continued at once from outside."""

    def stop(self) -> None: ...
    def go(self) -> None: ...


class TrainingPause:
    """Stops its members while there are holds. The first hold stops all members before it returns;
    the last release continues them.

    Members stay stopped for `settle_s` after the last release, so that a burst of requests stops
    them once. Not thread-safe."""

    def __init__(self, *, settle_s: float = 0.0) -> None:
        self._settle_s = settle_s
        self._holds: dict[str, int] = {}
        self._members: list[Pausable] = []
        self._is_still = False
        self._settling: asyncio.TimerHandle | None = None

    @property
    def is_still(self) -> bool:
        """Whether members are stopped now."""
        return self._is_still

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why they are stopped; empty while they run, and during `settle_s`."""
        return tuple(self._holds)

    def hold(self, reason: str) -> None:
        """Stop all members until the matching `release`; they are stopped when this returns."""
        self._holds[reason] = self._holds.get(reason, 0) + 1
        if self._settling is not None:
            self._settling.cancel()
            self._settling = None
        if not self._is_still:
            self._is_still = True
            for member in self._members:
                member.stop()

    def release(self, reason: str) -> None:
        """End one hold. Raises ValueError if there is none for this reason."""
        count = self._holds.get(reason)
        if count is None:
            raise ValueError(f"training is not paused for {reason!r}")
        if count > 1:
            self._holds[reason] = count - 1
            return
        del self._holds[reason]
        if not self._holds:
            self._settle()

    def attach(self, member: Pausable) -> None:
        """Add a member; it is stopped at once while there is a hold."""
        self._members.append(member)
        if self._is_still:
            member.stop()

    def detach(self, member: Pausable) -> None:
        """Remove a member; unknown ones are ignored."""
        if member in self._members:
            self._members.remove(member)

    def _settle(self) -> None:
        try:
            loop = asyncio.get_running_loop() if self._settle_s > 0 else None
        except RuntimeError:
            loop = None  # before the program runs there is no burst to wait for
        if loop is None:
            self._go()
        else:
            self._settling = loop.call_later(self._settle_s, self._go)

    def _go(self) -> None:
        self._settling = None
        self._is_still = False
        for member in self._members:
            member.go()


class EmbeddedTrainer:
    """A TrainingBackend. `folder` is the model's folder (made once if `convert`, see EmbeddedModel);
    `policies` has a folder for each kept adapter.

    The process ends when a call is cancelled, after a pause of `release_memory_after_s`, or after
    the same time without an open run and without requests. Then no run is open; `open` continues
    from the state on disk. Calls wait while training is paused."""

    name: Final = "embedded"

    def __init__(
        self,
        folder: Path,
        policies: Path,
        *,
        training_pause: TrainingPause | None = None,
        convert: bool | Path = True,
        threads: int | None = None,
        device: str = "auto",
        dtype: str = "auto",
        nice: int = 19,
        release_memory_after_s: float | None = None,
    ) -> None:
        self.abilities: Final = Abilities(
            yields=True,
            has_own_processor=is_gpu(device),
            scales=True,
        )
        self._policies = policies
        self._training_pause = training_pause or TrainingPause()
        self._options = TrainerOptions(
            folder=str(folder),
            convert=convert if isinstance(convert, bool) else str(convert),
            threads=threads or default_threads(),
            device=device,
            dtype=dtype,
            nice=nice,
        )
        self._release_s = release_memory_after_s
        self._one_at_a_time = asyncio.Lock()
        self._child: TrainerProcess | None = None
        self._reaping: asyncio.Task[int] | None = None
        self._releasing: asyncio.TimerHandle | None = None
        self._plan: RunPlan | None = None
        self.is_open = False
        """Whether a run is open; the end of the process ends it."""

    @property
    def pid(self) -> int | None:
        """The id of the trainer process, while there is one."""
        return self._child.pid if self._child else None

    async def plan(self, device: str, rank: int, slots: int) -> Planned:
        """Measure what the model needs and how fast this machine is; no run is open then."""
        self.is_open = False
        planned: Planned = await self._ask("plan", device, rank, slots)
        return planned

    async def open(self, run: RunPlan) -> RunProgress:
        """Begin this run, or continue it from the state on disk."""
        self.is_open = False
        progress: RunProgress
        progress, notes = await self._ask("open", run)
        self._plan, self.is_open = run, True
        self._watch_memory()
        log.info(
            "run_opened name=%s steps=%d pieces=%d",
            run.name,
            progress.steps,
            progress.pieces,
        )
        for note in notes:
            log.warning("run_note name=%s note=%r", run.name, note)
        return progress

    async def sample(
        self, prompts: Sequence[Sequence[int]], drawing: Drawing, weights: Weights | None = None
    ) -> list[list[Rollout]]:
        return await self._sample(prompts, drawing, self._source(weights))

    async def sample_base(
        self, prompts: Sequence[Sequence[int]], drawing: Drawing
    ) -> list[list[Rollout]]:
        return await self._sample(prompts, drawing, UNTRAINED)

    async def score(self, pairs: _Pairs, weights: Weights | None = None) -> list[tuple[float, ...]]:
        return await self._score(pairs, self._source(weights))

    async def score_base(self, pairs: _Pairs) -> list[tuple[float, ...]]:
        return await self._score(pairs, UNTRAINED)

    async def accumulate(self, data: Sequence[Datum], loss: Loss) -> PieceStats:
        """Add one piece's gradient. It may be written to disk later; `open` returns how many pieces
        were written.
        """
        self._require_run()
        stats: PieceStats = await self._ask("accumulate", data, loss)
        return stats

    async def apply(self, adam: Adam, normaliser: float) -> StepStats:
        self._require_run()
        stats: StepStats = await self._ask("apply", adam, normaliser)
        return stats

    async def keep(self, label: str) -> Weights:
        """Write the current weights in PEFT's format, with the training state, in place of an
        earlier folder of this label.
        """
        self._require_run()
        folder = self._folder_of(label)
        await self._ask("keep", folder)
        return Weights(self.name, str(folder), str(folder))

    async def shrink(self, weights: Weights, scale: float, label: str) -> Weights:
        folder = self._folder_of(label)
        await self._ask("shrink", Path(weights.adapter), scale, folder)
        return Weights(self.name, str(folder), str(folder))

    async def discard(self, weights: Weights) -> None:
        """Remove their folder, if it is in `policies`."""
        folder = Path(weights.adapter)
        if folder.parent == self._policies:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    def _folder_of(self, label: str) -> Path:
        if not _LABEL.fullmatch(label):
            raise TrainingError(f"{label!r} is not a valid name for a folder of weights")
        return self._policies / label

    async def close(self, *, discard: bool) -> None:
        """End the run. With `discard` this does not wait for the end of a pause."""
        plan, self._plan = self._plan, None
        if discard and self._training_pause.is_still:
            await self._end(self._child)
        if self.is_open:
            self.is_open = False
            await self._ask("close", discard)
        if discard and plan is not None:
            await asyncio.to_thread(remove_run, plan.folder)

    async def aclose(self) -> None:
        """End the process; the state on disk stays."""
        await self._end(self._child)

    def stop(self) -> None:
        """Stop the process, for `TrainingPause`; it is stopped when this returns."""
        if self._child is not None:
            self._child.stop()
        self._watch_memory()

    def go(self) -> None:
        """Let the process continue, for `TrainingPause`."""
        if self._child is not None:
            self._child.go()
        self._watch_memory()

    def _watch_memory(self) -> None:
        """Set the timer that ends the process after a long pause, or after long idleness without an
        open run.
        """
        if self._releasing is not None:
            self._releasing.cancel()
            self._releasing = None
        is_idle = not self.is_open and not self._one_at_a_time.locked()
        if (
            self._release_s is not None
            and self._child is not None
            and (self._training_pause.is_still or is_idle)
        ):
            self._releasing = asyncio.get_running_loop().call_later(
                self._release_s, self._release, self._child
            )

    def _release(self, child: TrainerProcess) -> None:
        log.info("trainer_released pid=%d after_s=%g", child.pid, self._release_s)
        self._kill(child)

    async def _sample(
        self, prompts: Sequence[Sequence[int]], drawing: Drawing, source: Source
    ) -> list[list[Rollout]]:
        groups: list[list[Rollout]] = await self._ask("sample", prompts, drawing, source)
        return groups

    async def _score(self, pairs: _Pairs, source: Source) -> list[tuple[float, ...]]:
        logprobs: list[tuple[float, ...]] = await self._ask("score", pairs, source)
        return logprobs

    def _source(self, weights: Weights | None) -> Source:
        if weights is not None:
            return weights.adapter
        self._require_run()
        return None

    def _require_run(self) -> None:
        if not self.is_open:
            raise TrainingError("no run is open")

    async def _ask(self, method: str, *arguments: object) -> Any:
        """What a method of the process's `Trainer` returns. Raises TrainingError."""
        try:
            async with self._one_at_a_time:
                self._watch_memory()
                child = self._child or await self._start()
                child.send(pack(TrainerCall(method, arguments), pickle.dumps))
                return await self._next_answer(child)
        finally:
            self._watch_memory()

    async def _next_answer(self, child: TrainerProcess) -> object:
        try:
            answer = await child.next_message()
        except asyncio.CancelledError:
            self._kill(child)
            raise
        if answer is None:
            raise TrainingError(f"the trainer process ended with status {await self._end(child)}")
        if isinstance(answer, TrainerMemoryError):
            # Its memory is needed, and the state on disk is enough to continue.
            await self._end(child)
        if isinstance(answer, TrainingError):
            raise answer
        return answer.value

    async def _start(self) -> TrainerProcess:
        if self._reaping is not None:
            await asyncio.shield(self._reaping)  # two processes must not work in one folder
        try:
            child = await start_trainer(replace(self._options, parent=os.getpid()))
        except OSError as error:
            raise TrainingError(f"the trainer process cannot be started: {error}") from error
        self._child = child
        self._training_pause.attach(self)
        try:
            place = await self._next_answer(child)
        except TrainingError:
            await self._end(child)
            raise
        log.info("trainer_started pid=%d %r", child.pid, place)
        return child

    async def _end(self, child: TrainerProcess | None) -> int | None:
        """End the process and wait until it is gone; returns its exit status, or None without a
        process.
        """
        if child is not None:
            self._kill(child)
        return None if self._reaping is None else await asyncio.shield(self._reaping)

    def _kill(self, child: TrainerProcess) -> None:
        """Kill the process and reap it. Callers that wait for its answer get an error."""
        if child is not self._child:
            return
        self._training_pause.detach(self)
        self._child, self.is_open = None, False
        self._watch_memory()
        child.kill()
        self._reaping = asyncio.get_running_loop().create_task(child.close(), name="trainer's end")


def is_gpu(device: str) -> bool:
    """Whether the trainer process computes on a GPU when it is given this device: "auto", "cpu",
    "cuda" or "cuda:1".
    """
    return device.startswith("cuda") or (device == "auto" and _has_cuda())


@cache
def _has_cuda() -> bool:
    """Whether the CUDA driver has a device for us and the installed torch can use one."""
    try:
        if metadata.version("torch").endswith("+cpu"):
            return False
        driver = ctypes.CDLL("libcuda.so.1")
        devices = ctypes.c_int(0)
        return (
            driver.cuInit(0) == 0
            and driver.cuDeviceGetCount(ctypes.byref(devices)) == 0
            and devices.value > 0
        )
    except (metadata.PackageNotFoundError, OSError, AttributeError):
        return False
