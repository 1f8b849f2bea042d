"""Which providers may answer a request, in which order. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from metaclaw.domain.chat import Wire

_VENDORS = (frozenset({Wire.CHAT, Wire.RESPONSES}), frozenset({Wire.MESSAGES}))


@dataclass(frozen=True, slots=True)
class Destination:
    """What routing must know of a provider. No `models` means it takes any; no `wires` means every request is translated for it.

    `own` are models it alone has, though it takes any. One that `leads` has the trained weights: it comes first for the models it
    lists and for those that nobody lists.
    """

    name: str
    models: tuple[str, ...] = ()
    wires: frozenset[Wire] = frozenset()
    is_passthrough: bool = False
    leads: bool = False
    own: tuple[str, ...] = ()

    def lists(self, model: str) -> bool:
        """Whether it names the model, plainly or as `provider/model`."""
        return model in self.models or f"{self.name}/{model}" in self.models or model in self.own

    def spells(self, model: str) -> str:
        """The model's name as this provider knows it: without its own `provider/` in front."""
        return model.removeprefix(f"{self.name}/")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A provider to try, and the model name to send to it."""

    name: str
    model: str


def candidates(providers: Sequence[Destination], wire: Wire, model: str) -> tuple[Candidate, ...]:
    """The providers to try, first to last.

    First those that list the model, in configured order. Where nobody lists it, `provider/model` picks that provider; else the
    one that leads is picked, else the first that speaks the request's own wire, else the first of all. Then, as further
    fallbacks and in configured order, every provider that lists the model without that prefix or takes any model. The prefix that
    picked a provider is stripped from what is sent.

    A passthrough provider is never a fallback for a request of the other vendor's wire: the credentials it would be handed belong
    to somebody else.
    """
    if not providers:
        return ()
    listing = sorted((provider for provider in providers if provider.lists(model)), key=lambda provider: not provider.leads)
    if not listing:
        listing = [_pick(providers, wire, model)]
    bare = listing[0].spells(model)
    listing += [provider for provider in providers if provider.lists(bare) and provider not in listing]
    fallbacks = [provider for provider in providers if (provider.leads or not provider.models) and provider not in listing]
    first, *rest = [*listing, *fallbacks]
    followers = [provider for provider in rest if not provider.is_passthrough or _same_vendor(provider, wire)]
    return tuple(Candidate(provider.name, provider.spells(bare)) for provider in (first, *followers))


def _pick(providers: Sequence[Destination], wire: Wire, model: str) -> Destination:
    by_name = (provider for provider in providers if provider.spells(model) != model)
    leading = (provider for provider in providers if provider.leads)
    by_wire = (provider for provider in providers if wire in provider.wires)
    return next(by_name, None) or next(leading, None) or next(by_wire, providers[0])


def _same_vendor(provider: Destination, wire: Wire) -> bool:
    vendor = next(wires for wires in _VENDORS if wire in wires)
    return not provider.wires.isdisjoint(vendor)
