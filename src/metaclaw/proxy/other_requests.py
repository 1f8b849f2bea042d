"""Requests below /v1 that do not ask for an answer: the list of models, token counts, and
everything else, which is relayed.
"""

import asyncio
import logging
from collections.abc import Mapping

import msgspec

from metaclaw.domain.chat import Json, Wire
from metaclaw.errors import UpstreamError, WireError
from metaclaw.ports import Call, HttpProvider
from metaclaw.proxy.dispatch import Provider, Providers, is_http, replace_model
from metaclaw.proxy.http.body import MAX_ITEMS, check_items, parse_object
from metaclaw.proxy.http.client import Client
from metaclaw.proxy.placement import Placer
from metaclaw.proxy.response import JSON_HEADERS
from metaclaw.proxy.sessions import scope_of
from metaclaw.upstream import ProviderHealth, listed_models, reply_headers
from metaclaw.wires import COUNT, estimate_tokens, google_model, read_path, wire_format

log = logging.getLogger(__name__)

_MODELS_TIMEOUT_S = 5.0


class OtherRequests:
    """Serves what needs no session, no skills and no turn."""

    def __init__(
        self,
        providers: Providers,
        health: ProviderHealth,
        max_items: int = MAX_ITEMS,
        placer: Placer | None = None,
    ) -> None:
        self._providers = providers
        self._placer = placer
        self._health = health
        self._max_items = max_items

    async def serve(
        self, call: Call, caller: Mapping[str, str], client: Client, wire: Wire
    ) -> None:
        """Answer lists of models and token counts here; relay everything else to the provider of
        the named model.
        """
        if call.method in ("GET", "HEAD") and call.path == "/models":
            client.respond(200, JSON_HEADERS, await self._models(caller, wire))
        elif (asked := read_path(call.path)) is not None and asked.method == COUNT:
            await self._count_for_google(asked.model, call, caller, client)
        elif call.method == "POST" and call.path == "/messages/count_tokens":
            await self._count_tokens(call, caller, client)
        else:
            await self._relay(call, caller, client, wire)

    async def _models(self, caller: Mapping[str, str], wire: Wire) -> bytes:
        lists = await asyncio.gather(
            *(self._models_of(provider, caller) for provider in self._providers.all)
        )
        entries = {entry["id"]: entry for found in reversed(lists) for entry in reversed(found)}
        ordered = list(reversed(entries.values()))
        ids = [entry["id"] for entry in ordered]
        if wire is Wire.GEMINI:
            return msgspec.json.encode({"models": [google_model(str(model)) for model in ids]})
        # One shape that both OpenAI's and Anthropic's clients read.
        page = {
            "object": "list",
            "data": ordered,
            "has_more": False,
            "first_id": ids[0] if ids else None,
            "last_id": ids[-1] if ids else None,
        }
        return msgspec.json.encode(page)

    async def _models_of(
        self, provider: Provider, caller: Mapping[str, str]
    ) -> list[dict[str, Json]]:
        if (
            provider.models
            or not is_http(provider)
            or not self._providers.may_have(provider, caller)
        ):
            return [_entry(model, provider.name) for model in provider.models]
        try:
            async with asyncio.timeout(_MODELS_TIMEOUT_S):
                listed = await listed_models(provider, caller)
        except (UpstreamError, TimeoutError) as error:
            log.warning("models_unknown provider=%s error=%s", provider.name, error)
            return []
        return [{**_entry(model, provider.name), **entry} for model, entry in listed.items()]

    async def _count_tokens(self, call: Call, caller: Mapping[str, str], client: Client) -> None:
        json = parse_object(call.body)
        check_items(Wire.MESSAGES, json, self._max_items)
        if self._placer is not None:
            body = self._placer.with_tools(Wire.MESSAGES, call.body, json, scope_of(caller))
            if body is not call.body:
                call, json = msgspec.structs.replace(call, body=body), parse_object(body)
        model = json.get("model")
        chosen = self._providers.candidates(Wire.MESSAGES, model if isinstance(model, str) else "")
        first = self._providers.named(chosen[0].name)
        if is_http(first) and Wire.MESSAGES in first.wires:
            await self._pass_on(first, _renamed(call, chosen[0].model), caller, client)
            return
        count = estimate_tokens(wire_format(Wire.MESSAGES).parse_request({"max_tokens": 1, **json}))
        client.respond(200, JSON_HEADERS, msgspec.json.encode({"input_tokens": count}))

    async def _count_for_google(
        self, model: str, call: Call, caller: Mapping[str, str], client: Client
    ) -> None:
        chosen = self._providers.candidates(Wire.GEMINI, model)[0]
        first = self._providers.named(chosen.name)
        if is_http(first) and Wire.GEMINI in first.wires:
            path = f"/models/{chosen.model}:{COUNT}"
            await self._pass_on(first, msgspec.structs.replace(call, path=path), caller, client)
            return
        json = parse_object(call.body)
        inner = json.get("generateContentRequest")
        json = inner if isinstance(inner, dict) else json
        check_items(Wire.GEMINI, json, self._max_items)
        count = estimate_tokens(wire_format(Wire.GEMINI).parse_request(json))
        client.respond(200, JSON_HEADERS, msgspec.json.encode({"totalTokens": count}))

    async def _relay(
        self, call: Call, caller: Mapping[str, str], client: Client, wire: Wire
    ) -> None:
        """Relay to the first HTTP provider for the named model. There is no fallback to another
        provider.
        """
        for candidate in self._providers.candidates(wire, _model_named(call.body)):
            provider = self._providers.named(candidate.name)
            if is_http(provider):
                await self._pass_on(provider, _renamed(call, candidate.model), caller, client)
                return
        raise WireError(
            f"no configured provider serves /v1{call.path}; the embedded model answers only chat,"
            " responses, messages and gemini",
            status=404,
            code="not_found",
        )

    async def _pass_on(
        self, provider: HttpProvider, call: Call, caller: Mapping[str, str], client: Client
    ) -> None:
        client.watch()
        reply = None
        try:
            reply = await provider.call(call, caller)
            headers = [
                (name.encode("latin-1"), value.encode("latin-1", "replace"))
                for name, value in reply_headers(reply.headers)
            ]
            client.start(reply.status, headers)
            async for chunk in reply.chunks():
                await client.write(chunk)
        except asyncio.CancelledError:
            if not client.gone:
                raise
            return
        except UpstreamError as error:
            self._health.failed(provider.name, str(error))
            raise
        finally:
            client.unwatch()
            if reply is not None:
                await reply.aclose()
        self._health.answered(provider.name)
        client.finish()


def _entry(model: str, provider: str) -> dict[str, Json]:
    return {
        "id": model,
        "object": "model",
        "created": 0,
        "owned_by": provider,
        "type": "model",
        "display_name": model,
        "created_at": "1970-01-01T00:00:00Z",
    }


def _renamed(call: Call, model: str) -> Call:
    """The same call for the model's name at its provider."""
    if _model_named(call.body) == model:
        return call
    return msgspec.structs.replace(call, body=replace_model(call.body, model))


def _model_named(body: bytes) -> str:
    try:
        model = parse_object(body).get("model") if body[:1] == b"{" else None
    except WireError:
        return ""
    return model if isinstance(model, str) else ""
