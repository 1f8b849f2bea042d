"""The embedded model as the program sees it: a provider whose answers are made in a child process. Imports nothing heavy."""

import asyncio
import itertools
import logging
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeAlias, assert_never

from metaclaw.domain.chat import Begin, ChatRequest, Delta, End, Finish, SampledTokens, TextDelta, TokenLogprob, Usage
from metaclaw.domain.ids import new_id
from metaclaw.domain.policy import BASE_POLICY, Weights
from metaclaw.engine import frames
from metaclaw.engine.child_process import EngineProcess
from metaclaw.engine.hosting import Hosting
from metaclaw.engine.prompt import Prompt, build_prompt, make_message
from metaclaw.engine.tool_calls import CallParser
from metaclaw.errors import EngineError, WireError
from metaclaw.wires import wire_format

log = logging.getLogger(__name__)

MODEL_ID: Final = "smollm2-135m-instruct"
_MAX_IN_FLIGHT: Final = 256
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0
_MAX_THREADS: Final = 8

_Event: TypeAlias = frames.Told | EngineError


class EmbeddedModel:
    """A ModelProvider and a PolicyHost: one model, and versions of it with adapters, side by side in one process.

    `folder` is where SmolLM2 is converted to once, or, with `convert=False`, any Llama-type model's folder. `busy` is called with
    True before the first of the running requests is begun, and with False when the last one has ended.
    """

    def __init__(
        self,
        folder: Path,
        *,
        name: str = "embedded",
        convert: bool = True,
        threads: int | None = None,
        slots: int = 8,
        dtype: str = "float32",
        start_timeout_s: float = 120.0,
        busy: Callable[[bool], None] | None = None,
    ) -> None:
        self.name = name
        self._threads = threads or _default_threads()
        self._arguments = [str(folder), "--threads", str(self._threads), "--slots", str(slots), "--dtype", dtype]
        self._arguments += ["--convert"] if convert else []
        self._models = (MODEL_ID if convert else folder.name,)
        self._start_timeout_s = start_timeout_s
        self._state = "stopped"
        self._child: EngineProcess | None = None
        self._settled = asyncio.Event()
        self._broken: str | None = None
        self._busy = busy
        self._inboxes: dict[int, asyncio.Queue[_Event]] = {}
        self._ids = itertools.count(1)
        self._hosting = Hosting(self._ready_child)
        self._supervisor: asyncio.Task[None] | None = None

    @property
    def models(self) -> tuple[str, ...]:
        """The one model it serves."""
        return self._models

    @property
    def state(self) -> str:
        """How it is, for a person: `starting: converting 40%`, `ready`, `failed: …`, `stopped`."""
        return self._state

    @property
    def pid(self) -> int | None:
        """The engine process, while there is one."""
        return self._child.pid if self._child else None

    async def start(self) -> None:
        """Begin to start the engine; requests that come before it is ready wait for it."""
        if self._supervisor is None:
            self._broken = None
            self._settled.clear()
            self._turn("starting")
            self._supervisor = asyncio.create_task(self._supervise(), name="embedded model")

    async def aclose(self) -> None:
        """End the engine and everything it is doing."""
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.cancel()
            with suppress(asyncio.CancelledError):
                await supervisor
            self._turn("stopped")
            self._settled.set()

    @property
    def loaded(self) -> frozenset[int]:
        """The trained versions that can be asked for; the untrained model always can."""
        return self._hosting.loaded

    def expect(self, version: int, weights: Weights) -> None:
        """Before `start`: be ready only with this version. One that cannot be loaded then is missing, and the log says why."""
        self._hosting.expect(version, weights)

    async def load(self, version: int, weights: Weights) -> None:
        """Make a version ready beside those that serve, which hardly notice. Raises TrainingError, and changes nothing, if it
        cannot be loaded. After a crash of the engine process everything is loaded again before it answers."""
        await self._hosting.load(version, weights)

    async def unload(self, version: int) -> None:
        """Take no more requests for a version, and let it go when its running answers are finished."""
        await self._hosting.unload(version)

    async def generate(self, request: ChatRequest, version: int = BASE_POLICY) -> AsyncGenerator[Delta, None]:
        """Answer with exactly these weights. Closing the iterator early stops the engine's work on it within one decode step.

        Raises EngineError, retryable, for a version that is not loaded.
        """
        number = next(self._ids)
        try:
            prompt = build_prompt(request)
            frame = frames.pack(make_message(number, request, prompt, version))
        except UnicodeEncodeError as error:
            raise WireError("the request holds text that is not Unicode (half of a surrogate pair)", param="messages") from error
        if len(self._inboxes) >= _MAX_IN_FLIGHT:
            raise EngineError(f"the embedded model is busy with {len(self._inboxes)} requests", retryable=True)
        child = await self._ready_child()
        inbox: asyncio.Queue[_Event] = asyncio.Queue()
        self._begin(number, inbox)
        try:
            child.send(frame)
            async for delta in self._deltas(inbox, request, prompt):
                yield delta
        finally:
            # To a request that is finished this says nothing; to any other it is the end.
            child.send(frames.pack(frames.Cancel(number)))
            self._end(number)

    def _begin(self, number: int, inbox: "asyncio.Queue[_Event]") -> None:
        if self._busy is not None and not self._inboxes:
            self._busy(True)
        self._inboxes[number] = inbox

    def _end(self, number: int) -> None:
        del self._inboxes[number]
        if self._busy is not None and not self._inboxes:
            self._busy(False)

    async def _deltas(self, inbox: "asyncio.Queue[_Event]", request: ChatRequest, prompt: Prompt) -> AsyncGenerator[Delta, None]:
        parser = CallParser(prompt.tool_names, prompt.beginning) if prompt.tool_names else None
        while True:
            event = await inbox.get()
            match event:
                case frames.Accepted():
                    yield Begin(new_id(wire_format(request.wire).id_prefix), self._models[0], Usage(event.prompt_tokens, 0))
                case frames.Piece():
                    logprobs = tuple(TokenLogprob(shown.token, shown.logprob, tuple(shown.top)) for shown in event.shown)
                    for said in parser.push(event.text, logprobs) if parser else [TextDelta(event.text, logprobs)]:
                        yield said
                case frames.Finished():
                    for said in parser.flush() if parser else ():
                        yield said
                    yield _make_end(event, request, called=parser is not None and parser.calls > 0)
                    return
                case frames.Refused():
                    raise WireError(event.message, code=event.code, param=event.param)
                case frames.Unserved():
                    raise EngineError(event.message, retryable=True)
                case EngineError():
                    raise event
                case _:
                    assert_never(event)

    async def _ready_child(self) -> EngineProcess:
        if self._supervisor is None:
            raise EngineError("the embedded model is not running")
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await self._settled.wait()
        except TimeoutError:
            raise EngineError(f"the embedded model is not ready ({self._state}); try again later", retryable=True) from None
        if self._child is None:
            raise EngineError(f"the embedded model cannot serve: {self._broken or self._state}")
        return self._child

    async def _supervise(self) -> None:
        pause_s = _FIRST_PAUSE_S
        try:
            while True:
                was_ready, reason = await self._run_child()
                self._fail_all(reason)
                if self._broken is not None:
                    self._turn(f"failed: {self._broken}")
                    self._settled.set()
                    return
                pause_s = _FIRST_PAUSE_S if was_ready else min(2 * pause_s, _LONGEST_PAUSE_S)
                self._turn(f"failed: {reason}; starting again in {pause_s:g} s")
                await asyncio.sleep(pause_s)
                self._turn("starting")
        finally:
            self._fail_all("the embedded model was stopped")

    async def _run_child(self) -> tuple[bool, str]:
        """Run the engine until it ends; whether it ever was ready, and how it ended."""
        was_ready = False
        try:
            child = await EngineProcess.spawn([*self._arguments, *self._hosting.options()], self._threads)
        except OSError as error:
            return False, f"the engine process cannot be started: {error}"
        try:
            async for message in child.messages():
                was_ready = was_ready or isinstance(message, frames.EngineReady)
                self._hear(child, message)
        finally:
            self._child = None
            self._settled.clear()
            status = await child.close()
            self._hosting.restart(f"the engine process ended with status {status}")
        return was_ready, f"the engine process ended with status {status}"

    def _hear(self, child: EngineProcess, message: frames.FromEngine) -> None:
        match message:
            case frames.Progress():
                percent = round(message.share * 100)
                # An owner wants to see that it moves, not every step of it.
                level = logging.DEBUG if percent % 20 else logging.INFO
                self._turn(f"starting: {message.stage} {percent}%" if percent else f"starting: {message.stage}", level)
            case frames.EngineReady():
                self._child = child
                self._turn("ready")
                self._settled.set()
            case frames.StartFailed():
                self._broken = message.message
            case frames.Loaded() | frames.NotLoaded() | frames.Unloaded():
                self._hosting.hear(message)
            case frames.Accepted() | frames.Refused() | frames.Unserved() | frames.Piece() | frames.Finished():
                if inbox := self._inboxes.get(message.id):
                    inbox.put_nowait(message)
            case _:
                assert_never(message)

    def _fail_all(self, reason: str) -> None:
        for inbox in self._inboxes.values():
            inbox.put_nowait(EngineError(f"the embedded model stopped in the middle of an answer: {reason}", retryable=True))

    def _turn(self, state: str, level: int = logging.INFO) -> None:
        self._state = state
        log.log(level, "embedded_model state=%r", state)


def _make_end(event: frames.Finished, request: ChatRequest, *, called: bool) -> End:
    finish = Finish.LENGTH if event.at_length else Finish.TOOL_CALLS if called else Finish.STOP
    return End(
        finish=finish,
        usage=Usage(len(event.prompt_ids), len(event.sampled_ids), cached_tokens=event.cached_tokens),
        stop_sequence=event.stop_sequence if event.stop_sequence in request.sampling.stop else None,
        tokens=SampledTokens(tuple(event.prompt_ids), tuple(event.sampled_ids), tuple(event.logprobs)),
    )


def _default_threads() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, _MAX_THREADS)
