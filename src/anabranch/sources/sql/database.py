"""What a source needs of SQLAlchemy: a database by its url, a table as it is there, and why something failed."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import time, timedelta
from pathlib import Path
from socket import SHUT_RDWR, socket
from typing import Any
from urllib.parse import quote
from uuid import UUID

from anabranch.errors import ConfigError, nearest, with_extra

try:
    import sqlalchemy as sa
except ImportError as missing:  # an extra
    raise ConfigError(f"a database needs SQLAlchemy: {with_extra('sql')}") from missing

CONNECT = 5
"""Seconds that a connection may take."""
_SILENT = 20
"""Seconds after which a connection is given up whose other side is silent; the system's own default is hours."""
_POSTGRESQL = {
    "connect_timeout": CONNECT,
    "keepalives_idle": _SILENT // 4,
    "keepalives_interval": _SILENT // 4,
    "keepalives_count": 3,
    "tcp_user_timeout": 1000 * _SILENT,
}
"""What the URL may say otherwise."""
FAILED = (sa.exc.DBAPIError, UnicodeDecodeError, OverflowError)
"""What a query may raise."""
_FOR_A_WHILE = (
    "starting up",
    "shutting down",
    "in recovery",
    "not yet accepting",
    "system is not accepting",
    "too many",
    "remaining connection slots",
)
"""In PostgreSQL's refusals that pass."""
_LOCKED = ("database is locked", "disk I/O error")
"""What passes of SQLite's."""
NO_IDS = (time, timedelta, bytes, list, dict)
"""Of these no id is."""
NO_TIMES = (*NO_IDS, bool, UUID)
"""And no time."""


def _parsed(url: str) -> Any:
    try:
        return sa.make_url(url)
    except sa.exc.ArgumentError:
        raise ConfigError(
            "url is no database's: it must be like sqlite:///orders.db or postgresql://reader@10.0.0.5/orders"
        ) from None


def reflected(engine: Any, where: str, name: str, columns: Sequence[str]) -> Any:
    """Return the table or view of a name, perhaps with a schema before it.

    Raises:
        ConfigError: where there is none, or it lacks one of the columns.
    """
    schema, _, table = name.rpartition(".")
    try:
        found = sa.Table(table, sa.MetaData(), schema=schema or None, autoload_with=engine)
    except sa.exc.NoSuchTableError:
        there = [*sa.inspect(engine).get_table_names(schema or None)]
        raise ConfigError(
            f"{where}: there is no such table.{nearest(table, there)} There are {', '.join(there) or 'none'}"
        ) from None
    for column in columns:
        if column not in found.c:
            raise ConfigError(
                f"{where}: has no column '{column}'.{nearest(column, found.c.keys())} Its columns: "
                f"{', '.join(found.c.keys())}"
            )
    return found


def check_types(where: str, table: Any, refused: Mapping[str, Any]) -> None:
    """Look at whether each column can be what it is named for: an id (but for `NO_IDS`) or a time (`NO_TIMES`).

    Raises:
        ConfigError: where one cannot.
    """
    for name, kinds in refused.items():
        kind = table.c[name].type
        if _python_type(kind) in kinds:
            what = "a time" if kinds is NO_TIMES else "an id"
            can = "a date, with or without the time of day" if kinds is NO_TIMES else "a date, a UUID"
            raise ConfigError(
                f"{where}: column '{name}' is of type {kind}, which cannot be {what}: it must be {can}, a text or a "
                "number"
            )


def without_index(engine: Any, table: Any, names: Sequence[str]) -> list[str]:
    """Return those of the columns with which no index begins; of a view none is known."""
    inspector = sa.inspect(engine)
    try:
        first = [index["column_names"][:1] for index in inspector.get_indexes(table.name, table.schema)]
    except sa.exc.SQLAlchemyError:  # a view, of some databases
        return []
    first.append([column.name for column in table.primary_key][:1])
    return [name for name in names if [name] not in first]


def _python_type(kind: Any) -> type | None:
    try:
        return kind.python_type
    except NotImplementedError:
        return None


def database_of(url: str) -> str:
    """Return a database's name, wherever it is; of SQLite that of its file.

    >>> database_of("postgresql://reader@10.0.0.5/shop"), database_of("sqlite:////bank/orders.db")
    ('shop', 'orders.db')
    """
    return Path(_parsed(url).database or "").name


def open_engine(url: str) -> Any:
    parsed = _parsed(url)
    options: dict[str, Any] = {"pool_pre_ping": True}
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        if not parsed.database or parsed.database == ":memory:":
            raise ConfigError(f"{url}: a database in memory has nothing in it: name a file")
        if not parsed.database.startswith("file:"):  # else SQLite makes a file that is not there
            path = quote(str(Path(parsed.database).absolute()))
            parsed = parsed.set(database=f"file:{path}").update_query_dict({"mode": "rw", "uri": "true"})
        options = {"poolclass": sa.pool.NullPool}  # an open file that was replaced would be read for ever
    if backend == "postgresql":
        if parsed.drivername == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        options["connect_args"] = {key: value for key, value in _POSTGRESQL.items() if key not in parsed.query}
    try:
        return sa.create_engine(parsed, **options)
    except (ImportError, sa.exc.NoSuchModuleError) as error:
        raise ConfigError(
            f"{parsed.render_as_string(hide_password=True)}: its driver is not installed ({error}); for PostgreSQL, "
            f"{with_extra('postgresql')}"
        ) from None


class Connections:
    """Those that an engine has open; whoever waits for one of them can be made to wait no longer."""

    def __init__(self, engine: Any) -> None:
        self._open: set[Any] = set()
        sa.event.listen(engine, "connect", lambda connection, _: self._open.add(connection))
        sa.event.listen(engine, "close", lambda connection, _: self._open.discard(connection))

    def interrupt(self) -> None:
        """Has every query that is under way fail, from any thread, whether or not the database answers."""
        for each in [*self._open]:
            # Its own thread may close it just now.
            if hasattr(each, "interrupt"):  # SQLite
                with suppress(each.ProgrammingError):
                    each.interrupt()
            elif hasattr(each, "fileno"):
                with suppress(OSError, sa.exc.DBAPIError, each.Error), socket(fileno=os.dup(each.fileno())) as line:
                    line.shutdown(SHUT_RDWR)


def of_a_value(error: BaseException) -> bool:
    """Return whether a value failed, as the driver cannot make anything of it, and not the database."""
    if not isinstance(error, sa.exc.DBAPIError):
        return True
    return isinstance(error, sa.exc.DataError) or "could not decode to utf-8" in _said(error).lower()


def may_come(error: Any) -> bool:
    """Return whether a database that cannot be connected to may be there later, as one is that starts after its party.

    One that answers with a refusal is there, but for a few reasons of PostgreSQL's. A file of SQLite's does not come,
    but may be locked.
    """
    said = str(getattr(error, "orig", None) or error)
    if not isinstance(error, sa.exc.OperationalError):
        return False
    if isinstance(error.orig, sqlite3.Error):
        return any(each in said for each in _LOCKED)
    return "FATAL" not in said or any(each in said for each in _FOR_A_WHILE)


def reason(error: Any) -> str:
    """What the driver says, in one line; of a value only what kind of error, as drivers quote the value."""
    return type(getattr(error, "orig", None) or error).__name__ if of_a_value(error) else _said(error)


def _said(error: Any) -> str:
    lines = str(getattr(error, "orig", None) or error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
