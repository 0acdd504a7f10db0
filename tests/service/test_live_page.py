"""The live page in a real browser: contents, updates without reload, and loss of the service."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.conftest import browser_path, playwright_api

sync_api = playwright_api()

_CHANGES_MS = 10_000
sync_api.expect.set_options(timeout=15_000)
#: Pixels of the chart that belong to jobs: neither empty nor the grey of lines and labels.
_COLOURED = """canvas => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let count = 0;
  for (let i = 0; i < data.length; i += 4) {
    const rgb = data.subarray(i, i + 3);
    if (data[i + 3] > 0 && Math.max(...rgb) - Math.min(...rgb) > 60) count++;
  }
  return count;
}"""


class _Served:
    """`parcae serve` in a process of its own, with a simulated application of two hundred jobs."""

    def __init__(self, admin_port: int = 0) -> None:
        command = (
            "serve --policy srpt --workload tpch --demo 200 --cores 8 --port 0 --for 900 "
            "--json --admin-port"
        )
        words = [sys.executable, "-m", "parcae.cli.main", *command.split(), str(admin_port)]
        self.process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        self.port = int(json.loads(self.process.stdout.readline())["admin_port"])

    def end(self) -> None:
        """Kill it, as a crash would."""
        self.process.kill()
        self.process.wait()


@dataclass
class _Seen:
    """What the browser saw: the page, its console's errors, and all that it asked for."""

    page: Any
    service: _Served
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def text(self, selector: str) -> str:
        """All text of the element."""
        return str(self.page.locator(selector).text_content())

    def changes(self, read: Callable[[], Any]) -> bool:
        """Whether what is read becomes something else within a while."""
        before = read()
        for _ in range(_CHANGES_MS // 100):
            self.page.wait_for_timeout(100)
            if read() != before:
                return True
        return False

    def pixels(self) -> int:
        """Coloured pixels of the first chart."""
        return int(self.page.locator("canvas").first.evaluate(_COLOURED))


@pytest.fixture(scope="module")
def seen() -> Iterator[_Seen]:
    """The page, open in a browser without a screen."""
    path, service = browser_path(), _Served()
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        seen = _Seen(browser.new_page(viewport={"width": 1280, "height": 900}), service)
        seen.page.on(
            "console",
            lambda message: seen.errors.append(message.text) if message.type == "error" else None,
        )
        seen.page.on("pageerror", lambda error: seen.errors.append(str(error)))
        seen.page.on("request", lambda request: seen.requests.append(request.url))
        try:
            seen.page.goto(f"http://127.0.0.1:{service.port}/")
            seen.page.evaluate("window.isTheFirst = true")
            yield seen
        finally:
            browser.close()
            seen.service.end()


def test_the_page_shows_the_order_in_force_and_goes_on_without_a_reload(seen: _Seen) -> None:
    page = seen.page
    sync_api.expect(page.locator("#link")).to_have_text("live")
    sync_api.expect(page.locator("#jobs tr").first).to_be_visible()
    sync_api.expect(page.locator("#ended tr").first).to_be_visible()
    for title in ("Jobs and busy cores", "Completion times", "Last ended jobs"):
        sync_api.expect(page.get_by_role("heading", name=title)).to_be_visible()
    sync_api.expect(
        page.locator("h2", has_text=re.compile(r"^Order in force: \d+ jobs$"))
    ).to_be_visible()
    assert re.search(r"\d+ / 8cores in use", seen.text("#tiles"))
    assert "against FAIR" in seen.text("#tiles")
    for what, read in {
        "the chart": seen.pixels,
        "the jobs": lambda: seen.text("#jobs"),
        "ended jobs": lambda: seen.text("#ended"),
        "the counters": lambda: seen.text("#tiles"),
        "the time that it is up": lambda: seen.text("#what"),
    }.items():
        assert seen.changes(read), what
    assert seen.pixels() > 100
    running = page.locator("#jobs td:nth-child(3)").all_text_contents()
    assert 0 < sum(int(cell) for cell in running) <= 8
    assert page.evaluate("window.isTheFirst")


def test_the_search_box_finds_jobs(seen: _Seen) -> None:
    page = seen.page
    page.fill("#search", "no job is called so")
    sync_api.expect(page.locator("#title")).to_have_text(
        re.compile(r"^Order in force: 0 of \d+ jobs$")
    )
    sync_api.expect(page.locator("#jobs tr")).to_have_count(0)
    page.fill("#search", "DEMONSTRATION")
    sync_api.expect(page.locator("#jobs tr").first).to_be_visible()
    assert "demonstration" in page.locator("#jobs").inner_text().lower()
    page.fill("#search", "")


def test_the_browser_reports_no_errors_and_requests_nothing_from_elsewhere(seen: _Seen) -> None:
    assert seen.errors == []
    assert set(seen.requests) == {
        f"http://127.0.0.1:{seen.service.port}/{path}" for path in ("", "events")
    }


def test_on_a_narrow_screen_nothing_sticks_out(seen: _Seen) -> None:
    seen.page.set_viewport_size({"width": 390, "height": 800})
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= 390
    seen.page.set_viewport_size({"width": 1280, "height": 900})


def test_a_page_whose_service_goes_away_says_so_and_is_live_again_when_it_returns(
    seen: _Seen,
) -> None:
    seen.service.end()
    sync_api.expect(seen.page.locator("#link")).to_have_text("connection lost; retrying")
    sync_api.expect(seen.page.locator("main.away")).to_be_visible()
    before = seen.text("#jobs")
    seen.service = _Served(seen.service.port)
    sync_api.expect(seen.page.locator("#link")).to_have_text("live")
    assert seen.changes(lambda: seen.text("#jobs"))
    assert seen.text("#jobs") != before
    sync_api.expect(seen.page.locator("main.away")).to_have_count(0)
    assert seen.changes(seen.pixels)
    assert seen.page.evaluate("window.isTheFirst")
    # The browser's own word on lost connections.
    assert {error for error in seen.errors if "ERR_" not in error} == set()
