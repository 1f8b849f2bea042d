"""The weights on a turn's stamp are the weights that answered, whoever stepped in."""

import json
import time
from collections.abc import AsyncGenerator
from datetime import UTC, datetime

import pytest

from metaclaw.domain.chat import Begin, ChatRequest, Delta, End, Finish, TextDelta, Usage, Wire
from metaclaw.domain.ids import new_turn_id
from metaclaw.domain.policy import Serving
from metaclaw.errors import EngineError
from metaclaw.proxy.dispatch import Opener, Providers
from metaclaw.proxy.http.client import Incoming
from metaclaw.proxy.placement import Placer
from metaclaw.proxy.response import GeneratedAnswer, TurnBuilder
from metaclaw.proxy.sessions import Origins
from metaclaw.skills import Budgets, LibraryView
from metaclaw.upstream import PolicySlot, ProviderHealth

pytestmark = pytest.mark.anyio


class Model:
    """Says which weights it answers with; some versions it does not have."""

    def __init__(self, name: str, has: frozenset[int]) -> None:
        self.name = name
        self.models = ("m",)
        self._has = has

    async def generate(self, request: ChatRequest, version: int = 0) -> AsyncGenerator[Delta, None]:
        if version not in self._has:
            raise EngineError(f"version {version} is not loaded", retryable=True)
        yield Begin("x", "m")
        yield TextDelta(f"{self.name} {version}")
        yield End(Finish.STOP, Usage(1, 1))

    async def aclose(self) -> None:
        return


async def answered(slot: PolicySlot, *models: Model) -> tuple[int, str]:
    """The version on the stamp, and what was said."""
    placer = Placer(lambda: LibraryView.of(1, ()), Budgets(3, 1000), policy=slot)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]}).encode()
    incoming = Incoming(
        Wire.CHAT,
        "/chat/completions",
        "",
        {},
        [],
        body,
        json.loads(body),
        None,
        datetime.now(UTC),
        time.perf_counter(),
    )
    origin = Origins().identify(Wire.CHAT, {}, incoming.json)
    placed = placer.place(placer.ask(incoming, origin))
    draft = TurnBuilder(
        new_turn_id(), incoming, origin, placed.stamp, placed.placements, placed.splices
    )
    opened = await Opener(Providers(models, policy=slot), ProviderHealth()).open(draft)
    assert isinstance(opened, GeneratedAnswer)
    said = [delta.text async for delta in opened.deltas if isinstance(delta, TextDelta)]
    return draft.stamp.policy_version, "".join(said)


async def test_the_version_that_serves_is_asked_for_and_stamped() -> None:
    slot = PolicySlot("policy")
    slot.flip(Serving(version=3))
    assert await answered(slot, Model("policy", frozenset({0, 3}))) == (3, "policy 3")


async def test_where_another_provider_steps_in_the_stamp_says_untrained() -> None:
    slot = PolicySlot("policy")
    slot.flip(Serving(version=3))
    down, base = Model("policy", frozenset()), Model("base", frozenset({0}))
    assert await answered(slot, down, base) == (0, "base 0")


async def test_a_provider_that_is_not_the_policys_is_never_asked_for_a_version() -> None:
    slot = PolicySlot("elsewhere")
    slot.flip(Serving(version=3))
    assert await answered(slot, Model("base", frozenset({0}))) == (0, "base 0")


def test_the_policys_weights_are_asked_first_for_what_nobody_else_has() -> None:
    routes = Providers(
        [Model("other", frozenset()), Model("embedded", frozenset())], policy=PolicySlot("embedded")
    )
    assert not routes.policy_answers(Wire.CHAT, "anything")
    alone = Providers(
        [Model("embedded", frozenset()), Model("other", frozenset())], policy=PolicySlot("embedded")
    )
    assert alone.policy_answers(Wire.CHAT, "anything")
