"""Models in folders and on the Hugging Face hub.

Only the hub's API is used, not its ModelHubMixin: that stores a constructor's arguments as
config.json and lets any file be overwritten in place, where a model is whole or refused.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from arbiter.errors import RunError
from arbiter.files import MANIFEST, disk_problem, write_manifest
from arbiter.model.card import addressed, with_metadata
from arbiter.model.files import FILES, LoadedModel, save_loaded

ALLOWED = ("*.safetensors", "*.json", "README.md")
"""What is downloaded of a repository: nothing that could be run or unpickled."""

_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)


def find_model(
    place: str | Path,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
) -> Path:
    """The model directory at a place: of a run, the directory itself, or a copy from the hub.

    Args:
        place: a run directory, a model directory, or a repository of the hub as owner/name; a
            directory that exists comes first.
        revision: branch, tag or commit of the repository.
        token: of the hub; None takes the one that is logged in.
        cache_dir: where copies from the hub are kept; None takes the hub's own folder.
        local_files_only: take a copy that is there, and ask nobody.

    Raises:
        RunError: there is none: what, where, and what to do.
    """
    if os.path.isdir(place):
        directory = Path(place)
        return directory / "model" if (directory / "model").is_dir() else directory
    if not _REPOSITORY.fullmatch(str(place)):
        raise RunError(
            f"{place}: no model there; give a run directory, a model directory, or a repository "
            "of the hub as owner/name"
        )
    repo_id = str(place)
    with _explained(repo_id, revision, "no such folder here, and "):
        copy = huggingface_hub.snapshot_download(
            repo_id,
            revision=revision,
            token=token,
            cache_dir=cache_dir,
            local_files_only=local_files_only,
            allow_patterns=list(ALLOWED),
            ignore_patterns=["*/*"],
            library_name="arbiter",
        )
    return Path(copy)


def save_pretrained(
    directory: str | Path, loaded: LoadedModel, model_card_kwargs: dict[str, Any] | None = None
) -> None:
    """Write a model into a directory, beside whatever else is there.

    Args:
        model_card_kwargs: fields of the card's metadata; a model without a card gets one of them.

    Raises:
        RunError: the directory cannot be written, or the card's metadata not be read.
    """
    directory = Path(directory)
    if model_card_kwargs:
        card = with_metadata(loaded.card or "", model_card_kwargs)
        loaded = dataclasses.replace(loaded, card=card)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".writing-", dir=directory) as temporary:
            save_loaded(Path(temporary), loaded)
            write_manifest(Path(temporary))
            # Without its manifest a directory is no model: a crash leaves none, never half of two.
            (directory / MANIFEST).unlink(missing_ok=True)
            for name in FILES:
                (directory / name).unlink(missing_ok=True)
            for file in sorted(Path(temporary).iterdir(), key=lambda f: f.name == MANIFEST):
                shutil.move(file, directory / file.name)
    except (FileExistsError, NotADirectoryError):
        raise RunError(f"{directory}: is not a directory; give another one") from None
    except OSError as error:
        line = disk_problem(error, directory)
        raise RunError(line or f"{directory}: {error.strerror}; give another one") from error


def push_to_hub(
    loaded: LoadedModel,
    repo_id: str,
    *,
    commit_message: str,
    private: bool | None,
    token: str | None,
    branch: str | None,
    create_pr: bool | None,
    model_card_kwargs: dict[str, Any] | None,
) -> str:
    """Upload a model in one commit; the arguments are those of huggingface_hub's own mixin.

    Returns:
        The commit's address.

    Raises:
        RunError: the hub cannot be reached or refuses.
    """
    with _explained(repo_id, branch, ""), tempfile.TemporaryDirectory() as temporary:
        api = huggingface_hub.HfApi(token=token, library_name="arbiter")
        repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
        if loaded.card is not None:
            loaded = dataclasses.replace(loaded, card=addressed(loaded.card, repo_id))
        save_pretrained(temporary, loaded, model_card_kwargs)
        commit = api.upload_folder(
            repo_id=repo_id,
            folder_path=temporary,
            commit_message=commit_message,
            revision=branch,
            create_pr=create_pr,
        )
        return str(commit.commit_url)


@contextmanager
def _explained(repo_id: str, revision: str | None, before: str) -> Iterator[None]:
    """What goes wrong between here and the hub, as one line."""
    try:
        yield
    except HFValidationError:
        raise RunError(f"{repo_id}: not the name of a repository; give owner/name") from None
    except GatedRepoError:
        raise RunError(
            f"{repo_id}: access must be asked for at "
            f"{huggingface_hub.constants.ENDPOINT}/{repo_id}; then give token= or log in"
        ) from None
    except RepositoryNotFoundError:
        raise RunError(
            f"{repo_id}: {before}the hub shows no such model; check the name, and if it is private "
            "give token= or log in with the hub's command line"
        ) from None
    except RevisionNotFoundError:
        raise RunError(f"{repo_id}: has no revision {revision!r}; give another one") from None
    except LocalEntryNotFoundError:
        raise RunError(
            f"{repo_id}: {before}no complete copy of it is in the hub's cache "
            f"({huggingface_hub.constants.HF_HUB_CACHE}, or cache_dir if given), and the hub was "
            "not asked or gave none; connect and load it once"
        ) from None
    # Without a connection: HTTPError of the client behind huggingface_hub 1 and later, OSError of
    # the one before. ValueError: the card's metadata are not what the hub takes.
    except (HfHubHTTPError, HTTPError, OSError, ValueError) as error:
        line = disk_problem(error) if isinstance(error, OSError) else None
        said = " ".join(str(error).split()) or type(error).__name__
        raise RunError(f"{repo_id}: {line or f'the hub: {said}'}") from error
