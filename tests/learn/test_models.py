"""The models that the program calls itself: the configured ones, else the first with a key; the
embedded model only by name.
"""

from collections.abc import AsyncGenerator

import pytest

from metaclaw.config import EvolverConfig, JudgeConfig
from metaclaw.domain.chat import (
    Begin,
    ChatRequest,
    Delta,
    End,
    Finish,
    Message,
    Role,
    Sampling,
    Text,
    TextDelta,
    Usage,
    Wire,
)
from metaclaw.learn.models import EVOLVER, JUDGE, Models, Provider, UnusableAnswers
from metaclaw.ports import Model, Purpose
from metaclaw.upstream import PASSTHROUGH, HttpEndpoint, Spent
from tests.support.meter import CountingMeter


class Inside:
    """A model in this process."""

    models = ("small",)

    def __init__(self, name: str = "embedded") -> None:
        self.name = name
        self.asked: list[str] = []

    async def generate(self, request: ChatRequest, version: int = 0) -> AsyncGenerator[Delta, None]:
        self.asked.append(request.model)
        yield Begin("x", request.model)
        yield TextDelta("fine")
        yield End(Finish.STOP, Usage(5, 2))

    async def aclose(self) -> None:
        return None


def http(name: str, *, passthrough: bool = False) -> HttpEndpoint:
    """A provider nobody calls."""
    return HttpEndpoint(
        name, "openai", "http://127.0.0.1:1/v1", api_key=PASSTHROUGH if passthrough else "sk-x"
    )


def question() -> ChatRequest:
    return ChatRequest(
        Wire.CHAT, "any", (Message(Role.USER, (Text("Well?"),)),), sampling=Sampling()
    )


def test_by_default_the_first_provider_with_credentials_is_asked_with_the_turns_own_model() -> None:
    models = Models([Inside(), http("forwarding", passthrough=True), http("second"), http("third")])
    chosen = models.chosen(JudgeConfig())("m-7")
    assert chosen is not None
    assert chosen.name == "second/m-7"
    assert models.shown(JudgeConfig()) == "second/the model that served the turn"


def test_who_is_named_is_asked() -> None:
    models = Models([http("first"), http("second")])
    wish = EvolverConfig(provider="second", model="writer")
    chosen = models.chosen(wish)("m-7")
    assert chosen is not None
    assert chosen.name == "second/writer" == models.shown(wish)


def test_where_only_the_embedded_model_or_others_credentials_are_there_nobody_is_asked() -> None:
    only_inside: list[Provider] = [Inside()]
    for providers in ([], only_inside, [*only_inside, http("forwarding", passthrough=True)]):
        models = Models(providers)
        assert models.chosen(JudgeConfig())("small") is None
        assert models.shown(JudgeConfig()) is None


def test_the_embedded_model_is_asked_where_it_is_named() -> None:
    chosen = Models([Inside(), http("other")]).chosen(JudgeConfig(provider="embedded"))("small")
    assert chosen is not None
    assert chosen.name == "embedded/small"


def test_a_provider_that_is_gone_or_has_no_key_of_ours_is_not_asked() -> None:
    models = Models([http("open"), http("forwarding", passthrough=True)])

    def named(provider: str, model: str) -> Model | None:
        return models.chosen(JudgeConfig(provider=provider, model=model))("m-7")

    assert named("open", "m-1") is not None
    assert named("open", "m-1") is named("open", "m-1")
    assert named("open", "m-1") is not named("open", "m-2")
    assert named("forwarding", "m-1") is None
    assert named("gone", "m-1") is None


@pytest.mark.anyio
async def test_what_was_asked_is_counted_by_purpose_over_all_models() -> None:
    meter = CountingMeter()
    models = Models([Inside("a"), Inside("b")], meter)
    for provider, purpose in (
        ("a", Purpose.JUDGE),
        ("a", Purpose.JUDGE),
        ("b", Purpose.JUDGE),
        ("b", Purpose.EVOLVE),
    ):
        model = models.chosen(JudgeConfig(provider=provider))("small")
        assert model is not None
        await model.ask(question(), purpose)
    assert meter.spent == {
        Purpose.JUDGE: Spent(3, usage=Usage(15, 6)),
        Purpose.EVOLVE: Spent(1, usage=Usage(5, 2)),
    }


@pytest.mark.parametrize(("role", "least"), [(JUDGE, 3), (EVOLVER, 1)])
def test_unusable_answers_are_shown_from_so_many_in_a_row_and_a_usable_answer_ends_it(
    role: str, least: int
) -> None:
    found = UnusableAnswers()
    answered = found.of(role)
    for _ in range(least - 1):
        answered("world/tiny", "no verdict")
    assert found.facts == []
    answered("world/tiny", "still no verdict")
    (one,) = found.facts
    shown = {"role": role, "model": "world/tiny", "answers": least, "reason": "still no verdict"}
    assert isinstance(one, dict)
    assert {key: value for key, value in one.items() if key != "at"} == shown
    answered("world/other", None)
    assert len(found.facts) == 1
    answered("world/tiny", None)
    assert found.facts == []
