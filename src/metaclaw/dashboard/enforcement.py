"""`GET` and `POST /api/enforce`: whether held rules hold."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from metaclaw.dashboard.routes import ApiError, Ask, Field, Route

_FIELDS = (Field("on", {"type": "boolean"}),)


@dataclass(frozen=True, slots=True)
class EnforcementRoutes:
    """Switches the holding of calls on and off, for all rules at once."""

    is_on: Callable[[], bool]
    switch: Callable[[bool], Awaitable[None]]

    def table(self) -> list[Route]:
        """The routes."""
        return [
            Route("GET", "/api/enforce", self._tell, "Whether held rules hold calls back"),
            Route("POST", "/api/enforce", self._switch, "Hold calls that break held rules, or stop holding them", fields=_FIELDS),
        ]

    async def _tell(self, ask: Ask) -> object:
        return {"on": self.is_on()}

    async def _switch(self, ask: Ask) -> object:
        wanted = ask.json(_FIELDS).get("on")
        if not isinstance(wanted, bool):
            raise ApiError("on must be true or false")
        await self.switch(wanted)
        return {"on": self.is_on()}
