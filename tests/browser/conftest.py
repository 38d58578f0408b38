"""A real browser without a window: Debian's chromium, driven by selenium. Without them these tests skip and say so."""

import json
import shutil
import time

import pytest

FLAGS = (
    "--headless",
    "--no-sandbox",  # tests may run as root, where chromium's sandbox does not
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)


class Browser:
    """A page as a user meets it, at some width, in light or dark."""

    def __init__(self, driver):
        self.driver = driver

    def open(self, path, *, width=1440, height=900, dark=False):
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}  # clicks would miss what is being scrolled
        self.command("Emulation.setEmulatedMedia", features=[scheme, still])
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500
        )
        self.console()  # forget what other pages said
        self.requests()
        self.driver.get(path.as_uri())
        self.until("document.body.dataset.ready === 'true'")

    def command(self, name, **options):
        return self.driver.execute_cdp_cmd(name, options)

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def until(self, condition, seconds=10):
        end = time.monotonic() + seconds
        while not self.run(f"return {condition}"):
            assert time.monotonic() < end, f"waited {seconds} s for {condition}; the console says {self.console()}"
            time.sleep(0.02)

    def find(self, selector):
        return self.driver.find_element("css selector", selector)

    def text(self, selector):
        return self.find(selector).text

    def press(self, selector, *keys):
        self.find(selector).send_keys(*keys)

    def console(self):
        """What the page told the console since the last time it was asked, as text."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self):
        """The addresses that were asked for since the last time."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: pip install selenium")
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        pytest.skip("no chromium: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
    yield Browser(driver)
    driver.quit()
