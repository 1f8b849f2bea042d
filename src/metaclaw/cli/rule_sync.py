"""`metaclaw rules export --watch`: keep the section of a file in step with the rules, and propose
what others wrote into it."""

import hashlib
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from metaclaw.cli.client import Facts, read, request
from metaclaw.cli.output import echo, short
from metaclaw.cli.text_file import read_text, with_section, write_whole
from metaclaw.cli.watch import follow_events
from metaclaw.durable_files import replace_file
from metaclaw.errors import MetaClawError

_EVERY_S: Final = 1.0
_MOST_SHOWN: Final = 100
_CONFLICT: Final = re.compile(r"^(?:<{7} |={7}$|>{7} )", re.MULTILINE)
_CHANGES: Final = frozenset(("generation", "candidate", "notice", "forgotten"))
"""The events after which other rules may be in force, or others wait."""


@dataclass(frozen=True, slots=True)
class RuleSync:
    """One file, and the rules of one project and person in it. The section that was written last
    is kept in the home: what differs from it was written by others."""

    home: Path
    target: Path
    project: str
    user: str | None

    def follow(self) -> NoReturn:
        """Keep the file in step until the program is ended. Raises NotRunningError if no proxy runs
        at the beginning."""
        changed, failed = threading.Event(), list[MetaClawError]()
        events = threading.Thread(target=self._listen, args=(changed, failed), daemon=True)
        self.sync()
        events.start()
        echo(f"The section of {self.target} follows the rules of {self.project}. Ctrl-C ends it.")
        settled, before = None, self._state()
        while True:
            is_told = changed.wait(_EVERY_S)
            if failed:
                raise failed[0]
            changed.clear()
            now = self._state()
            # A file that is being written is read a moment later.
            if is_told or (now == before and now != settled):
                try:
                    self.sync()
                    settled = now = self._state()
                except MetaClawError as error:
                    echo(f"metaclaw: {error}", err=True)
                    settled = now
            before = now

    def sync(self) -> None:
        """Propose what others wrote into the section, and write the section as it is to be."""
        text = self._text()
        if _CONFLICT.search(text):
            return  # the next change ends the conflict
        section = self._section()
        with_section(text, section)  # raises where the marks are damaged, before all else
        for item in self._foreign(text, section):
            self._propose(item)
        section = self._section()
        wanted = with_section(text, section)
        if wanted != text:
            if self._text() != text:
                return  # it was changed meanwhile, which is seen a moment later
            write_whole(self.target, wanted)
        self._record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(self._record, section.encode())

    def _text(self) -> str:
        return read_text(self.target) if self.target.exists() else ""

    def _section(self) -> str:
        facts = read(
            self.home,
            "/api/rule-section",
            workspace=self.project,
            user=self.user,
            source=self.target.name,
        )
        section: str = facts["section"]
        return section

    def _foreign(self, text: str, section: str) -> list[Facts]:
        """The items of the file's section that are neither in force nor were written by us."""
        first, *_, last = section.strip().splitlines()
        begin, end = text.find(first), text.find(last)
        if not 0 <= begin < end:
            return []
        ours = self._record.read_text("utf-8") if self._record.exists() else ""
        known = {item["text"] for item in (*self._items(ours), *self._items(section))}
        found = self._items(text[begin:end])
        return [item for item in found if item["text"] not in known]

    def _items(self, text: str) -> list[Facts]:
        found: list[Facts] = request(self.home, "POST", "/api/rule-file", {"text": text})["rules"]
        return found

    def _propose(self, item: Facts) -> None:
        fields: Facts = {name: item[name] for name in ("text", "kind", "when")}
        fields |= {"workspace": self.project, "source": self.target.name}
        try:
            found = request(self.home, "POST", "/api/candidates", fields)
        except MetaClawError as error:
            echo(f"Left out {short(item['text'], _MOST_SHOWN)}: {error}", err=True)
            return
        if found["added"]:
            told = short(item["text"], _MOST_SHOWN)
            echo(
                f"Proposed: {told}  metaclaw candidates approve {found['candidate']}, or reject it"
            )

    @property
    def _record(self) -> Path:
        """The section that was written last."""
        name = hashlib.sha256(str(self.target.resolve()).encode()).hexdigest()[:16]
        return self.home / "exports" / f"{name}.md"

    def _state(self) -> tuple[int, int] | None:
        try:
            found = self.target.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size

    def _listen(self, changed: threading.Event, failed: list[MetaClawError]) -> None:
        try:
            for _, event in follow_events(self.home, "now"):
                if event.kind in _CHANGES:
                    changed.set()
        except MetaClawError as error:
            failed.append(error)
            changed.set()
