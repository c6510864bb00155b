"""The database that is not there, not reachable, not ours or not PostgreSQL; and that no password is ever printed."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import psycopg
import pytest

from pgqueue.database import with_database

from ..support import Sql
from .running import Program

SECRET = "hunter2"
WORDS = [
    ("list",),
    ("stats",),
    ("show", "d8dd91"),
    ("enqueue", "send"),
    ("retry", "d8dd91"),
    ("reap",),
    ("db", "current"),
]


@contextlib.contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A port of this host where something answers that is no PostgreSQL server."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):  # the listener was closed: the test is over
            while True:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    answer(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def web_server(connection: socket.socket) -> None:
    connection.recv(1024)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def strict_server(connection: socket.socket) -> None:
    """Speaks PostgreSQL's protocol as far as refusing every password: the run's own server trusts everybody."""

    def message(kind: bytes, body: bytes) -> None:
        connection.sendall(kind + struct.pack("!i", len(body) + 4) + body)

    length, code = struct.unpack("!ii", connection.recv(8))
    while code in (80877103, 80877104):  # first it asks for SSL or GSS
        connection.sendall(b"N")
        length, code = struct.unpack("!ii", connection.recv(8))
    connection.recv(length - 8)
    message(b"R", struct.pack("!i", 3))  # the password, please
    assert SECRET.encode() in connection.recv(1024)
    text = b'SFATAL\0VFATAL\0C28P01\0Mpassword authentication failed for user "ada"\0\0'
    message(b"E", text)


@pytest.mark.parametrize("words", WORDS)
def test_no_database_says_both_ways_out(lost: Program, words: tuple[str, ...]) -> None:
    ran = lost(*words)

    assert (ran.code, ran.out) == (3, "")
    assert "no database given: set PGQUEUE_DATABASE_URL or pass --database-url" in ran.complaint
    assert "--database-url embedded" in ran.complaint


def test_unreachable(lost: Program) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]

    ran = lost("list", "--database-url", f"postgresql://ada:{SECRET}@127.0.0.1:{port}/shop")

    assert (ran.code, ran.out) == (3, "")
    assert "the server cannot be reached: check that it runs and that the address is right" in ran.complaint
    assert f"postgresql://ada:***@127.0.0.1:{port}/shop" in ran.complaint
    assert SECRET not in ran.err


@pytest.mark.parametrize("sslmode", ["prefer", "disable"])
def test_not_postgres(lost: Program, sslmode: str) -> None:
    with answering(web_server) as port:
        ran = lost("list", "--database-url", f"postgresql://ada:{SECRET}@127.0.0.1:{port}/shop?sslmode={sslmode}")

    assert (ran.code, ran.out) == (3, "")
    assert "what answers there is not PostgreSQL" in ran.complaint
    assert SECRET not in ran.err


def test_wrong_password_is_never_printed(lost: Program) -> None:
    with answering(strict_server) as port:
        ran = lost("list", "--database-url", f"host=127.0.0.1 port={port} user=ada password={SECRET} sslmode=disable")

    assert (ran.code, ran.out) == (3, "")
    assert "the server refused the password: check user and password" in ran.complaint
    assert SECRET not in ran.err


def test_no_such_database(lost: Program, database_url: str) -> None:
    ran = lost("list", "--database-url", with_database(database_url, "no_such_database"))

    assert (ran.code, ran.out) == (3, "")
    assert "database" in ran.complaint


@pytest.mark.parametrize(
    ("url", "says"),
    [
        (f"mysql://ada:{SECRET}@db/shop", "mysql:// is not PostgreSQL"),
        (f"postgresql://ada:{SECRET}%zz@db/shop", "neither a PostgreSQL URL nor a keyword string"),
        (f"shop {SECRET}", "neither a PostgreSQL URL nor a keyword string"),
    ],
)
def test_what_is_no_url_is_a_usage_error(lost: Program, url: str, says: str) -> None:
    ran = lost("list", "--database-url", url)

    assert (ran.code, ran.out) == (2, "")
    assert says in ran.complaint
    assert SECRET not in ran.err


def test_a_variables_url_is_named_after_the_variable(lost: Program) -> None:
    ran = lost("list", env={"DATABASE_URL": "mysql://db/shop"})

    assert ran.code == 2
    assert "DATABASE_URL: mysql://" in ran.complaint


def test_other_programs_urls_are_taken(lost: Program, database_url: str) -> None:
    for driver in ("postgres", "postgresql+asyncpg"):
        url = database_url.replace("postgresql://", f"{driver}://", 1)
        assert lost("stats", env={"DATABASE_URL": url}).code == 0


def test_read_only_server(program: Program, client: object, sql: Sql, database_url: str) -> None:
    name = sql("select current_database()")[0][0]
    sql(f"alter database {name} set default_transaction_read_only = on")

    assert program("list").code == 0
    ran = program("enqueue", "send")
    assert (ran.code, ran.out) == (3, "")
    assert "the server is read-only" in ran.complaint


def test_a_role_that_may_not(program: Program, sql: Sql) -> None:
    with contextlib.suppress(psycopg.Error):
        sql("set role pg_monitor")
    if sql("select current_user")[0][0] != "pg_monitor":
        pytest.skip("the tests' own role may not act as another")
    ran = Program(program.url)("list", env={"PGOPTIONS": "-c role=pg_monitor"})

    assert (ran.code, ran.out) == (3, "")
    assert "the database role may not do that" in ran.complaint
