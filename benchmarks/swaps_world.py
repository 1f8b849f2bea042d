"""The world of `swaps`: adapters of visible effect, clients who never pause, and the slot that says
which version answers.
"""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from metaclaw.domain.chat import (
    ChatRequest,
    End,
    Finish,
    Message,
    Role,
    SampledTokens,
    Sampling,
    Text,
    TextDelta,
    Wire,
)
from metaclaw.domain.policy import Weights
from metaclaw.engine import MODEL_ID, EmbeddedModel
from metaclaw.errors import MetaClawError

PROMPTS = 48
SUBJECTS = (
    "the sea",
    "a bicycle",
    "bread",
    "the moon",
    "a lighthouse",
    "glass",
    "a river",
    "the piano",
)
RANK = 16


@dataclass(frozen=True)
class Answer:
    """One whole answer as a client saw it."""

    version: int
    is_swapping: bool
    first_s: float
    gaps_s: Sequence[float]
    finish: Finish
    tokens: SampledTokens


@dataclass
class Record:
    """Everything that happened."""

    answers: list[Answer] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    cut: int = 0
    load_s: list[float] = field(default_factory=list)
    flip_s: list[float] = field(default_factory=list)
    memory: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def ended(self) -> int:
        """How many answers have come to an end, whole or not."""
        return len(self.answers) + len(self.failures) + self.cut


class Serving:
    """What the proxy's slot is to requests: which version answers, read once when an answer
    begins.
    """

    def __init__(self, model: EmbeddedModel, adapters: Sequence[Weights], record: Record) -> None:
        self._model = model
        self._adapters = adapters
        self._record = record
        self._probes = 0
        self.version = 0
        self.is_swapping = False

    async def swap(self) -> None:
        """The next version is loaded and serves, and is asked for one token at once; the one before
        last goes.
        """
        following = self.version + 1
        began = time.perf_counter()
        await self._model.load(following, self._adapters[following % len(self._adapters)])
        self._record.load_s.append(time.perf_counter() - began)
        self.version = following
        if (first_s := await self.probe()) is not None:
            self._record.flip_s.append(first_s)
        await self._model.unload(following - 2)

    async def probe(self) -> float | None:
        """Ask the version that serves for one token: the seconds until it came."""
        self._probes += 1
        answer = await ask(self._model, self, self._probes % PROMPTS, 1)
        return None if answer is None else answer.first_s


@asynccontextmanager
async def clients(
    count: int, model: EmbeddedModel, serving: Serving, tokens: int, record: Record
) -> AsyncIterator[None]:
    """Clients who ask for as long as the block lasts, each for the next answer when it has the
    last. A crash ends it.
    """
    numbers = itertools.count()
    async with asyncio.TaskGroup() as group:
        asking = [
            group.create_task(_ask_on(model, serving, numbers, tokens, record))
            for _ in range(count)
        ]
        yield
        for task in asking:
            task.cancel()


async def _ask_on(
    model: EmbeddedModel, serving: Serving, numbers: Iterator[int], tokens: int, record: Record
) -> None:
    for number in numbers:
        try:
            answer = await ask(model, serving, number % PROMPTS, tokens)
        except MetaClawError as error:
            record.failures.append(repr(error))
            await asyncio.sleep(0.05)
            continue
        if answer is None or not _is_whole(answer, tokens):
            record.cut += 1
        else:
            record.answers.append(answer)


async def ask(model: EmbeddedModel, serving: Serving, number: int, tokens: int) -> Answer | None:
    """One answer by the version that serves; None if its end did not come."""
    version, is_swapping, began = serving.version, serving.is_swapping, time.perf_counter()
    moments: list[float] = []
    end: End | None = None
    async for delta in model.generate(_make_request(number, tokens), version):
        if isinstance(delta, TextDelta):
            moments.append(time.perf_counter())
        elif isinstance(delta, End):
            end = delta
    if end is None or end.tokens is None or not moments:
        return None
    gaps = [after - before for before, after in itertools.pairwise(moments)]
    # An answer has seen a swap if there was one when it began or when it ended.
    return Answer(
        version,
        is_swapping or serving.is_swapping,
        moments[0] - began,
        gaps,
        end.finish,
        end.tokens,
    )


def _make_request(number: int, tokens: int) -> ChatRequest:
    system = f"{number * 7919 % 100_003} is the number of this conversation. Answer at length."
    subject = SUBJECTS[number % len(SUBJECTS)]
    messages = (
        Message(Role.SYSTEM, (Text(system),)),
        Message(Role.USER, (Text(f"Tell me about {subject}."),)),
    )
    return ChatRequest(
        Wire.CHAT, MODEL_ID, messages, sampling=Sampling(temperature=0.0, max_tokens=tokens)
    )


def _is_whole(answer: Answer, tokens: int) -> bool:
    """Whether it ended where the model ended it, or where its room did."""
    count = len(answer.tokens.sampled_ids)
    return answer.finish is Finish.STOP or (answer.finish is Finish.LENGTH and count == tokens)


def make_adapter(folder: Path, place: Path, seed: int, effect: float) -> Weights:
    """An adapter that changes every projection in random directions, by `effect` relative to its
    size.
    """
    import torch

    from benchmarks.scoring import read_tensors
    from metaclaw.engine.training.lora import fresh_adapter, projection_shapes, write_adapter

    tensors = read_tensors(folder, torch.float32)
    adapter = fresh_adapter(projection_shapes(tensors), RANK, 2.0 * RANK, seed)
    generator = torch.Generator().manual_seed(seed)
    for module, (down, up) in adapter.pairs.items():
        up.normal_(generator=generator)
        change = adapter.scale * float((up @ down).std())
        up *= effect * float(tensors[f"{module}.weight"].std()) / change
    write_adapter(place, adapter, folder.name)
    return Weights("embedded", str(place))
