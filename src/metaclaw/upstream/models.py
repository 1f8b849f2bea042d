"""Models for the program's own calls (ports.Model): judge, evolver, and the serving model in a
replay.

A call returns a complete answer or raises. It carries its purpose (`X-Metaclaw-Purpose`). A `Meter`
delays requests beyond the budget, and counts every call."""

import asyncio
from array import array
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from math import isfinite
from typing import Final, Protocol

import anyio.to_thread
import msgspec

from metaclaw.domain.chat import ChatRequest, Completion, Json, Message, Role, Text, Usage, Wire
from metaclaw.errors import ConfigError, UpstreamError, WireError
from metaclaw.ports import Call, HttpProvider, ModelProvider, Purpose, Reply
from metaclaw.text import keep_ends
from metaclaw.upstream.endpoint import gather_body
from metaclaw.upstream.routing import is_missing_route, moves_on
from metaclaw.upstream.transport import TIMEOUT
from metaclaw.wires import (
    collect,
    encode_json,
    estimate_tokens,
    parse_error,
    plain,
    read_answer,
    wire_format,
    wire_formats,
)

_waits: Final[ContextVar[bool]] = ContextVar("waits_for_budget", default=True)
_NO_TOKENS: Final = Usage(0, 0)


@dataclass(frozen=True, slots=True)
class Spent:
    """The cost of calls. `estimated` is the number of calls whose provider reported no tokens."""

    calls: int = 0
    failures: int = 0
    estimated: int = 0
    usage: Usage = _NO_TOKENS

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(
            self.calls + other.calls,
            self.failures + other.failures,
            self.estimated + other.estimated,
            self.usage + other.usage,
        )


class Charge(Protocol):
    """Counts the calls of one request, which may take several."""

    def add(self, spent: Spent) -> None:
        """Count a call."""


class Meter(Protocol):
    """Counts the program's own calls."""

    def charge(
        self, purpose: Purpose, model: str, tokens: int
    ) -> AbstractAsyncContextManager[Charge]:
        """A block for the calls of one request, which will take about `tokens`. They are recorded
        when the block ends.

        Waits for the budget. For a purpose that must not wait, and inside `without_waiting`, raises
        BudgetError instead."""


class Unmetered:
    """A meter without a limit and without counts."""

    @asynccontextmanager
    async def charge(self, purpose: Purpose, model: str, tokens: int) -> AsyncIterator[Charge]:
        yield self

    def add(self, spent: Spent) -> None:
        """Do nothing."""


UNMETERED: Final = Unmetered()


@contextmanager
def without_waiting() -> Iterator[None]:
    """Let requests made inside, and in tasks started there, raise BudgetError instead of waiting
    for the budget.
    """
    token = _waits.set(False)
    try:
        yield
    finally:
        _waits.reset(token)


def waits_for_budget() -> bool:
    """Whether a request made here may wait."""
    return _waits.get()


_HEADERS: Final = (("content-type", "application/json"), ("accept", "application/json"))
# Error statuses for a field that the server does not support.
_NOT_UNDERSTOOD: Final = frozenset({400, 422, 501})
_USUAL_ANSWER_TOKENS: Final = 500
_SCHEMA_IN_WORDS: Final = (
    "Answer with one JSON object and nothing else: no words before or after it, no code fence."
    " It must be valid against this JSON Schema:\n"
)


