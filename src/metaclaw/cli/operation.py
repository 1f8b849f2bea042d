"""Changes to what is in force: made by the running proxy or, where none runs, on the home itself while none can start."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from metaclaw.cli.client import Api, NotRunningError, connect, expect, message_in
from metaclaw.errors import MetaClawError, SkillError

if TYPE_CHECKING:
    from metaclaw.domain.chat import Json
    from metaclaw.skills import Rulebook, Shelf

PATIENCE_S = 60.0
"""A proxy with very many skills takes a while over its files."""


def carry_out(
    home: Path, ask: "Callable[[Api], dict[str, Json]]", do: "Callable[[Rulebook], dict[str, Json]]"
) -> "dict[str, Json]":
    """Have it done by the running proxy, else do it here."""
    try:
        _, api = connect(home)
    except NotRunningError:
        return _do(home, do)
    return ask(api)


def _do(home: Path, do: "Callable[[Rulebook], dict[str, Json]]") -> "dict[str, Json]":
    from metaclaw.config import load
    from metaclaw.instance import acquire
    from metaclaw.skills import Rulebook, Shelf
    from metaclaw.store import SqlGenerations, open_database

    config = load(home)
    with acquire(home):
        database = open_database(config.store.url.resolve())
        try:
            generations = SqlGenerations(database)
            shelf = Shelf(config.skills.dir, generations)
            shelf.load()
            _refuse_trouble(shelf)
            facts = do(Rulebook(shelf, generations))
            shelf.sync()  # the files, of which there may be many
            _refuse_trouble(shelf)
        finally:
            database.close()
    return facts


def _refuse_trouble(shelf: "Shelf") -> None:
    if shelf.trouble is not None:
        raise SkillError(shelf.trouble)


def said(status: int, body: "Json") -> "dict[str, Json]":
    """The object in a successful answer; a refusal is an error in the proxy's words."""
    if status in (400, 404, 409):
        raise MetaClawError(message_in(body))
    return expect(status, body)
