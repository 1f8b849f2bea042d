"""A provider's answer before any of it is relayed: a stream up to its first event, any other answer as a whole.

An answer that turns out to be none raises UpstreamError here, while another provider can still be asked.
"""

from dataclasses import dataclass

from metaclaw.domain.chat import Completion, Wire
from metaclaw.errors import UpstreamError, WireError
from metaclaw.ports import Reply
from metaclaw.proxy.body import parse_object
from metaclaw.proxy.draft import Draft
from metaclaw.wires import Facts, begins_answer, reported_error, whole_facts, wire_format


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one answer may be."""

    max_answer_bytes: int = 64 * 1024 * 1024


def is_stream(kind: str, *, asked: bool) -> bool:
    """Whether an answer of this media type is a stream: some servers stream unasked, others forget to say that they do."""
    return kind == "text/event-stream" or (asked and kind != "application/json")


async def read_opening(draft: Draft, reply: Reply) -> bytes:
    """The beginning of a stream, as far as it takes to know that it is an answer."""
    seen, chunks = b"", reply.chunks()
    async for chunk in chunks:
        draft.say(chunk)
        seen = seen + chunk if seen else chunk
        if begins_answer(seen):
            return seen
    begins_answer(seen, is_all=True)
    return seen


async def read_facts(draft: Draft, reply: Reply, limits: Limits) -> Facts:
    """Read a whole answer in the client's own wire into the draft."""
    body = await gather(draft, reply, limits)
    if not body:
        raise UpstreamError("the answer is empty", code="upstream_empty")
    try:
        json = parse_object(body)
    except WireError as error:
        raise UpstreamError(str(error)) from error
    facts = whole_facts(draft.incoming.wire, json)
    if facts.error is not None:
        raise reported_error(json) if json.get("error") else UpstreamError(facts.error)
    return facts


async def read_completion(draft: Draft, reply: Reply, wire: Wire, limits: Limits) -> Completion:
    """Read a whole answer in another wire than the client's into the draft."""
    body = await gather(draft, reply, limits)
    if not body:
        raise UpstreamError("the answer is empty", code="upstream_empty")
    return wire_format(wire).parse_answer(body)


async def gather(draft: Draft, reply: Reply, limits: Limits) -> bytes:
    """Read all of a reply into the draft."""
    async for chunk in reply.chunks():
        draft.say(chunk)
        check_size(draft, limits)
    return draft.said


def check_size(draft: Draft, limits: Limits) -> None:
    """Raise UpstreamError once a provider has said too much."""
    if draft.said_bytes > limits.max_answer_bytes:
        raise UpstreamError(
            f"provider {draft.provider} sent more than {limits.max_answer_bytes} bytes in one answer; it was cut off"
        )
