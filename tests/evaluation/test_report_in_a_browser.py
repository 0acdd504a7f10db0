"""The report in a real browser, on a desk's screen and on a phone's."""

from __future__ import annotations

from pathlib import Path

import pytest

from parcae.evaluation.compare import ClusterWorld, compare
from parcae.evaluation.report import write_report
from parcae.simulation.config import SimulationConfig, WorldName
from tests.cli.running import ran
from tests.conftest import browser_path, made_up, playwright_api

sync_api = playwright_api()
#: How far the page, and its first table of policies, stick out of the window and of their place.
_TOO_WIDE = """() => {
  const beyond = box => box.scrollWidth - box.clientWidth;
  return [document.documentElement, document.querySelector(".wide")].map(beyond);
}"""


@pytest.mark.slow
def test_the_report_fits_a_screen_and_opens_what_is_folded(tmp_path: Path) -> None:
    path = browser_path()
    config = SimulationConfig(world=WorldName.CORES, num_executors=4)
    world = ClusterWorld(made_up(8, 6.0), config, "load:0.8", 12)
    names = ["fair", "fifo", "sjf", "srpt", "srpt+account", "fsp", "psbs", "las"]
    write_report(compare(world, names, num_seeds=4, processes=1), tmp_path / "r.html")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto((tmp_path / "r.html").as_uri())
        assert page.evaluate(_TOO_WIDE) == [0, 0]
        # Today's order and the best are in sight; the others are a click away, as wide as those.
        folded = page.locator("details svg")
        assert folded.count() == 6
        assert not folded.first.is_visible()
        page.locator("summary").first.click()
        sync_api.expect(folded.first).to_be_visible()
        assert folded.first.bounding_box()["width"] > 900
        page.set_viewport_size({"width": 390, "height": 800})
        assert page.evaluate(_TOO_WIDE)[0] == 0
        assert errors == []
        browser.close()


@pytest.mark.slow
def test_the_page_of_sizes_fits_both_screens(tmp_path: Path) -> None:
    path = browser_path()
    words = "--arrivals poisson:5s --jobs 4 --seeds 2 --processes 1 --target 'p95 < 1s'"
    ran(f"parcae size toy --cores 2,4 {words} --plot sizes.html", tmp_path)
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path)
        for width in (1_280, 390):
            page = browser.new_page(viewport={"width": width, "height": 800})
            page.goto((tmp_path / "sizes.html").as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert page.locator("svg").bounding_box()["width"] > width / 2
        browser.close()
