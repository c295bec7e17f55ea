"""Chromium without a screen, driven over its own debugging pipe (Chrome DevTools Protocol): no driver needed."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_SECONDS = 60.0
_CODES = {"Enter": 13, "Backspace": 8, "PageUp": 33, "PageDown": 34, "Tab": 9, " ": 32}


class Page:
    """One page; what it asks the network for is in ``requests``."""

    def __init__(self, writer: int, reader: int) -> None:
        self._writer, self._reader = writer, reader
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.requests: list[str] = []
        self.problems: list[str] = []

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        number = self._number
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._writer, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + _SECONDS
        while True:
            answer = self._receive(end)
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            told = answer.get("params", {})
            if answer.get("method") == "Network.requestWillBeSent":
                self.requests.append(told["request"]["url"])
            if answer.get("method") == "Runtime.exceptionThrown":
                self.problems.append(str(told["exceptionDetails"]))

    def _receive(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._reader], [], [], max(0.0, end - time.monotonic()))
            read = os.read(self._reader, 1 << 16) if ready else b""
            assert read, "Chromium does not answer"
            self._buffer += read
        message, self._buffer = self._buffer.split(b"\0", 1)
        return json.loads(message)

    def open(self, path: Path) -> None:
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.wait("document.readyState === 'complete' && location.protocol === 'file:'")

    def reload(self) -> None:
        self.js("window.before = true")
        self.call("Page.reload")
        self.wait("document.readyState === 'complete' && !window.before")

    def js(self, expression: str) -> Any:
        """The value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, condition: str) -> None:
        end = time.monotonic() + _SECONDS
        while not self.js(condition):
            assert time.monotonic() < end, f"not reached: {condition}"
            time.sleep(0.05)

    def press(self, *keys: str) -> None:
        for key in keys:
            code = _CODES.get(key, ord(key.upper()) if len(key) == 1 else 0)
            text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
            for kind in ("keyDown", "keyUp"):
                self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **text)

    def click(self, selector: str) -> None:
        """A click of the mouse in the middle of an element."""
        x, y = self.js(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView(); "
            "const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def choose_file(self, selector: str, path: Path) -> None:
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(path)])

    def downloads_to(self, folder: Path) -> None:
        session, self._session = self._session, None
        self.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(folder))
        self._session = session


@contextlib.contextmanager
def chromium(profile: Path) -> Iterator[Page]:
    """A browser with that profile folder, whose storage outlives it."""
    found = [path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))]
    if not found:
        pytest.skip("Chromium is not installed (Debian: chromium)")
    to_browser, from_browser = os.pipe(), os.pipe()
    # Chromium reads its pipe from descriptor 3 and writes to 4; the shell puts them there, from beyond both.
    theirs = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (to_browser[0], from_browser[1])]
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    flags += ["--disable-background-networking", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
    shell = f'exec "$@" 3<&{theirs[0]} 4>&{theirs[1]}'
    process = subprocess.Popen(
        ["bash", "-c", shell, "bash", found[0], *flags, "about:blank"],
        pass_fds=theirs,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    for end in (to_browser[0], from_browser[1], *theirs):
        os.close(end)
    page = Page(to_browser[1], from_browser[0])
    try:
        yield page
        page._session = None
        page.call("Browser.close")
        process.wait(30)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(to_browser[1])
        os.close(from_browser[0])
