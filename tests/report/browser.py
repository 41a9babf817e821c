"""A headless Chromium for tests, driven over its DevTools pipe: no driver, no dependency."""

import json
import os
import select
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = """
    --headless=new --remote-debugging-pipe --no-sandbox
    --disable-background-networking --disable-component-update --disable-dev-shm-usage
    --disable-gpu --disable-sync --hide-scrollbars
    --no-first-run
""".split()
# Seconds after which a silent browser counts as hung.
PATIENCE = 120
KEYS = {"Enter": "\r", " ": " "}
# Controls of the browser itself, such as a slider, know keys by these numbers.
CODES = {
    "Tab": 9, "Enter": 13, "Escape": 27, " ": 32, "End": 35,
    "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40,
}  # fmt: skip


def start_browser(profile: Path) -> "Browser":
    """Start a browser, or skip the test where there is none; in CI there must be one."""
    executable = next((path for name in NAMES if (path := shutil.which(name))), None)
    if executable is None:
        reason = "no Chromium found: install the package chromium, or run make browser as root."
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return Browser(executable, profile)


class Browser:
    """One Chromium with one page.

    Commands and events are JSON texts that end with a zero byte, on the file descriptors
    that Chromium calls 3 and 4.
    """

    def __init__(self, executable: str, profile: Path) -> None:
        self.events: list[dict[str, Any]] = []
        self._last = 0
        read_end, self._to = os.pipe()
        self._from, write_end = os.pipe()
        # The shell gives the pipes the numbers that Chromium expects.
        command = f'exec "$0" "$@" 3<&{read_end} 4>&{write_end}'
        flags = [*FLAGS, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", command, executable, *flags],
            pass_fds=(read_end, write_end),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_end)
        os.close(write_end)
        self._stream = os.fdopen(self._from, "rb")
        self._buffer = b""
        self._session: str | None = None
        targets = self.send("Target.getTargets")["targetInfos"]
        page = next(item["targetId"] for item in targets if item["type"] == "page")
        found = self.send("Target.attachToTarget", targetId=page, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def close(self) -> None:
        """End the browser."""
        self._session = None
        try:
            self.send("Browser.close")
        finally:
            self._process.wait(timeout=30)
            os.close(self._to)
            self._stream.close()

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a DevTools command and return its result; events met meanwhile are kept."""
        self._last += 1
        message: dict[str, Any] = {"id": self._last, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        answer = self._until(lambda item: item.get("id") == self._last)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def open(self, page: Path | str, **media: str) -> None:
        """Load a file or an address, afresh, with media features such as prefers_color_scheme."""
        features = [{"name": name.replace("_", "-"), "value": v} for name, v in media.items()]
        self.send("Emulation.setEmulatedMedia", media="", features=features)
        self.events.clear()
        url = page if isinstance(page, str) else page.resolve().as_uri()
        self.send("Page.navigate", url=url)
        self._until(lambda item: item.get("method") == "Page.loadEventFired")

    def evaluate(self, expression: str) -> Any:
        """Value of a JavaScript expression, or of its promise."""
        options = {"returnByValue": True, "awaitPromise": True}
        found = self.send("Runtime.evaluate", expression=expression, **options)
        if "exceptionDetails" in found:
            raise RuntimeError(f"{expression}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def text(self, selector: str) -> str:
        """Rendered text of an element."""
        return self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText")

    def texts(self, selector: str) -> list[str]:
        """Rendered texts of all elements that can be seen."""
        return self.evaluate(
            f"[...document.querySelectorAll({json.dumps(selector)})]"
            ".filter(e => e.offsetParent).map(e => e.innerText)"
        )

    def hover(self, selector: str) -> None:
        """Move the pointer to the middle of an element."""
        x, y = self._middle(selector)
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        """Click in the middle of an element."""
        self.click_at(*self._middle(selector))

    def click_at(self, x: float, y: float) -> None:
        """Click at a place in the window."""
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, *keys: str) -> None:
        """Press keys one after another."""
        for key in keys:
            text = {"text": KEYS[key]} if key in KEYS else {}
            code = {"windowsVirtualKeyCode": CODES[key]} if key in CODES else {}
            self.send("Input.dispatchKeyEvent", type="keyDown", key=key, **text, **code)
            self.send("Input.dispatchKeyEvent", type="keyUp", key=key, **code)

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self.send("Input.insertText", text=text)

    def resize(self, width: int, height: int) -> None:
        """Set the size of the window's inside."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)

    def complaints(self) -> list[Any]:
        """Errors, warnings and exceptions that the page gave since it was opened."""
        self.evaluate("0")
        bad = {"Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"}
        return [event for event in self.events if event["method"] in bad]

    def requests(self) -> list[str]:
        """Addresses that the page asked for since it was opened."""
        self.evaluate("0")
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def _middle(self, selector: str) -> tuple[float, float]:
        return tuple(
            self.evaluate(
                f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
                "e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect();"
                "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
            )
        )

    def _until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        while True:
            message = self._receive()
            if "method" in message:
                self.events.append(message)
            if wanted(message):
                return message

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._from], [], [], PATIENCE)[0]:
                raise RuntimeError(f"the browser said nothing for {PATIENCE} seconds.")
            piece = os.read(self._from, 1 << 16)
            if not piece:
                raise RuntimeError("the browser ended; run it by hand to see why.")
            self._buffer += piece
        text, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(text)
