"""What is installed beside us: by hash, in the versions that were tested, under licences that allow
it.
"""

import re
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_ROOT: Final = Path(__file__).resolve().parents[1]
_LOCKS: Final = {
    "base": _ROOT / "requirements" / "base.txt",
    "embedded": _ROOT / "src" / "metaclaw" / "engine" / "embedded_packages.txt",
    "dev": _ROOT / "requirements" / "dev.txt",
}
_USED: Final = ("base", "embedded")
"""What a user installs: the proxy at once, the embedded model's packages while it serves."""
_ALLOWED: Final = re.compile(
    r"\b(MIT|MIT-0|0BSD|BSD|ISC|Zlib|Apache|PSF|Python Software Foundation|CC0-1\.0|BSL-1\.0|CNRI|"
    r"Mozilla|MPL)\b",
    re.IGNORECASE,
)
_OF_A_PLUGIN: Final = {"recurring-ical-events", "x-wr-timezone"}
"""LGPL: unchanged libraries that a plugin imports, and a person may leave out."""


def _pins(lock: str) -> dict[str, str]:
    """The versions in a lock by name."""
    text = _LOCKS[lock].read_text()
    found = (re.match(r"([\w.-]+)==([^ ;\\]+)", line) for line in text.splitlines())
    return {pin[1]: pin[2] for pin in found if pin}


def _used() -> set[str]:
    return {name for lock in _USED for name in _pins(lock)}


def _licence(found: Distribution) -> str:
    def said(field: str) -> list[str]:
        return [str(value) for value in found.metadata.get_all(field) or ()]

    classifiers = (one for one in said("Classifier") if one.startswith("License"))
    return " ".join([*(said("License-Expression") or said("License")), *classifiers])


@pytest.mark.parametrize("lock", _LOCKS)
def test_every_pin_has_hashes_and_is_what_is_installed(lock: str) -> None:
    text = _LOCKS[lock].read_text()
    entries = re.split(r"\n(?=[\w.-]+==)", text)[1:]
    assert len(entries) == len(_pins(lock)) > 10
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []
    installed = {name: distribution(name).version for name in _pins(lock)}
    assert installed == _pins(lock)


def test_a_lock_holds_all_that_our_distributions_need() -> None:
    embedded = {"embedded", "meaning"}
    needs: tuple[tuple[set[str], set[str]], ...] = (
        ({*_pins("base")}, set()),
        (_used(), embedded),
        ({*_pins("dev")}, {*embedded, "postgres", "dev"}),
    )
    for names, extras in needs:
        pins = {canonicalize_name(name) for name in names} | {"torch"}
        for text in distribution("metaclaw-proxy").requires or ():
            wanted = Requirement(text)
            if wanted.marker is None or any(
                wanted.marker.evaluate({"extra": extra}) for extra in ("", *extras)
            ):
                assert canonicalize_name(wanted.name) in pins, text


def test_what_a_user_installs_may_be_used_and_passed_on() -> None:
    refused = {
        name: _licence(distribution(name))
        for name in {*_used(), "torch"} - _OF_A_PLUGIN
        if not _ALLOWED.search(_licence(distribution(name)))
        or re.search(r"\b[AL]?GPL|General Public", _licence(distribution(name)))
    }
    assert refused == {}


def test_the_lesser_licences_are_those_of_a_plugin() -> None:
    lesser = {name for name in _used() if "LGPL" in _licence(distribution(name))}
    assert lesser == _OF_A_PLUGIN
