"""The embedded model: a provider that answers with a child process. Imports nothing heavy."""

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias, assert_never

import msgspec

from metaclaw.domain.chat import (
    Begin,
    ChatRequest,
    Delta,
    End,
    Finish,
    SampledTokens,
    TextDelta,
    TokenLogprob,
    Usage,
)
from metaclaw.domain.ids import new_id
from metaclaw.domain.policy import BASE_POLICY, Weights
from metaclaw.engine import frames
from metaclaw.engine.child_process import EngineProcess, default_threads, start_engine
from metaclaw.engine.prompt import CallParser, Prompt, build_prompt, make_message
from metaclaw.errors import (
    OUT_OF_RESOURCES,
    BackendDownError,
    EngineError,
    TrainingError,
    WeightsLostError,
    WireError,
)
from metaclaw.wires import wire_format

log = logging.getLogger(__name__)

MODEL_ID: Final = "smollm2-135m-instruct"
_BACKEND: Final = "embedded"
_MAX_IN_FLIGHT: Final = 256
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0
_BROKEN_PAUSE_S: Final = 60.0
_INSTALLING_WAIT_S: Final = 10

_Event: TypeAlias = frames.RequestReply | EngineError


@dataclass(frozen=True, slots=True)
class _Load:
    """A version that the engine is loading."""

    id: int
    version: int
    weights: Weights
    done: "asyncio.Future[None]"


@dataclass(frozen=True, slots=True)
class _Unload:
    """A version that the engine is unloading."""

    weights: Weights
    done: asyncio.Event = field(default_factory=asyncio.Event)


def _fail(load: _Load, reason: str) -> None:
    if not load.done.done():
        load.done.set_exception(
            WeightsLostError(f"version {load.version} cannot be loaded: {reason}")
        )


