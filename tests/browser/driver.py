"""What a person does on the page, and what a checker of accessibility says of it."""

import json
import os
from pathlib import Path
from typing import Any

from tests.support.browser import Browser

AXE = os.environ.get("METACLAW_TEST_AXE", "")
"""Where axe.min.js of axe-core lies; `make test-browser` fetches it."""


class PageDriver:
    """One signed-in browser."""

    def __init__(self, browser: Browser, url: str) -> None:
        self.browser = browser
        self.url = url

    def open(self, path: str) -> None:
        """Go to a page and wait until it is there and live."""
        self.browser.run("window.isOld = true")
        self.browser.open(f"{self.url}{path}")
        self.browser.wait_for(
            "!window.isOld && document.readyState === 'complete' &&"
            " document.getElementById('content') !== null"
        )

    def press(self, label: str, within: str = "body") -> None:
        """Press the first button of this label, once it is there."""
        selector = json.dumps(f"{within} button, {within} summary")
        where = f"[...document.querySelectorAll({selector})]"
        found = f"{where}.find((one) => one.textContent.trim() === {json.dumps(label)})"
        self.browser.wait_for(f"{found} !== undefined")
        self.browser.run(f"{found}.click()")

    def agree(self) -> None:
        """Answer the question that stands there with yes."""
        self.browser.wait_for("document.getElementById('ask').open")
        self.browser.run("document.getElementById('ask-yes').click()")

    def fill(self, form: str, **values: str) -> None:
        """Fill in a form and send it."""
        for name, value in values.items():
            self.browser.run(
                f"document.querySelector({json.dumps(f'{form} [name={name}]')}).value ="
                f" {json.dumps(value)}"
            )
        self.browser.run(f"document.querySelector({json.dumps(form)}).requestSubmit()")

    def assert_shows(self, text: str) -> None:
        """Wait until the page shows this text."""
        self.browser.wait_for(
            f"document.body !== null && document.body.innerText.includes({json.dumps(text)})"
        )

    def assert_hides(self, text: str, within: str = "#content") -> None:
        """Wait until a part of the page no longer shows this text."""
        self.browser.wait_for(
            f"!document.querySelector({json.dumps(within)}).innerText.includes({json.dumps(text)})"
        )

    def findings(self) -> list[Any]:
        """Serious findings of axe-core on the page as it is."""
        self.browser.send("Runtime.evaluate", expression=Path(AXE).read_text())
        run = (
            "axe.run(document, {resultTypes: ['violations']}).then((found) =>"
            " JSON.stringify(found.violations))"
        )
        found = json.loads(self.browser.run(run))
        return [
            {"rule": one["id"], "at": [node["target"] for node in one["nodes"]][:3]}
            for one in found
            if one["impact"] in ("serious", "critical")
        ]
