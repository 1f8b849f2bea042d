"""The pages for a browser: one file each, without anything from elsewhere. They use the API below the same address and key."""

from functools import cache
from importlib.resources import files

from metaclaw.dashboard.routes import Answer, Ask, Route

_HTML = "text/html; charset=utf-8"


def pages() -> list[Route]:
    """The routes."""
    return [
        Route("GET", "/ui", _rules, "The rules as a page: list, add, change, remove, undo"),
        Route("GET", "/ui/rules", _rules, "The same page"),
    ]


async def _rules(ask: Ask) -> object:
    return Answer(200, _page("rules.html"), _HTML)


@cache
def _page(name: str) -> bytes:
    return (files("metaclaw.dashboard") / "web" / name).read_bytes()