class HttpModel:
    """A model behind an HTTP provider, asked in the request's wire if the provider speaks it, else
    in another.
    """

    def __init__(
        self,
        provider: HttpProvider,
        model: str,
        *,
        meter: Meter = UNMETERED,
        max_concurrency: int = 4,
        timeout_s: float = 60.0,
        pause_s: float = 0.5,
    ) -> None:
        """`timeout_s` limits a whole answer, including a second try, but not the wait for the
        budget or for a free slot. Raises ConfigError for a passthrough provider."""
        if getattr(provider, "is_passthrough", False):
            raise ConfigError(
                f"provider {provider.name} forwards its callers' credentials and has none of its"
                " own, so the program cannot ask it; give it an api_key, or name another provider"
            )
        self._provider = provider
        self._model = model
        self._meter = meter
        self._pause_s = pause_s
        self._call_slots = _CallSlots(f"provider {provider.name}", max_concurrency, timeout_s)
        self._wants_words = False
        self._wants_no_seed = False
        self._missing: frozenset[Wire] = frozenset()

    @property
    def name(self) -> str:
        return f"{self._provider.name}/{self._model}"

    async def ask(self, request: ChatRequest, purpose: Purpose) -> Completion:
        """Return a complete answer. Raises UpstreamError, after a second try if that may help."""
        async with (
            self._meter.charge(purpose, self.name, _expected(request)) as charge,
            self._call_slots.turn() as deadline,
        ):
            try:
                return await self._understood(request, purpose, charge)
            except UpstreamError as error:
                pause_s = (
                    error.after_s
                    if isinstance(error, _RefusedError) and error.after_s
                    else self._pause_s
                )
                is_late = pause_s >= deadline - asyncio.get_running_loop().time()
                if is_late or not (error.retryable or moves_on(error.status)):
                    raise
            await asyncio.sleep(pause_s)
            return await self._understood(request, purpose, charge)

    async def _understood(
        self, request: ChatRequest, purpose: Purpose, charge: Charge
    ) -> Completion:
        """Ask; if the provider does not support the schema or the seed, ask without them from now
        on.
        """
        wanted = self._wanted(request)
        try:
            return await self._call(wanted, purpose, charge)
        except UpstreamError as error:
            fewer = _without_seed(_in_words(wanted))
            if fewer == wanted or error.status not in _NOT_UNDERSTOOD:
                raise
        answer = await self._call(fewer, purpose, charge)
        self._wants_words = self._wants_words or wanted.json_schema is not None
        self._wants_no_seed = self._wants_no_seed or wanted.sampling.seed is not None
        return answer

    def _wanted(self, request: ChatRequest) -> ChatRequest:
        extra = {name: value for name, value in request.extra.items() if name != "stream_options"}
        whole = replace(request, model=self._model, stream=False, include_usage=False, extra=extra)
        if self._wants_words:
            whole = _in_words(whole)
        return _without_seed(whole) if self._wants_no_seed else whole

    async def _call(self, request: ChatRequest, purpose: Purpose, charge: Charge) -> Completion:
        """Ask in the request's wire if the provider has it. If its path does not exist, ask in
        another wire from now on.
        """
        wires = self._provider.wires - self._missing
        wire = request.wire if request.wire in wires else _first_of(wires)
        try:
            return await self._call_in(wire, request, purpose, charge)
        except _RefusedError as error:
            if not error.is_missing_route or wire is _first_of(wires):
                raise
        answer = await self._call_in(_first_of(wires), request, purpose, charge)
        self._missing |= {wire}
        return answer

    async def _call_in(
        self, wire: Wire, request: ChatRequest, purpose: Purpose, charge: Charge
    ) -> Completion:
        with _at_fault():
            body = encode_json(wire_format(wire).render_request(request))
            with _counted(request, charge) as count:
                reply = await self._provider.call(
                    Call("POST", wire_format(wire).path, "", _HEADERS, body, purpose), {}
                )
                answer = await _read(reply, wire, self._provider.name)
                count(answer)
        return answer


class LocalModel:
    """A model that answers in deltas, in this process or a child of it."""

    def __init__(
        self,
        provider: ModelProvider,
        model: str,
        *,
        meter: Meter = UNMETERED,
        max_concurrency: int = 1,
        timeout_s: float = 120.0,
    ) -> None:
        self._provider = provider
        self._model = model
        self._meter = meter
        self._call_slots = _CallSlots(f"provider {provider.name}", max_concurrency, timeout_s)

    @property
    def name(self) -> str:
        return f"{self._provider.name}/{self._model}"

    async def ask(self, request: ChatRequest, purpose: Purpose) -> Completion:
        """Return a complete answer. Raises UpstreamError."""
        async with (
            self._meter.charge(purpose, self.name, _expected(request)) as charge,
            self._call_slots.turn(),
        ):
            with _at_fault():
                wanted = _in_words(
                    replace(plain(request), model=self._model, stream=False, include_usage=False)
                )
                with _counted(wanted, charge) as count:
                    async with aclosing(self._provider.generate(wanted)) as deltas:
                        answer = collect([delta async for delta in deltas])
                    count(answer)
        return answer


