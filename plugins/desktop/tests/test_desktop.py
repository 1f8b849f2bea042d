"""Which sources a desktop has, by the variables of its session."""

import socket
from pathlib import Path

import pytest

from metaclaw_desktop import input_sources


def test_this_machine_has_ways_to_notice_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def names(**variables: str) -> list[str]:
        for name in ("DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return [one.name for one in input_sources()]

    everywhere, here = ["session (logind)"], {"XDG_RUNTIME_DIR": str(tmp_path)}
    assert names() == names(**here) == everywhere
    assert names(DISPLAY=":7") == [*everywhere, "input (X11)"]
    assert names(DISPLAY=":7", WAYLAND_DISPLAY="wayland-3") == [
        *everywhere,
        "input (GNOME)",
        "input (Wayland)",
    ]
    with socket.socket(socket.AF_UNIX) as compositor:
        monkeypatch.chdir(tmp_path)  # a socket's path must be short
        compositor.bind("wayland-0")
        assert names(**here) == [*everywhere, "input (GNOME)", "input (Wayland)"]
        assert names(DISPLAY=":7", **here) == [
            *everywhere,
            "input (X11)",
        ]  # what lies there is another's, or left behind
