"""A headless Chromium that is driven over a pipe."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: The names of Chromium's command; EMBGRAD_TEST_BROWSER names another.
NAMES = ("chromium", "chromium-browser", "google-chrome")

FLAGS = (
    "--headless",
    "--no-sandbox",  # for root in a container
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)

#: Seconds in which the browser must have answered.
PATIENCE = 60.0

WHAT_TO_INSTALL = (
    "these tests open the page in Chromium, and none was found under the names {names}: install your system's package "
    "(apt-get install --no-install-recommends chromium), run `make browser`, or name one by EMBGRAD_TEST_BROWSER=/path/to/it"
)


class BrowserMissingError(Exception):
    """There is no Chromium."""


def found() -> str:
    """Return the path of the browser.

    Raises:
        BrowserMissingError: there is none; says what to install.
    """
    named = os.environ.get("EMBGRAD_TEST_BROWSER")
    names = (named,) if named else NAMES
    for name in names:
        path = shutil.which(name)
        if path:
            return path
    raise BrowserMissingError(WHAT_TO_INSTALL.format(names=", ".join(names)))


class Browser:
    """A process of the browser with its own profile.

    Attributes:
        events: what the browser has reported, by session.
    """

    def __init__(self, profile: Path) -> None:
        read, self._write = os.pipe()
        self._read, write = os.pipe()
        # The browser reads at 3 and writes at 4, which may be taken in this process.
        read, write = (_moved(item) for item in (read, write))

        def arrange() -> None:
            os.dup2(read, 3)
            os.dup2(write, 4)

        self._log = (profile / "log").open("wb")
        self._process = subprocess.Popen(
            [found(), *FLAGS, f"--user-data-dir={profile / 'profile'}", "about:blank"],
            preexec_fn=arrange,
            pass_fds=(3, 4),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        os.close(read)
        os.close(write)
        self._number = 0
        self._rest = b""
        self.events: dict[str, list[tuple[str, Any]]] = {}

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for descriptor in (self._read, self._write):
            os.close(descriptor)
        self._log.close()

    def ask(self, method: str, session: str = "", **parameters: Any) -> Any:
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + PATIENCE
        while True:
            answer = self._next(until)
            if answer.get("id") == number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            self._keep(answer)

    def wait(self, session: str, method: str) -> Any:
        until = time.monotonic() + PATIENCE
        while True:
            for name, parameters in self.events.get(session, ()):
                if name == method:
                    return parameters
            self._keep(self._next(until))

    def open(self, address: str, *, width: int = 1200, height: int = 900, dark: bool = False, media: str = "") -> Page:
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, target)
        for domain in ("Page", "Network", "Log", "Runtime"):
            page.ask(f"{domain}.enable")
        page.resize(width, height)
        page.emulate(dark=dark, media=media)
        self.events[session] = []
        page.ask("Page.navigate", url=address)
        self.wait(session, "Page.loadEventFired")
        return page

    def _keep(self, answer: Mapping[str, Any]) -> None:
        if "method" not in answer:
            return
        session = answer.get("sessionId", "")
        self.events.setdefault(session, []).append((answer["method"], answer["params"]))
        if answer["method"] == "Page.javascriptDialogOpening":  # nothing else is answered while it is open
            message = {
                "id": 0,
                "method": "Page.handleJavaScriptDialog",
                "params": {"accept": True},
                "sessionId": session,
            }
            os.write(self._write, json.dumps(message).encode() + b"\0")

    def _next(self, until: float) -> Any:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, until - time.monotonic()))
            piece = os.read(self._read, 1 << 20) if ready else b""
            if not piece:
                self._log.flush()
                said = Path(self._log.name).read_text(errors="replace")[-2000:]
                raise AssertionError(f"the browser does not answer; it said: {said}")
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)


class Page:
    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self._browser = browser
        self._session = session
        self._target = target

    def ask(self, method: str, **parameters: Any) -> Any:
        return self._browser.ask(method, self._session, **parameters)

    def evaluate(self, expression: str) -> Any:
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def resize(self, width: int, height: int) -> None:
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def emulate(self, *, dark: bool = False, media: str = "") -> None:
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.ask("Emulation.setEmulatedMedia", media=media, features=features)

    def press(self, key: str) -> None:
        codes = {"Tab": 9, "ArrowRight": 39, "ArrowLeft": 37}
        for kind in ("rawKeyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key])

    def point(self, x: float, y: float, *, click: bool = False) -> None:
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, width: float, height: float) -> bytes:
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        answer = self.ask("Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True)
        return base64.b64decode(answer["data"])

    def reported(self, *methods: str) -> list[Any]:
        self.evaluate("new Promise(done => setTimeout(done, 50))")
        return [parameters for name, parameters in self._browser.events[self._session] if name in methods]

    def requests(self) -> list[str]:
        return [event["request"]["url"] for event in self.reported("Network.requestWillBeSent")]

    def complaints(self) -> list[Any]:
        return self.reported(
            "Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Page.javascriptDialogOpening"
        )

    def close(self) -> None:
        self._browser.ask("Target.closeTarget", targetId=self._target)


def _moved(descriptor: int) -> int:
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10)
    os.close(descriptor)
    return moved
