"""Bring a database to this program's schema inside the caller's transaction."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection

from metaclaw.store.revisions import HEAD


def configuration(connection: Connection | None = None) -> Config:
    """Alembic's configuration: no file, the scripts beside this module, the caller's connection."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def upgrade(connection: Connection) -> None:
    """Apply what is missing; a database another program has just brought up to date is left as it is."""
    command.upgrade(configuration(connection), HEAD)
