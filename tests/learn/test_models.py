"""The models that the program calls itself: the configured ones, else those that answered a
person; the embedded model only by name.
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
from metaclaw.domain.turn import ModelAt
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


def http(name: str, *, passthrough: bool = False, models: tuple[str, ...] = ()) -> HttpEndpoint:
    """A provider nobody calls."""
    key = PASSTHROUGH if passthrough else "sk-x"
    return HttpEndpoint(name, "openai", "http://127.0.0.1:1/v1", api_key=key, models=models)


def question() -> ChatRequest:
    return ChatRequest(
        Wire.CHAT, "any", (Message(Role.USER, (Text("Well?"),)),), sampling=Sampling()
    )


def test_by_default_the_model_of_the_turn_is_asked_where_it_was_served() -> None:
    models = Models([http("first"), http("second"), http("third")])
    chosen = models.chosen(JudgeConfig())(ModelAt("second", "m-7"))
    assert chosen is not None
    assert chosen.name == "second/m-7"
    assert models.shown(JudgeConfig()) == "the provider and model that served the turn"


@pytest.mark.parametrize("served", ["forwarding", "embedded", "gone"])
def test_where_the_turns_provider_may_not_be_asked_the_model_that_answered_last_elsewhere_is(
    served: str,
) -> None:
    providers: list[Provider] = [
        Inside(),
        http("forwarding", passthrough=True),
        http("second"),
        http("third"),
    ]
    lately = [ModelAt(served, "m-7"), ModelAt("third", "m-3"), ModelAt("second", "m-2")]
    chosen = Models(providers, lately=lambda: lately).chosen(JudgeConfig())(ModelAt(served, "m-7"))
    assert chosen is not None
    assert chosen.name == "third/m-3"
    listing = [*providers[:3], http("third", models=("small",))]
    chosen = Models(listing).chosen(JudgeConfig())(ModelAt(served, "m-7"))
    assert chosen is not None
    assert chosen.name == "third/small", "a model of another provider"


def test_a_provider_named_without_a_model_is_asked_for_one_of_its_own() -> None:
    lately = [ModelAt("first", "m-9"), ModelAt("second", "m-2")]
    models = Models([http("first"), http("second"), http("third")], lately=lambda: lately)
    named = JudgeConfig(provider="second")
    for served, asked in (("first", "second/m-2"), ("second", "second/m-7")):
        chosen = models.chosen(named)(ModelAt(served, "m-7"))
        assert chosen is not None
        assert chosen.name == asked


def test_who_is_named_is_asked() -> None:
    models = Models([http("first"), http("second")])
    wish = EvolverConfig(provider="second", model="writer")
    chosen = models.chosen(wish)(ModelAt("first", "m-7"))
    assert chosen is not None
    assert chosen.name == "second/writer" == models.shown(wish)


def test_where_only_the_embedded_model_or_others_credentials_are_there_nobody_is_asked() -> None:
    only_inside: list[Provider] = [Inside()]
    for providers in ([], only_inside, [*only_inside, http("forwarding", passthrough=True)]):
        models = Models(providers)
        assert models.chosen(JudgeConfig())(ModelAt("embedded", "small")) is None
        assert models.shown(JudgeConfig()) is None


def test_the_embedded_model_is_asked_where_it_is_named() -> None:
    chosen = Models([Inside(), http("other")]).chosen(JudgeConfig(provider="embedded"))(
        ModelAt("other", "small")
    )
    assert chosen is not None
    assert chosen.name == "embedded/small"


def test_a_provider_that_is_gone_or_has_no_key_of_ours_is_not_asked() -> None:
    models = Models([http("open"), http("forwarding", passthrough=True)])

    def named(provider: str, model: str) -> Model | None:
        return models.chosen(JudgeConfig(provider=provider, model=model))(ModelAt("open", "m-7"))

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
        model = models.chosen(JudgeConfig(provider=provider))(ModelAt("a", "small"))
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
