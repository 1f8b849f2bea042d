"""The main loop of the engine process: read requests from a pipe, run the batches of all versions,
write answers.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias, assert_never

import torch

from metaclaw.domain.policy import BASE_POLICY
from metaclaw.engine import frames
from metaclaw.engine.batch import ServedModel
from metaclaw.engine.checkpoint import Steps, finish, map_tensors, read_shape
from metaclaw.engine.frames import Pipe
from metaclaw.engine.llama import Llama
from metaclaw.engine.shared_model import SharedModel
from metaclaw.engine.versions import Version, adapted, warm_adapter
from metaclaw.engine.vocabulary import Vocabulary
from metaclaw.errors import MetaClawError, WireError

_SHARE: Final = 0.15
_MOST_S: Final = 0.0075
"""Between two rounds of passes, loading and freeing get `_SHARE` of the round's time, at most
`_MOST_S`, which a reader does not notice. The work is done in steps, which are not interrupted."""
_LOOK_S: Final = 0.002

Line: TypeAlias = Pipe[frames.ToEngine, frames.FromEngine]


class Engine:
    """Serves the requests of one pipe with a model and versions of it."""

    def __init__(
        self, pipe: Line, folder: Path, slots: int, dtype: torch.dtype, device: str = "cpu"
    ) -> None:
        self._pipe = pipe
        self._slots = slots
        self._vocabulary = Vocabulary(folder)
        tensors = map_tensors(folder)
        self._adapted: Callable[[Path], Steps[ServedModel]]
        if device == "cpu":
            llama = Llama(
                read_shape(folder), {name: tensor.to(dtype) for name, tensor in tensors.items()}
            )
            self._model: ServedModel = llama
            self._adapted = partial(adapted, llama, tensors)
        else:
            shared = SharedModel(read_shape(folder), tensors, slots, device=device, dtype=dtype)
            self._model, self._adapted = shared, shared.with_adapter
        self._versions = {BASE_POLICY: Version(self._model, self._vocabulary, slots, None)}
        self._leaving: dict[int, Version] = {}
        self._displaced: list[Version] = []
        self._pending: dict[int, Steps[None]] = {}
        """Versions being loaded, or being freed."""
        self._reader = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reader")

    def run(self, adapters: Mapping[int, Path]) -> None:
        """Load these versions, then serve until the pipe ends."""
        for number, adapter in adapters.items():
            finish(self._load(None, number, adapter))
        self._pipe.send(frames.EngineReady(self._model.context, self._slots))
        while True:
            self._listen(wait=self._is_idle)
            began = time.monotonic()
            # Versions take turns, pass by pass. Those with requests that wait for a first token
            # come first.
            for version in sorted(self._present, key=lambda version: not version.is_reading):
                if not version.is_idle:
                    for message in version.step():
                        self._pipe.send(message)
                    self._listen(wait=False)
            self._dismiss()
            self._work(time.monotonic() - began)

    @property
    def _is_idle(self) -> bool:
        has_work = self._pending or self._leaving or self._displaced
        return not has_work and all(version.is_idle for version in self._versions.values())

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
            return frames.Unserved(
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
            # If the memory of its predecessor is being freed step by step, this frees the rest at
            # once.
            self._pending[number] = self._load(message.id, number, adapter)

    def _load(self, id: int | None, number: int, adapter: Path) -> Steps[None]:
        # A thread waits for the disk. Everything else runs between passes: a thread would take the
        # interpreter lock and a core from the running answers.
        reading = self._reader.submit(warm_adapter, adapter)
        while not reading.done():
            wait([reading], timeout=_LOOK_S)
            yield
        # A bad adapter must not abort running answers.
        try:
            model = yield from self._adapted(adapter)
            self._versions[number] = Version(model, self._vocabulary, self._slots, adapter)
        except (MetaClawError, MemoryError, RuntimeError, ArithmeticError, ValueError) as error:
            self._pipe.send(frames.NotLoaded(id, number, str(error)))
            return
        if id is not None:
            self._pipe.send(frames.Loaded(id))

    def _unload(self, number: int) -> None:
        if version := self._versions.pop(number, None):
            self._leaving[number] = version
        elif number not in self._leaving:
            # If it is being loaded, the load is dropped.
            self._pending.pop(number, None)
            self._pipe.send(frames.Unloaded(number))

    def _dismiss(self) -> None:
        """Free unloaded versions whose last answer is finished. No message is sent for a version
        whose number was reused.
        """
        self._displaced = [version for version in self._displaced if not version.is_idle]
        for number, version in list(self._leaving.items()):
            if version.is_idle:
                del self._leaving[number]
                self._pending[number] = self._free(number, version)

    def _free(self, number: int, version: Version) -> Steps[None]:
        yield from version.dissolve()
        self._pipe.send(frames.Unloaded(number))

    def _work(self, serving_s: float) -> None:
        """Do steps of loading and freeing for a share of `serving_s`, the time of the last round of
        passes.
        """
        began, most_s = time.monotonic(), min(_SHARE * serving_s, _MOST_S)
        while self._pending:
            number = next(iter(self._pending))
            try:
                next(self._pending[number])
            except StopIteration:
                del self._pending[number]
            if time.monotonic() - began >= most_s:
                return