class _RefusedError(UpstreamError):
    """The provider returned an error; `after_s` is its Retry-After, if any."""

    def __init__(
        self, message: str, *, status: int, code: str, after_s: float | None, is_missing_route: bool
    ) -> None:
        super().__init__(message, status=status, retryable=moves_on(status), code=code)
        self.after_s = after_s
        self.is_missing_route = is_missing_route


def _first_of(wires: frozenset[Wire]) -> Wire:
    return next(format_.wire for format_ in wire_formats() if format_.wire in wires)


class _CallSlots:
    """Limits concurrent calls and the time of each."""

    def __init__(self, whom: str, max_concurrency: int, timeout_s: float) -> None:
        self._whom = whom
        self._timeout_s = timeout_s
        self._slots = asyncio.Semaphore(max_concurrency)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[float]:
        """Wait for a slot; yields its deadline on the loop's clock. The wait does not count."""
        async with self._slots:
            deadline = asyncio.get_running_loop().time() + self._timeout_s
            try:
                async with asyncio.timeout_at(deadline):
                    yield deadline
            except TimeoutError as cause:
                message = (
                    f"{self._whom} did not give a complete answer within {self._timeout_s:g} s"
                )
                raise UpstreamError(message, status=504, retryable=True, code=TIMEOUT) from cause


@contextmanager
def _counted(request: ChatRequest, charge: Charge) -> Iterator[Callable[[Completion], None]]:
    """Count one call. It counts as failed unless its answer is passed to the yielded function.

    A refused call costs nothing; a call that is cancelled because it takes too long costs its
    input."""
    answers: list[Completion] = []
    sent = Usage(0, 0)
    try:
        yield answers.append
    except asyncio.CancelledError:
        sent = Usage(estimate_tokens(request), 0)
        raise
    finally:
        charge.add(
            _cost(request, answers[0])
            if answers
            else Spent(1, failures=1, estimated=int(sent.input_tokens > 0), usage=sent)
        )


def _cost(request: ChatRequest, answer: Completion) -> Spent:
    if answer.usage is not None:
        return Spent(1, usage=answer.usage)
    said = ChatRequest(request.wire, "", (Message(Role.ASSISTANT, answer.parts),))
    return Spent(1, estimated=1, usage=Usage(estimate_tokens(request), estimate_tokens(said)))


def _expected(request: ChatRequest) -> int:
    """The estimated tokens of a request and its answer."""
    return estimate_tokens(request) + min(
        request.sampling.max_tokens or _USUAL_ANSWER_TOKENS, _USUAL_ANSWER_TOKENS
    )


@contextmanager
def _at_fault() -> Iterator[None]:
    """Turn WireError into UpstreamError, so that callers handle one kind of error."""
    try:
        yield
    except WireError as error:
        raise UpstreamError(
            f"the request cannot be sent to it: {error}", status=error.status, code=error.code
        ) from error


async def _read(reply: Reply, wire: Wire, provider: str) -> Completion:
    body = await gather_body(reply, provider)
    named = {name.lower(): value for name, value in reply.headers}
    if reply.status >= 400:
        message, code = parse_error(reply.status, body)
        after = named.get(
            "retry-after", ""
        )  # a date is ignored: it means a longer pause than we wait
        raise _RefusedError(
            f"provider {provider} refused: {message}",
            status=reply.status,
            code=code,
            after_s=float(after) if after.isdecimal() else None,
            is_missing_route=is_missing_route(reply.status, body),
        )
    # Some servers stream without being asked.
    return read_answer(wire, named.get("content-type", "").startswith("text/event-stream"), body)


