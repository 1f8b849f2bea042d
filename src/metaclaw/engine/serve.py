"""The main loop of the engine process: read requests from a pipe, run the batches of all versions,
write answers.
"""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Final, TypeAlias, assert_never

import torch

from metaclaw.domain.policy import BASE_POLICY
from metaclaw.engine import frames
from metaclaw.engine.checkpoint import map_tensors, read_shape
from metaclaw.engine.frames import Pipe
from metaclaw.engine.served_model import ServedModel
from metaclaw.engine.training.lora import Adapter, read_adapter
from metaclaw.engine.versions import Version
from metaclaw.engine.vocabulary import Vocabulary
from metaclaw.errors import MetaClawError, WireError

_LOOK_S: Final = 0.002
"""How long the loop waits for an adapter that is being read, between two rounds of passes."""
_UNUSABLE: Final = (MetaClawError, MemoryError, RuntimeError, ArithmeticError, ValueError)
"""What a bad adapter may raise, which must not abort running answers."""

Line: TypeAlias = Pipe[frames.ToEngine, frames.FromEngine]


class Engine:
    """Serves the requests of one pipe with a model and versions of it."""

    def __init__(
        self, pipe: Line, folder: Path, slots: int, dtype: torch.dtype, device: str = "cpu"
    ) -> None:
        self._pipe = pipe
        self._vocabulary = Vocabulary(folder)
        self._model = ServedModel(
            read_shape(folder), map_tensors(folder), slots, device=device, dtype=dtype
        )
        self._versions = {BASE_POLICY: Version(self._model, self._vocabulary)}
        self._leaving: dict[int, Version] = {}
        self._displaced: list[Version] = []
        self._loading: dict[int, tuple[frames.Load, Future[Adapter]]] = {}
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reader")

    def run(self, adapters: Mapping[int, Path]) -> None:
        """Load these versions, then serve until the pipe ends."""
        for number, folder in adapters.items():
            try:
                self._add(number, folder, read_adapter(folder))
            except _UNUSABLE as error:
                self._pipe.send(frames.NotLoaded(None, number, str(error)))
        self._pipe.send(frames.EngineReady(self._model.context, len(self._model.cache.slots)))
        while True:
            self._listen(wait=self._is_idle)
            # Versions take turns, pass by pass. Those with requests that wait for a first token
            # come first.
            for version in sorted(self._present, key=lambda version: not version.is_reading):
                if not version.is_idle:
                    for message in version.step():
                        self._pipe.send(message)
                    self._listen(wait=False)
            self._dismiss()
            self._finish_loads()

    @property
    def _is_idle(self) -> bool:
        return not self._loading and all(version.is_idle for version in self._present)

    @property
    def _present(self) -> list[Version]:
        return [*self._versions.values(), *self._leaving.values(), *self._displaced]

    def _listen(self, *, wait: bool) -> None:
        message = self._pipe.wait() if wait else self._pipe.look()
        while message is not None:
            self._take(message)
            message = self._pipe.look()

    def _take(self, message: frames.ToEngine) -> None:
        match message:
            case frames.Generate():
                self._pipe.send(self._begin(message))
            case frames.Cancel():
                for version in self._present:
                    version.cancel(message.id)
            case frames.Load():
                self._admit(message)
            case frames.Unload():
                self._unload(message.version)
            case _:
                assert_never(message)

    def _begin(self, message: frames.Generate) -> frames.RequestReply:
        version = self._versions.get(message.version)
        if version is None:
            return frames.Refused(
                message.id, f"version {message.version} of the weights is not loaded"
            )
        try:
            return version.begin(message)
        except WireError as error:
            return frames.Refused(message.id, str(error), error.code, error.param)

    def _admit(self, message: frames.Load) -> None:
        number, adapter = message.version, Path(message.adapter)
        if leaving := self._leaving.pop(number, None):
            if leaving.adapter == adapter:
                self._versions[number] = leaving
            else:
                # The number is reused for other weights while the old version still answers.
                self._displaced.append(leaving)
        if number in self._versions:
            self._pipe.send(frames.Loaded(message.id))
        else:
            reading = self._reader.submit(read_adapter, adapter)
            self._loading[number] = (message, reading)

    def _finish_loads(self) -> None:
        for number, (message, reading) in list(self._loading.items()):
            wait([reading], timeout=_LOOK_S)
            if not reading.done():
                continue
            del self._loading[number]
            try:
                self._add(number, Path(message.adapter), reading.result())
            except _UNUSABLE as error:
                self._pipe.send(frames.NotLoaded(message.id, number, str(error)))
            else:
                self._pipe.send(frames.Loaded(message.id))

    def _add(self, number: int, folder: Path, adapter: Adapter) -> None:
        model = self._model.with_adapter(adapter)
        self._versions[number] = Version(model, self._vocabulary, folder)

    def _unload(self, number: int) -> None:
        if version := self._versions.pop(number, None):
            self._leaving[number] = version
        elif number not in self._leaving:
            # If it is being loaded, the load is dropped.
            self._loading.pop(number, None)
            self._pipe.send(frames.Unloaded(number))

    def _dismiss(self) -> None:
        """Drop unloaded versions whose last answer is finished. No message is sent for a version
        whose number was reused.
        """
        self._displaced = [version for version in self._displaced if not version.is_idle]
        for number, version in list(self._leaving.items()):
            if version.is_idle:
                del self._leaving[number]
                self._pipe.send(frames.Unloaded(number))
