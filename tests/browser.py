"""A real headless Chromium, spoken to over the pipe of its DevTools protocol."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, _NAMES)), None)


class Browser:
    """One page in a browser of its own, while the `with` block lasts.

    Attributes:
        problems: what the console, the log and uncaught errors said.
        requests: every address that was asked for, the page's own among them.
    """

    def __init__(self, profile: Path):
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._profile = profile
        self._number = 0
        self._rest = b""

    def __enter__(self) -> Browser:
        to_browser, self._write = os.pipe()
        self._read, from_browser = os.pipe()

        def places() -> None:
            # Chromium reads descriptor 3 and writes 4; either may be taken by the other's pipe.
            source, sink = os.dup(to_browser), os.dup(from_browser)
            os.dup2(source, 3)
            os.dup2(sink, 4)

        self._process = subprocess.Popen(
            [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
             "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
             f"--user-data-dir={self._profile}"],
            preexec_fn=places, close_fds=False, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        attached = self._send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(timeout=30)
        os.close(self._write)
        os.close(self._read)

    def __call__(self, method: str, **parameters: Any) -> dict:
        """Send a command to the page and return its result."""
        return self._send(method, self._session, **parameters)

    def _send(self, method: str, session: str | None = None, **parameters: Any) -> dict:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self._hear(answer)

    def _receive(self) -> dict:
        while b"\0" not in self._rest:
            block = os.read(self._read, 1 << 16)
            assert block, "the browser has ended"
            self._rest += block
        line, self._rest = self._rest.split(b"\0", 1)
        return json.loads(line)

    def _hear(self, event: dict) -> None:
        method, values = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"])
        elif method == "Runtime.consoleAPICalled":
            self.problems.append(f"console.{values['type']}: {values['args']}")
        elif method == "Runtime.exceptionThrown":
            self.problems.append(str(values["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.problems.append(values["entry"]["text"])

    def open(self, path: Path) -> None:
        """Load a file and wait until all of it is there."""
        self("Page.navigate", url=path.resolve().as_uri())
        deadline = time.monotonic() + 60
        while self.run("document.readyState") != "complete":
            assert time.monotonic() < deadline, "the page does not load"
            time.sleep(0.02)

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = self("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def show(self, width: int, height: int, scheme: str) -> None:
        """Set the window's size and whether the person prefers `light` or `dark`."""
        self("Emulation.setDeviceMetricsOverride", width=width, height=height,
             deviceScaleFactor=1, mobile=False)  # fmt: skip
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self("Emulation.setEmulatedMedia", media="", features=features)

    def screenshot(self, top: int = 0, height: int | None = None) -> bytes:
        """A PNG of the page from `top` on, beyond what the window shows."""
        size = self("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": top, "width": size["width"], "scale": 1}
        clip["height"] = min(height or size["height"], size["height"] - top)
        shot = self("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(shot["data"])

    def pdf(self) -> bytes:
        """The page as it prints."""
        return base64.b64decode(self("Page.printToPDF", printBackground=True)["data"])
