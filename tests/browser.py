"""Headless Chromium over its debugging pipe: opens pages from disk, runs scripts in them, takes pictures."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE = 60.0


def find_browser() -> str | None:
    """The path of a Chromium; WEFT_BROWSER names another."""
    return os.environ.get("WEFT_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One browser with one page; what the page logs as an error, or throws, is in `errors`."""

    def __init__(self, path: str, folder: Path, width: int = 1240, height: int = 900) -> None:
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        given = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
        given += ["--no-first-run", "--remote-debugging-pipe", f"--user-data-dir={folder}"]
        given += [f"--window-size={width},{height}", "about:blank"]

        def wire() -> None:
            # Chromium reads commands from 3 and answers on 4; the pipes may have these very numbers.
            one, other = os.dup(to_read), os.dup(to_write)
            os.dup2(one, 3)
            os.dup2(other, 4)

        self._process = subprocess.Popen(
            [path, *given], preexec_fn=wire, close_fds=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_read)
        os.close(to_write)
        self._number, self._kept, self._session = 0, b"", ""
        self.errors: list[str] = []
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for name in ("Page", "Runtime", "Log", "Network"):
            self._ask(f"{name}.enable")
        self.resize(width, height)

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        limit = time.monotonic() + PATIENCE
        while True:
            found = self._next(limit)
            if found.get("id") == self._number:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']}")
                return found.get("result", {})
            self._note(found)

    def _next(self, limit: float) -> dict[str, Any]:
        while b"\0" not in self._kept:
            if not select.select([self._read], [], [], max(0.0, limit - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            more = os.read(self._read, 1 << 20)
            if not more:
                raise RuntimeError("the browser ended")
            self._kept += more
        message, self._kept = self._kept.split(b"\0", 1)
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        method, given = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            details = given["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and given["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(one.get("value", one.get("description"))) for one in given["args"]))
        elif method == "Log.entryAdded" and given["entry"]["level"] in ("error", "warning"):
            self.errors.append(given["entry"]["text"])
        elif method == "Network.requestWillBeSent" and not given["request"]["url"].startswith(("file:", "data:")):
            self.errors.append(f"asked for {given['request']['url'][:80]}")

    def cut_network(self) -> None:
        """No request leaves the machine."""
        self._ask("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0)

    def open(self, path: Path, drawn: str = "document.documentElement?.dataset.ready === 'yes'") -> None:
        """Open a file and wait until the page has drawn itself: until the expression `drawn` is true."""
        self.errors.clear()
        self._ask("Page.navigate", url=path.resolve().as_uri())
        limit = time.monotonic() + PATIENCE
        while not self.run(drawn):
            if self.errors or time.monotonic() > limit:
                raise RuntimeError(f"{path.name} was not drawn: {self.errors or 'no answer'}")
            time.sleep(0.02)

    def run(self, code: str) -> Any:
        """The value of a JavaScript expression."""
        found = self._ask("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"].get("exception", {}).get("description", "an error"))
        return found["result"].get("value")

    def resize(self, width: int, height: int) -> None:
        """The page's width and height in pixels."""
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def dark(self, on: bool) -> None:
        """Prefer dark or light."""
        value = "dark" if on else "light"
        self._ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def point(self, x: float, y: float, click: bool = False) -> None:
        """Move the pointer to a place of the window, and click."""
        self._ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self._ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, path: Path, whole: bool = True) -> Path:
        """A screenshot, of the whole page."""
        found = self._ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))
        return path

    def close(self) -> None:
        """End the browser."""
        for end in (self._write, self._read):
            os.close(end)
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
