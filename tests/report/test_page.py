import base64
import hashlib
import html
import re

from markupsafe import Markup

from arbiter.report import page

EVIL = "<script>alert(1)</script>\"'&"


def test_whatever_is_not_markup_is_escaped():
    parts = [
        page.note(EVIL),
        page.alert(EVIL),
        page.table([EVIL], [(EVIL, EVIL)], parts=True),
        page.facts({EVIL: EVIL}),
        page.tiles([(EVIL, EVIL, EVIL)]),
        page.details(EVIL, page.code(EVIL)),
        page.figure(EVIL, Markup("<svg></svg>"), EVIL, page.table([], [])),
    ]
    section = page.Section("a", EVIL, page.join(parts))
    made = page.page(EVIL, page.paragraph(EVIL), [section], EVIL)
    assert "<script" not in made
    # Each text once, and the title and the heading of the section once more.
    assert made.count("&lt;script&gt;") == 20


def test_the_browser_may_run_the_one_script_that_the_page_was_made_with():
    script = "document.title = 1 < 2 && 'sorted'"
    made = page.page("t", Markup(""), [], script=script)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in html.unescape(made)
    assert f"<script>{script}</script>" in made
    assert "script-src" not in page.page("t", Markup(""), [])


def test_nothing_may_be_loaded():
    made = page.page("t", Markup(""), [])
    assert "default-src 'none'" in html.unescape(made)
    assert not re.search(r"https?://|@import|url\(", made)


def test_missing_cells_and_parts():
    made = page.table(["a", "b"], [("whole", 1), (" part", None)], parts=True)
    assert '<tr class=""><th scope="row">whole</th><td>1</td></tr>' in made
    assert '<tr class="part"><th scope="row"> part</th><td>–</td></tr>' in made