def _without_seed(request: ChatRequest) -> ChatRequest:
    return replace(request, sampling=replace(request.sampling, seed=None))


def _in_words(request: ChatRequest) -> ChatRequest:
    """Move the request's schema to the end of the system text."""
    if request.json_schema is None:
        return request
    schema = request.json_schema.get("schema") or {"type": "object"}
    said = Text(_SCHEMA_IN_WORDS + encode_json(schema).decode())
    first, *others = request.messages
    if first.role is Role.SYSTEM:
        messages = (replace(first, parts=(*first.parts, said)), *others)
    else:
        messages = (Message(Role.SYSTEM, (said,)), first, *others)
    return replace(request, messages=messages, json_schema=None)


_HEAD_CHARS, _TAIL_CHARS = 700, 300
_MOST_DIMENSIONS: Final = 8192


class _Embedded(msgspec.Struct):
    embedding: list[float]
    index: int | None = None


class _Reply(msgspec.Struct):
    data: list[_Embedded]


class HttpEmbeddings:
    """One embedding model of a provider. `redact` replaces secrets in the texts before they are
    sent; it runs in a thread.
    """

    def __init__(
        self,
        provider: HttpProvider,
        model: str,
        redact: Callable[[Sequence[str]], Sequence[str]],
        *,
        timeout_s: float = 30.0,
    ) -> None:
        self._provider = provider
        self._model = model
        self._redact = redact
        self._timeout_s = timeout_s
        self._who = f"provider {provider.name}"

    @property
    def name(self) -> str:
        return f"{self._provider.name}/{self._model}"

    async def embed(self, texts: Sequence[str]) -> list[bytes]:
        """A vector for each text, as float32 in the machine's byte order. Raises UpstreamError."""
        try:
            async with asyncio.timeout(self._timeout_s):
                redacted = await anyio.to_thread.run_sync(self._redact, texts)
                inputs: list[Json] = [
                    keep_ends(text, _HEAD_CHARS, _TAIL_CHARS, " ") for text in redacted
                ]
                body = encode_json({"model": self._model, "input": inputs})
                return self._read(await self._call(body), len(texts))
        except TimeoutError as cause:
            message = f"{self._who} gave no embeddings within {self._timeout_s:g} s"
            raise UpstreamError(message, status=504, retryable=True, code=TIMEOUT) from cause
        except WireError as error:
            raise UpstreamError(
                f"{self._who} cannot be asked: {error}", status=error.status, code=error.code
            ) from error

    async def _call(self, body: bytes) -> bytes:
        reply = await self._provider.call(Call("POST", "/embeddings", "", _HEADERS, body), {})
        answer = await gather_body(reply, self._provider.name)
        if reply.status >= 400:
            message, code = parse_error(reply.status, answer)
            raise UpstreamError(
                f"{self._who} refused ({reply.status}): {message}", status=reply.status, code=code
            )
        return answer

    def _read(self, answer: bytes, count: int) -> list[bytes]:
        try:
            data = msgspec.json.decode(answer, type=_Reply).data
        except (msgspec.MsgspecError, ValueError) as cause:
            raise UpstreamError(f"{self._who} sent no embeddings: {cause}") from cause
        if all(item.index is not None for item in data):
            data.sort(key=lambda item: item.index or 0)
        sizes = {len(item.embedding) for item in data}
        if len(data) != count or len(sizes) != 1 or not 0 < min(sizes) <= _MOST_DIMENSIONS:
            raise UpstreamError(
                f"{self._who} sent {len(data)} embeddings of {sorted(sizes)} dimensions for {count}"
                " texts"
            )
        if not all(isfinite(sum(item.embedding)) for item in data):
            raise UpstreamError(f"{self._who} sent an embedding that is not finite")
        return [array("f", item.embedding).tobytes() for item in data]
