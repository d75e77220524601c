"""Makes docs/images/report.png from a run: python -m docs.report_picture run_directory [file].

The run's report.html is shown by a real browser (Chromium), 1280 pixels wide, and the top of it
photographed, down to the first row of decisions.
"""

import sys
import tempfile
from pathlib import Path

from tests.browser import Browser

WIDTH = 1280
CUT = "document.querySelector('.card').getBoundingClientRect().bottom + 8"


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
    default = Path(__file__).parent / "images" / "report.png"
    target = Path(sys.argv[2]) if sys.argv[2:] else default
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(picture(Path(sys.argv[1]) / "report.html"))
