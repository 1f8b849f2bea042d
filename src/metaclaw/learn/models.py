"""Whom the program may ask for itself: judge, evolver, and the models that served turns, for replays."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from metaclaw.config import EvolverConfig, JudgeConfig
from metaclaw.ports import Model, ModelProvider
from metaclaw.upstream import UNMETERED, HttpEndpoint, HttpModel, LocalModel, Meter

Provider = HttpEndpoint | ModelProvider
UNLEARNED: Final[Mapping[str, object]] = {
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
        self._known: dict[tuple[str, str, float], HttpModel | LocalModel | None] = {}

    def served(self, provider: str, model: str) -> Model | None:
        """The model that served a turn, or None where the program cannot ask it: it is gone, or has no credentials of its own."""
        return self._model(provider, model, self._timeout_s)

    def _model(self, provider: str, model: str, timeout_s: float) -> Model | None:
        key = (provider, model, timeout_s)
        if key not in self._known:
            self._known[key] = self._build(*key)
        return self._known[key]

    def chosen(self, wish: JudgeConfig | EvolverConfig) -> Callable[[str], Model | None]:
        """For a turn's model, the model to ask by this configuration: at the provider it names, else at one that has the model.

        The embedded model is asked only where it is named, since it is too small to judge or to write."""

        def ask(served: str) -> Model | None:
            model = wish.model or served
            provider = wish.provider or self._having(model) or self._provider(wish)
            return None if provider is None else self._model(provider, model, wish.timeout_s)

        return ask

    def _having(self, model: str) -> str | None:
        """The first provider that may be asked and lists this model."""
        return next((name for name, one in self._providers.items() if _may_be_asked(one) and model in one.models), None)

    def shown(self, wish: JudgeConfig | EvolverConfig) -> str | None:
        """Who is asked by this configuration, for people; None for nobody."""
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
