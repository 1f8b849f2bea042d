"""CalDAV through the entry point, against a real server: Radicale, started here."""

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest

pytest.importorskip("radicale", reason="a CalDAV server is needed: pip install radicale")

from metaclaw.schedule import CalendarQuery
from metaclaw.schedule.calendar_plugins import answer_to
from plugins.caldav.tests.test_ics import MEETING, calendar
from tests.support.ports import free_port

BEGINS = datetime(2026, 3, 23, tzinfo=UTC)
_SETTINGS = """[server]
hosts = 127.0.0.1:{port}
[auth]
type = htpasswd
htpasswd_filename = {folder}/users
htpasswd_encryption = plain
delay = 0
[storage]
filesystem_folder = {folder}/collections
[logging]
level = error
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A calendar with a plain and a recurring event, behind a password."""
    folder = tmp_path_factory.mktemp("radicale")
    port = free_port()
    (folder / "users").write_text("ada:lovelace\n")
    (folder / "config").write_text(_SETTINGS.format(port=port, folder=folder))
    server = subprocess.Popen(
        [sys.executable, "-m", "radicale", "--config", str(folder / "config")]
    )
    try:
        yield _filled(f"http://127.0.0.1:{port}/ada/work/", server)
    finally:
        server.terminate()
        server.wait(10)
        shutil.rmtree(folder)


def _filled(url: str, server: "subprocess.Popen[bytes]") -> str:
    with httpx.Client(auth=("ada", "lovelace")) as client:
        for _ in range(300):
            assert server.poll() is None
            try:
                client.request("MKCALENDAR", url).raise_for_status()
                break
            except httpx.TransportError:
                time.sleep(0.1)  # a server we did not write says nothing when it begins to listen
        weekly = "DTSTART;TZID=Europe/Vienna:20260302T100000\r\nDURATION:PT1H\r\nRRULE:FREQ=WEEKLY\r\nSUMMARY:Weekly"
        past = "DTSTART:20250101T090000Z\r\nDTEND:20250101T100000Z\r\nSUMMARY:Past"
        for name, event in {
            "1": MEETING,
            "2": weekly,
            "3": past,
            "4": f"{MEETING}\r\nTRANSP:TRANSPARENT",
        }.items():
            text = calendar(event).replace("UID:0", f"UID:{name}")
            client.put(
                f"{url}{name}.ics", content=text, headers={"Content-Type": "text/calendar"}
            ).raise_for_status()
    return url


def ask(url: str, password: str = "lovelace") -> CalendarQuery:
    return CalendarQuery(
        kind="caldav",
        url=url,
        user="ada",
        password=password,
        begins=BEGINS,
        ends=BEGINS + timedelta(days=9),
        zone="Europe/Vienna",
    )


def test_what_takes_time_is_read_from_the_server(url: str) -> None:
    answer = answer_to(ask(url))
    assert answer.trouble is None
    found = sorted((f"{one.begins:%d %H:%M}", one.title) for one in answer.events)
    assert found == [("23 09:00", "Weekly"), ("24 09:00", "Review"), ("30 08:00", "Weekly")]


def test_a_wrong_password_is_said_and_not_shown(url: str) -> None:
    trouble = answer_to(ask(url, "byron")).trouble
    assert trouble == "127.0.0.1 refuses the user or the password (401)"


def test_a_wrong_address_is_said(url: str) -> None:
    assert "no calendar at this address" in (
        answer_to(ask(url.replace("work", "none"))).trouble or ""
    )


def test_a_server_that_is_not_there_is_said(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        trouble = answer_to(ask(f"http://127.0.0.1:{nobody.getsockname()[1]}/x")).trouble
    assert trouble is not None
    assert "127.0.0.1 cannot be reached" in trouble
