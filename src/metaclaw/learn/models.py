"""The models that the program calls itself: listener, judge, evolver, and the models that served turns, for replays."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from metaclaw.config import EvolverConfig, JudgeConfig, ListenConfig
from metaclaw.ports import Model, ModelProvider
from metaclaw.upstream import UNMETERED, HttpEndpoint, HttpModel, LocalModel, Meter

Provider = HttpEndpoint | ModelProvider
UNLEARNED: Final[Mapping[str, object]] = {
    "listener": {"unread": 0, "failing": [], "not_understood": []},
    "unusable": [],
    "trust": {"turns": 0, "auroc": None, "ece": None},
    "set_aside": [],
    "counted": [],
}
"""What is told of learning before anything was learned."""


class Models:
    """One `Model` for each provider and model name, made when it is first asked for."""

    def __init__(self, providers: Sequence[Provider], timeout_s: float, meter: Meter = UNMETERED) -> None:
        self._providers = {provider.name: provider for provider in providers}
        self._timeout_s = timeout_s
        self._meter = meter
        self._known: dict[tuple[str, str, float, str], HttpModel | LocalModel | None] = {}

    def served(self, provider: str, model: str) -> Model | None:
        """The model that served a turn, or None where the program cannot ask it: it is gone, or has no credentials of its own."""
        return self._model(provider, model, self._timeout_s)

    def listener(self, wish: ListenConfig, judge: JudgeConfig) -> Callable[[str, str], Model | None]:
        """For the provider and model that served a conversation, the model that may read it, or None.

        Another provider gets a person's words only where the configuration names it, or names a model that it lists. The embedded
        model reads only where it is named. The model returned does not wait for calls of other purposes.
        """
        model, named = wish.model or judge.model, wish.provider or judge.provider

        def ask(provider: str, served: str) -> Model | None:
            chosen = named or (model and self._having(model, first=provider)) or self._own(provider)
            return None if chosen is None else self._model(chosen, model or served, wish.timeout_s, "listen")

        return ask

    def shown_listener(self, wish: ListenConfig, judge: JudgeConfig) -> str | None:
        """The model that reads messages, for `status`; None where there is none."""
        model, named = wish.model or judge.model, wish.provider or judge.provider
        provider = named or (model and self._having(model)) or next(filter(self._own, self._providers), None)
        if provider is None:
            return None
        if named is None and not model:
            return "the provider and model of the conversation"
        return f"{named or 'the provider of the conversation'}, {model or 'the model of the conversation'}"

    def _own(self, provider: str) -> str | None:
        """The provider's name where it may be asked, else None."""
        found = self._providers.get(provider)
        return provider if found is not None and _may_be_asked(found) else None

    def _model(self, provider: str, model: str, timeout_s: float, lane: str = "") -> HttpModel | LocalModel | None:
        key = (provider, model, timeout_s, lane)
        if key not in self._known:
            self._known[key] = self._build(provider, model, timeout_s)
        return self._known[key]

    def chosen(self, wish: JudgeConfig | EvolverConfig) -> Callable[[str], Model | None]:
        """For a turn's model, the model to ask by this configuration: at the provider it names, else at one that has the model.

        The embedded model is asked only where it is named, since it is too small to judge or to write."""

        def ask(served: str) -> Model | None:
            model = wish.model or served
            provider = wish.provider or self._having(model) or self._provider(wish)
            return None if provider is None else self._model(provider, model, wish.timeout_s)

        return ask

    def _having(self, model: str, first: str = "") -> str | None:
        """The first provider that may be asked and lists this model; `first` before the others."""
        names = sorted(self._providers, key=lambda name: name != first)
        return next((name for name in names if self._own(name) and model in self._providers[name].models), None)

    def shown(self, wish: JudgeConfig | EvolverConfig) -> str | None:
        """The model that is asked, for `status`; None where there is none."""
        provider = self._provider(wish)
        return None if provider is None else f"{provider}/{wish.model or 'the model that served the turn'}"

    def _provider(self, wish: JudgeConfig | EvolverConfig) -> str | None:
        return wish.provider or next((name for name, one in self._providers.items() if _may_be_asked(one)), None)

    def _build(self, provider: str, model: str, timeout_s: float) -> HttpModel | LocalModel | None:
        match self._providers.get(provider):
            case None:
                return None
            case HttpEndpoint() as http:
                return None if http.is_passthrough else HttpModel(http, model, meter=self._meter, timeout_s=timeout_s)
            case inside:
                return LocalModel(inside, model, meter=self._meter, timeout_s=timeout_s)


def _may_be_asked(provider: Provider) -> bool:
    return isinstance(provider, HttpEndpoint) and not provider.is_passthrough
