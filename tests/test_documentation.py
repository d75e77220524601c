"""The pages that are generated are those that the code would generate."""

from pathlib import Path

from docs.configs import page

DOCS = Path(__file__).parents[1] / "docs"


def test_every_key_is_documented():
    assert (DOCS / "configs.md").read_text() == page(), "run python -m docs.configs"
