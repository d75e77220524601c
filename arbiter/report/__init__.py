"""Self-contained HTML pages that show what runs learned and how far to trust them."""

from arbiter.report.gallery import choose_gallery, write_gallery
from arbiter.report.run_report import write_report

__all__ = ["choose_gallery", "write_gallery", "write_report"]
