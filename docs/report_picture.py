"""Makes docs/images/report.png from a run: python -m docs.report_picture run_directory [file].

The run's report.html is shown by a real browser (Chromium), 1280 pixels wide, and the top of it
photographed, down to the first row of decisions.
"""

import sys
import tempfile
from pathlib import Path

from tests.browser import Browser

WIDTH = 1280
CUT = "document.querySelector('.card').getBoundingClientRect().bottom + 24"


def picture(report: Path) -> bytes:
    """The top of a report as a PNG."""
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        Browser(Path(profile)) as browser,
    ):
        browser.show(WIDTH, 900, "light")
        browser.open(report)
        return browser.screenshot(height=round(browser.run(CUT)))


if __name__ == "__main__":
    target = sys.argv[2] if sys.argv[2:] else Path(__file__).parent / "images" / "report.png"
    Path(target).write_bytes(picture(Path(sys.argv[1]) / "report.html"))
