"""Foreign exceptions become ours here: one context manager for SQLAlchemy, the drivers and what they choke on."""

import sqlite3
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Dialect
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from metaclaw.errors import StoreError


class RefusedError(StoreError):
    """The store works but will not take this: a constraint or a type forbids it, now and later."""


@contextmanager
def store_errors(doing: str, dialect: Dialect) -> Iterator[None]:
    """Whatever goes wrong inside is a StoreError that says what was being done and why it failed, in plain words."""
    driver = dialect.loaded_dbapi
    try:
        yield
    except DBAPIError as error:
        cause = error.orig if isinstance(error.orig, Exception) else error
        refused = isinstance(cause, (driver.IntegrityError, driver.DataError))
        raise (RefusedError if refused else StoreError)(f"{doing}: {plain_words(cause)}") from error
    except SQLAlchemyError as error:
        raise StoreError(f"{doing}: {plain_words(error)}") from error
    except (driver.IntegrityError, driver.DataError) as error:
        raise RefusedError(f"{doing}: {plain_words(error)}") from error
    except driver.Error as error:
        raise StoreError(f"{doing}: {plain_words(error)}") from error
    except (OverflowError, struct.error, TypeError, ValueError) as error:
        raise RefusedError(f"{doing}: a value cannot be stored: {error}") from error
    except OSError as error:
        raise StoreError(f"{doing}: {error.strerror or error}") from error


_PLAIN = {
    "SQLITE_BUSY": "another program holds the database locked",
    "SQLITE_LOCKED": "another program holds the database locked",
    "SQLITE_FULL": "the disk is full",
    "SQLITE_READONLY": "the database is read-only",
    "SQLITE_PERM": "the database may not be opened by this user",
    "SQLITE_CANTOPEN": "the database file cannot be opened",
    "SQLITE_CORRUPT": "the database file is damaged; `metaclaw store repair` saves what can be read",
    "SQLITE_NOTADB": "the file is damaged or not a database; `metaclaw store restore` puts a backup in its place",
    "SQLITE_IOERR": "the disk refused a read or a write",
}


def plain_words(error: Exception) -> str:
    """Why the database failed, for a person; the driver's own word follows in brackets."""
    own = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, sqlite3.Error):
        # An extended name such as SQLITE_READONLY_DBMOVED begins with the primary one.
        name: str = getattr(error, "sqlite_errorname", "")
        primary = "_".join(name.split("_")[:2])
        if primary in _PLAIN:
            return f"{_PLAIN[primary]} ({own})"
    return own
