"""Which wires a provider serves, found out by asking."""

import asyncio
from dataclasses import dataclass

import msgspec

from metaclaw.config import WIRES_OF_KIND
from metaclaw.domain.chat import Wire
from metaclaw.errors import UpstreamError
from metaclaw.ports import Call
from metaclaw.upstream.endpoint import HttpEndpoint
from metaclaw.upstream.models import gather_body
from metaclaw.upstream.routing import is_missing_route
from metaclaw.wires import parse_error, wire_format

_WITHIN_S = 15.0
_KEY_REFUSED = (401, 402, 403)


@dataclass(frozen=True, slots=True)
class WireProbe:
    """What a provider said to empty requests: wires whose path it does not have, and why it would not serve at all."""

    missing: frozenset[Wire]
    trouble: str | None


async def probe_wires(endpoint: HttpEndpoint, within_s: float = _WITHIN_S) -> WireProbe:
    """Send an empty request to the path of each wire of this kind. No model works on it; paths that exist refuse it otherwise."""
    wires = WIRES_OF_KIND[endpoint.kind]
    try:
        async with asyncio.timeout(within_s):
            answers = {wire: await _ask_nothing(endpoint, wire) for wire in wires}
    except UpstreamError as error:
        return WireProbe(frozenset(), str(error))
    except TimeoutError:
        return WireProbe(frozenset(), f"provider {endpoint.name} did not answer within {within_s:g} s")
    missing = frozenset(wire for wire, (status, body) in answers.items() if _is_no_route(status, body))
    for status, body in answers.values():
        if status in _KEY_REFUSED:
            reason = parse_error(status, body)[0]
            return WireProbe(missing, f"provider {endpoint.name} refused the key ({status}): {reason}")
    if missing == set(wires):
        paths = " and ".join(wire_format(wire).path for wire in wires)
        return WireProbe(missing, f"provider {endpoint.name} has neither {paths}: is its base_url right?")
    return WireProbe(missing, None)


async def list_models(endpoint: HttpEndpoint, within_s: float = _WITHIN_S) -> list[str]:
    """The ids of the models that the provider lists; empty where it does not list any."""
    try:
        async with asyncio.timeout(within_s):
            status, body = await _read(endpoint, Call("GET", "/models", "", [], b""))
        listed = msgspec.json.decode(body, type=_Listing).data if status == 200 else []
    except (UpstreamError, TimeoutError, msgspec.MsgspecError):
        return []
    return [one.id for one in listed]


class _ListedModel(msgspec.Struct):
    id: str


class _Listing(msgspec.Struct):
    data: list[_ListedModel]


async def _ask_nothing(endpoint: HttpEndpoint, wire: Wire) -> tuple[int, bytes]:
    return await _read(endpoint, Call("POST", wire_format(wire).path, "", [("content-type", "application/json")], b"{}"))


async def _read(endpoint: HttpEndpoint, call: Call) -> tuple[int, bytes]:
    reply = await endpoint.call(call, {})
    try:
        return reply.status, await gather_body(reply, endpoint.name)
    finally:
        await reply.aclose()


def _is_no_route(status: int, body: bytes) -> bool:
    # Some servers answer 200 on every path, with an error in the body.
    return is_missing_route(status, body) or (status == 200 and b"nexpected endpoint" in body[:1000])
