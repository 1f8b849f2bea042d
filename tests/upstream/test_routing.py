"""Who may answer, in which order."""

import pytest

from metaclaw.domain.chat import Wire
from metaclaw.upstream import Destination, ProviderCandidate, candidates
from tests.support.cases import each

OPENAI = frozenset({Wire.CHAT, Wire.RESPONSES})
ANTHROPIC = frozenset({Wire.MESSAGES})


def names(providers: list[Destination], wire: Wire, model: str) -> list[str]:
    return [candidate.name for candidate in candidates(providers, wire, model)]


def test_no_provider_no_candidate() -> None:
    assert candidates([], Wire.CHAT, "m") == ()


def test_those_that_list_the_model_come_first_in_order_then_those_that_take_any() -> None:
    providers = [
        Destination("any", (), OPENAI),
        Destination("a", ("m", "n"), ANTHROPIC),
        Destination("other", ("n",), OPENAI),
        Destination("b", ("m",), OPENAI),
    ]
    assert names(providers, Wire.CHAT, "m") == ["a", "b", "any"]


@pytest.mark.parametrize(
    ("wire", "expected"), [(Wire.CHAT, ["o", "any"]), (Wire.MESSAGES, ["c", "any"])]
)
def test_a_model_nobody_lists_goes_to_the_first_that_speaks_the_wire(
    wire: Wire, expected: list[str]
) -> None:
    providers = [
        Destination("e", ("m",)),
        Destination("c", ("x",), ANTHROPIC),
        Destination("o", ("y",), OPENAI),
        Destination("any"),
    ]
    assert names(providers, wire, "unknown") == expected


def test_where_nobody_speaks_the_wire_the_first_provider_is_asked() -> None:
    assert names(
        [Destination("o", ("y",), OPENAI), Destination("p", ("y",), OPENAI)],
        Wire.MESSAGES,
        "unknown",
    ) == ["o"]


def test_a_prefix_picks_the_provider_and_is_not_sent() -> None:
    providers = [
        Destination("a", ("m",), OPENAI),
        Destination("b", ("m",), OPENAI),
        Destination("any", (), OPENAI),
    ]
    assert candidates(providers, Wire.CHAT, "b/m") == (
        ProviderCandidate("b", "m"),
        ProviderCandidate("a", "m"),
        ProviderCandidate("any", "m"),
    )


def test_a_listed_prefix_form_is_found_by_both_names_and_not_sent() -> None:
    providers = [Destination("a", ("other",), OPENAI), Destination("b", ("b/m",), OPENAI)]
    assert candidates(providers, Wire.CHAT, "b/m") == (ProviderCandidate("b", "m"),)
    assert candidates(providers, Wire.CHAT, "m") == (ProviderCandidate("b", "m"),)


def test_a_slash_that_is_part_of_the_models_name_stays() -> None:
    providers = [
        Destination("anthropic", ("claude",), ANTHROPIC),
        Destination("router", ("anthropic/claude",), OPENAI),
    ]
    assert candidates(providers, Wire.CHAT, "anthropic/claude")[0] == ProviderCandidate(
        "router", "anthropic/claude"
    )
    assert candidates(providers, Wire.CHAT, "router/anthropic/claude")[0] == ProviderCandidate(
        "router", "anthropic/claude"
    )
    assert candidates([Destination("o", (), OPENAI)], Wire.CHAT, "meta/llama") == (
        ProviderCandidate("o", "meta/llama"),
    )


@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        (Wire.MESSAGES, ["main", "anthropic"]),
        (Wire.CHAT, ["main", "openai"]),
        (Wire.RESPONSES, ["main", "openai"]),
    ],
)
def test_a_passthrough_provider_is_no_fallback_for_the_other_vendors_wire(
    wire: Wire, expected: list[str]
) -> None:
    providers = [
        Destination("main", ("m",), OPENAI | ANTHROPIC),
        Destination("anthropic", ("m",), ANTHROPIC, is_passthrough=True),
        Destination("openai", (), frozenset({Wire.CHAT}), is_passthrough=True),
    ]
    assert names(providers, wire, "m") == expected


def test_a_passthrough_provider_alone_is_asked_whatever_the_wire() -> None:
    assert names([Destination("p", (), ANTHROPIC, is_passthrough=True)], Wire.CHAT, "m") == ["p"]


@each(
    ("model", "expected"),
    [
        ("unknown", ["policy", "http"]),
        ("own", ["policy", "listing", "http"]),
        ("other", ["listing", "policy", "http"]),
        ("http/unknown", ["http", "policy"]),
    ],
)
def test_trained_weights_come_first_for_their_own_model_and_for_any_that_nobody_lists(
    model: str, expected: list[str]
) -> None:
    providers = [
        Destination("policy", ("own",), leads=True),
        Destination("http", (), OPENAI),
        Destination("listing", ("own", "other"), OPENAI),
    ]
    assert names(providers, Wire.CHAT, model) == expected


def test_a_model_that_takes_any_name_still_comes_first_for_its_own() -> None:
    providers = [Destination("embedded", own=("small",)), Destination("openai", (), OPENAI)]
    assert names(providers, Wire.CHAT, "small") == ["embedded", "openai"]
    assert names(providers, Wire.CHAT, "gpt") == ["openai", "embedded"]
