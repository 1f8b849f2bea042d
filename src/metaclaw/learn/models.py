"""Whom the program may ask for itself: listener, judge, evolver, and the models that served turns, for replays."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from metaclaw.config import EvolverConfig, JudgeConfig, ListenConfig
from metaclaw.ports import Model, ModelProvider
from metaclaw.upstream import HttpEndpoint, HttpModel, LocalModel, Spent

Provider = HttpEndpoint | ModelProvider
Asked = Mapping[str, Mapping[str, int]]
UNLEARNED: Final[Mapping[str, object]] = {
    "judged_share": None,
    "trust": {"turns": 0, "auroc": None, "ece": None},
    "asked": {},
    "set_aside": [],
}
"""What is told of learning before anything was learned."""


class Models:
    """One `Model` for each provider and model name, made when it is first asked for."""

    def __init__(self, providers: Sequence[Provider], timeout_s: float) -> None:
        self._providers = {provider.name: provider for provider in providers}
        self._timeout_s = timeout_s
        self._known: dict[tuple[str, str, str], HttpModel | LocalModel | None] = {}

    def served(self, provider: str, model: str) -> Model | None:
        """The model that served a turn, or None where the program cannot ask it: it is gone, or has no credentials of its own."""
        return self._model(provider, model)

    def listener(self, wish: ListenConfig, judge: JudgeConfig) -> Callable[[str, str], Model | None]:
        """For the provider and model that served a conversation, the model that may read it; None where nobody may.

        Another provider gets a person's words only where the configuration names it, or names a model that it lists. The embedded
        model reads only where it is named. The model returned does not wait for calls of other purposes.
        """
        model, named = wish.model or judge.model, wish.provider or judge.provider

        def ask(provider: str, served: str) -> Model | None:
            chosen = named or (model and self._having(model, first=provider)) or self._own(provider)
            return None if chosen is None else self._model(chosen, model or served, "listen")

        return ask

    def shown_listener(self, wish: ListenConfig, judge: JudgeConfig) -> str | None:
        """Who reads by this configuration, for people; None for nobody."""
        model, named = wish.model or judge.model, wish.provider or judge.provider
        provider = named or (model and self._having(model)) or next(filter(self._own, self._providers), None)
        if provider is None:
            return None
        return f"{provider if named else 'the provider that served the conversation'}/{model or 'the model that served it'}"

    def _own(self, provider: str) -> str | None:
        """The provider's name where it may be asked, else None."""
        found = self._providers.get(provider)
        return provider if found is not None and _may_be_asked(found) else None

    def _model(self, provider: str, model: str, lane: str = "") -> HttpModel | LocalModel | None:
        key = (provider, model, lane)
        if key not in self._known:
            self._known[key] = self._build(provider, model)
        return self._known[key]

    def chosen(self, wish: JudgeConfig | EvolverConfig) -> Callable[[str], Model | None]:
        """For a turn's model, the model to ask by this configuration: at the provider it names, else at one that has the model.

        The embedded model is asked only where it is named, since it is too small to judge or to write."""

        def ask(served: str) -> Model | None:
            model = wish.model or served
            provider = wish.provider or self._having(model) or self._provider(wish)
            return None if provider is None else self.served(provider, model)

        return ask

    def _having(self, model: str, first: str = "") -> str | None:
        """The first provider that may be asked and lists this model; `first` before the others."""
        names = sorted(self._providers, key=lambda name: name != first)
        return next((name for name in names if self._own(name) and model in self._providers[name].models), None)

    def shown(self, wish: JudgeConfig | EvolverConfig) -> str | None:
        """Who is asked by this configuration, for people; None for nobody."""
        provider = self._provider(wish)
        return None if provider is None else f"{provider}/{wish.model or 'the model that served the turn'}"

    def spent(self) -> dict[str, dict[str, int]]:
        """Calls and tokens so far, by purpose."""
        total: dict[str, Spent] = {}
        for model in self._known.values():
            for purpose, spent in ({} if model is None else model.spent).items():
                total[purpose.value] = total[purpose.value] + spent if purpose.value in total else spent
        return {
            purpose: {
                "calls": spent.calls,
                "failures": spent.failures,
                "input_tokens": spent.usage.input_tokens,
                "output_tokens": spent.usage.output_tokens,
            }
            for purpose, spent in total.items()
        }

    def _provider(self, wish: JudgeConfig | EvolverConfig) -> str | None:
        return wish.provider or next((name for name, one in self._providers.items() if _may_be_asked(one)), None)

    def _build(self, provider: str, model: str) -> HttpModel | LocalModel | None:
        match self._providers.get(provider):
            case None:
                return None
            case HttpEndpoint() as http:
                return None if http.is_passthrough else HttpModel(http, model, timeout_s=self._timeout_s)
            case inside:
                return LocalModel(inside, model, timeout_s=self._timeout_s)


def add_up(asked: Asked, more: Asked) -> dict[str, dict[str, int]]:
    """Calls and tokens of two who asked, by purpose."""
    names = {name: (asked.get(name, {}), more.get(name, {})) for name in (*asked, *more)}
    return {name: {key: one.get(key, 0) + other.get(key, 0) for key in (one or other)} for name, (one, other) in names.items()}


def _may_be_asked(provider: Provider) -> bool:
    return isinstance(provider, HttpEndpoint) and not provider.is_passthrough