class EmbeddedModel:
    """A ModelProvider and a PolicyHost: one model, and versions of it with adapters, in one child
    process.

    With `convert`, `folder` is made once: from SmolLM2, or from the GGUF file it names; otherwise
    the folder holds a model. `install` is awaited before each start of the engine, and tells its
    progress. `busy` is called with True before the first running request begins, and with False when
    the last one has ended."""

    def __init__(
        self,
        folder: Path,
        *,
        name: str = "embedded",
        convert: bool | Path = True,
        threads: int | None = None,
        slots: int = 8,
        device: str = "cpu",
        dtype: str = "auto",
        start_timeout_s: float = 120.0,
        busy: Callable[[bool], None] | None = None,
        install: Callable[[Callable[[str], None]], Awaitable[None]] | None = None,
    ) -> None:
        self.name = name
        self._install = install
        self._installing = ""
        self._options = frames.EngineOptions(
            folder=str(folder),
            convert=convert if isinstance(convert, bool) else str(convert),
            threads=threads or default_threads(),
            device=device,
            dtype=dtype,
            slots=slots,
        )
        self.models = (MODEL_ID if convert is True else folder.name,)
        """The model that it serves."""
        self._start_timeout_s = start_timeout_s
        self.state = "stopped"
        """For people: `installing: torch, 57 of 191 MB`, `starting: converting 40%`, `ready`,
        `failed: …`, `stopped`."""
        self._child: EngineProcess | None = None
        self._settled = asyncio.Event()
        self._broken: str | None = None
        self._busy = busy or (lambda is_busy: None)
        self._inboxes: dict[int, asyncio.Queue[_Event]] = {}
        self._supervisor: asyncio.Task[None] | None = None
        self._versions: dict[int, Weights] = {}
        self._expected: set[int] = set()
        self._ids = itertools.count(1)
        self._load: _Load | None = None
        self._one_at_a_time = asyncio.Lock()
        self._unloads: dict[int, _Unload] = {}

    @property
    def pid(self) -> int | None:
        """The id of the engine process, while there is one."""
        return self._child.pid if self._child else None

    async def start(self) -> None:
        """Begin to start the engine; requests wait until it is ready."""
        if self._supervisor is None:
            self._broken = None
            self._settled.clear()
            self._set_state("starting")
            self._supervisor = asyncio.create_task(self._supervise(), name="embedded model")

    async def aclose(self) -> None:
        """End the engine and its running answers."""
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            supervisor.cancel()
            with suppress(asyncio.CancelledError):
                await supervisor
            self._set_state("stopped")
            self._settled.set()

    @property
    def loaded(self) -> frozenset[int]:
        """The trained versions that can answer; an expected version counts once `load` has waited
        for it.
        """
        return frozenset(self._versions.keys() - self._expected)

    def expect(self, version: int, weights: Weights) -> None:
        """Called before `start`: load this version before the engine is ready. If that fails, the
        version is missing, and the log says why."""
        self._versions[version] = weights
        self._expected.add(version)

    async def load(self, version: int, weights: Weights) -> None:
        """Load a version while others serve. A version that is loaded stays as it is, and so does
        one that is being unloaded. After a crash of the engine process all versions are loaded
        again before it answers.

        Raises TrainingError and changes nothing if it cannot be loaded: WeightsLostError if the
        engine cannot use it or dies, BackendDownError if there is no engine."""
        if version <= BASE_POLICY:
            raise TrainingError(f"version {version} has no trained weights")
        if weights.backend != _BACKEND:
            raise TrainingError(
                f"version {version} was trained by {weights.backend}, and only {weights.backend}"
                " can serve it"
            )
        async with self._one_at_a_time:
            if version in self._expected:
                await self._ready(version)  # then it is known whether the version could be read
                self._expected.discard(version)
            unload = self._unloads.get(version)
            known = self._versions.get(version) if unload is None else unload.weights
            if known is not None and known.adapter != weights.adapter:
                raise TrainingError(
                    f"version {version} is loaded with other weights, from {known.adapter}"
                )
            if version not in self._versions:
                await self._load_now(version, weights)

    async def _load_now(self, version: int, weights: Weights) -> None:
        child = await self._ready(version)
        if unload := self._unloads.pop(version, None):
            unload.done.set()
        self._load = load = _Load(
            next(self._ids), version, weights, asyncio.get_running_loop().create_future()
        )
        child.send(frames.pack(frames.Load(load.id, version, weights.adapter)))
        try:
            await load.done
        except asyncio.CancelledError:
            # Unload it, even if it has just been loaded.
            self._versions.pop(version, None)
            child.send(frames.pack(frames.Unload(version)))
            raise
        finally:
            self._load = None

    async def _ready(self, version: int) -> EngineProcess:
        try:
            return await self._ready_child()
        except EngineError as error:
            raise BackendDownError(f"version {version} cannot be loaded: {error}") from error

    async def unload(self, version: int) -> None:
        """Refuse new requests for a version, and unload it when its running answers are finished;
        returns when its memory is free. Unknown versions are ignored."""
        if weights := self._versions.pop(version, None):
            self._unloads[version] = _Unload(weights)
        unload = self._unloads.get(version)
        if unload is None:
            return
        try:
            child = await self._ready_child()
        except EngineError:
            self._unloads.pop(version, None)
            return
        if self._unloads.get(version) is unload:
            child.send(frames.pack(frames.Unload(version)))
        await unload.done.wait()

    async def generate(
        self, request: ChatRequest, version: int = BASE_POLICY
    ) -> AsyncGenerator[Delta, None]:
        """Answer with exactly these weights. Closing the iterator early stops the engine's work
        within one decode step.

        Raises EngineError, retryable, for a version that is not loaded.
        """
        number = next(self._ids)
        try:
            prompt = build_prompt(request)
            frame = frames.pack(make_message(number, request, prompt, version))
        except UnicodeEncodeError as error:
            raise WireError(
                "the request holds text that is not Unicode (half of a surrogate pair)",
                param="messages",
            ) from error
        if len(self._inboxes) >= _MAX_IN_FLIGHT:
            raise EngineError(
                f"the embedded model is busy with {len(self._inboxes)} requests", retryable=True
            )
        child = await self._ready_child()
        inbox: asyncio.Queue[_Event] = asyncio.Queue()
        if not self._inboxes:
            self._busy(True)
        self._inboxes[number] = inbox
        try:
            child.send(frame)
            async for delta in self._deltas(inbox, request, prompt):
                yield delta
        finally:
            # For a finished request the engine ignores this.
            child.send(frames.pack(frames.Cancel(number)))
            del self._inboxes[number]
            if not self._inboxes:
                self._busy(False)

    async def _deltas(
        self, inbox: "asyncio.Queue[_Event]", request: ChatRequest, prompt: Prompt
    ) -> AsyncGenerator[Delta, None]:
        parser = CallParser(prompt.tool_names, prompt.beginning) if prompt.tool_names else None
        while True:
            event = await inbox.get()
            match event:
                case frames.Accepted():
                    yield Begin(
                        new_id(wire_format(request.wire).id_prefix),
                        self.models[0],
                        Usage(event.prompt_tokens, 0),
                    )
                case frames.AnswerPiece():
                    logprobs = tuple(
                        TokenLogprob(shown.token, shown.logprob, tuple(shown.top))
                        for shown in event.shown
                    )
                    for delta in (
                        parser.push(event.text, logprobs)
                        if parser
                        else [TextDelta(event.text, logprobs)]
                    ):
                        yield delta
                case frames.Finished():
                    for delta in parser.flush() if parser else ():
                        yield delta
                    yield _make_end(event, request, called=parser is not None and parser.calls > 0)
                    return
                case frames.Refused():
                    if event.code is None:
                        raise EngineError(event.message, retryable=True)
                    raise WireError(event.message, code=event.code, param=event.param)
                case EngineError():
                    raise event
                case _:
                    assert_never(event)

    async def _ready_child(self) -> EngineProcess:
        if self._supervisor is None:
            raise EngineError("the embedded model is not running")
        if self._installing:
            raise EngineError(
                f"the embedded model is still being installed ({self._installing}); try again in a"
                " minute",
                retryable=True,
                wait_s=_INSTALLING_WAIT_S,
            )
        try:
            async with asyncio.timeout(self._start_timeout_s):
                await self._settled.wait()
        except TimeoutError:
            raise EngineError(
                f"the embedded model is not ready ({self.state}); try again later", retryable=True
            ) from None
        if self._child is None:
            raise EngineError(f"the embedded model cannot serve: {self._broken or self.state}")
        return self._child

    async def _supervise(self) -> None:
        pause_s = _FIRST_PAUSE_S
        try:
            while True:
                was_ready, reason = await self._run_child()
                self._fail_all(reason)
                pause_s = _FIRST_PAUSE_S if was_ready else min(2 * pause_s, _LONGEST_PAUSE_S)
                if self._broken is not None:
                    # Requests are refused until it can start. Each attempt may take seconds of
                    # computing, and rarely helps.
                    pause_s = _BROKEN_PAUSE_S
                    self._settled.set()
                self._set_state(
                    f"failed: {self._broken or reason}; starting again in {pause_s:g} s"
                )
                await asyncio.sleep(pause_s)
                if self._broken is None:
                    self._set_state("starting")
        finally:
            self._fail_all("the embedded model was stopped")

    async def _run_child(self) -> tuple[bool, str]:
        """Run the engine until it ends; return whether it was ever ready, and how it ended."""
        was_ready = False
        if self._install is not None:
            try:
                await self._install(self._tell_installing)
            except EngineError as error:
                self._broken = str(error)
                return False, str(error)
            finally:
                was_installed, self._installing = bool(self._installing), ""
            if was_installed:
                self._set_state("starting")
        # All versions are loaded again before the new process is ready.
        adapters = {version: weights.adapter for version, weights in self._versions.items()}
        try:
            child = await start_engine(msgspec.structs.replace(self._options, adapters=adapters))
        except OUT_OF_RESOURCES as error:
            return False, f"the engine process cannot be started: {error}"
        try:
            async for message in child.messages():
                was_ready = was_ready or isinstance(message, frames.EngineReady)
                self._receive(child, message)
        finally:
            self._child = None
            self._settled.clear()
            status = await child.close()
            if self._load is not None:
                _fail(self._load, f"the engine process ended with status {status}")
            while self._unloads:
                self._unloads.popitem()[1].done.set()
        return was_ready, f"the engine process ended with status {status}"

    def _tell_installing(self, what: str) -> None:
        is_new = what.partition(",")[0] != self._installing.partition(",")[0]
        if not self._installing:
            self._broken = None
            self._settled.clear()
        self._installing = what
        self._set_state(f"installing: {what}", logging.INFO if is_new else logging.DEBUG)

    def _receive(self, child: EngineProcess, message: frames.FromEngine) -> None:
        match message:
            case frames.Progress():
                percent = round(message.share * 100)
                # The log shows every fifth of the progress.
                level = logging.DEBUG if percent % 20 else logging.INFO
                share = f" {percent}%" if percent else ""
                self._set_state(f"starting: {message.stage}{share}", level)
            case frames.EngineReady():
                self._broken = None
                self._child = child
                self._set_state("ready")
                self._settled.set()
            case frames.StartFailed():
                self._broken = message.message
            case frames.Loaded():
                if (load := self._load) and load.id == message.id and not load.done.done():
                    self._versions[load.version] = load.weights
                    load.done.set_result(None)
            case frames.NotLoaded():
                if (load := self._load) and load.id == message.id:
                    _fail(load, message.message)
                elif message.id is None and self._versions.pop(message.version, None) is not None:
                    log.error("version_lost version=%d reason=%r", message.version, message.message)
            case frames.Unloaded():
                if unload := self._unloads.pop(message.version, None):
                    unload.done.set()
            case _:
                if inbox := self._inboxes.get(message.id):
                    inbox.put_nowait(message)

    def _fail_all(self, reason: str) -> None:
        for inbox in self._inboxes.values():
            inbox.put_nowait(
                EngineError(
                    f"the embedded model stopped in the middle of an answer: {reason}",
                    retryable=True,
                )
            )

    def _set_state(self, state: str, level: int = logging.INFO) -> None:
        self.state = state
        log.log(level, "embedded_model state=%r", state)


def _make_end(event: frames.Finished, request: ChatRequest, *, called: bool) -> End:
    finish = Finish.TOOL_CALLS if called else Finish.STOP
    if event.at_length:
        finish = Finish.LENGTH
    return End(
        finish=finish,
        usage=Usage(
            len(event.prompt_ids), len(event.sampled_ids), cached_tokens=event.cached_tokens
        ),
        stop_sequence=event.stop_sequence if event.stop_sequence in request.sampling.stop else None,
        tokens=SampledTokens(
            tuple(event.prompt_ids), tuple(event.sampled_ids), tuple(event.logprobs)
        ),
    )
