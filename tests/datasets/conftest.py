"""Fixtures of the source tests."""

import datasets
import pytest


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Files that `datasets` prepares from local copies vanish with the test."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf_cache")
