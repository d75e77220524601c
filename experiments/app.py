"""What all apps share: running under Hydra, and turning a user's mistake into one line."""

from __future__ import annotations

import difflib
import io
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from PIL import Image

from arbiter.config import describe_allowed
from arbiter.errors import ArbiterError, RunInterrupted, UsageError
from arbiter.files import disk_problem
from arbiter.hardware.device import directml_loaded
from experiments import schema
from experiments.leaving import leave

CONF = str(Path(__file__).resolve().parent.parent / "conf")
_LAUNCHERS = ("joblib", "submitit", "ray")
"""Extras whose launchers Hydra finds once they are installed."""
INTERRUPTED = 75
"""Exit status of a run that was stopped and can be gone on with (EX_TEMPFAIL of sysexits.h)."""


def run_app(
    task: Callable[[DictConfig], float | None],
    config_name: str,
    prepare: Callable[[list[str]], list[str]] | None = None,
    supervise: Callable[[Callable[[], None]], None] | None = None,
) -> None:
    """Run `task` as a Hydra app; exit status 1 and one line for a user's mistake.

    Bugs keep their traceback, and so does everything when HYDRA_FULL_ERROR is set.

    Args:
        task: is given the composed configuration.
        config_name: the primary config.
        prepare: rewrites the command line's arguments before Hydra reads them.
        supervise: is given what starts Hydra, and starts it.
    """
    show_all = "HYDRA_FULL_ERROR" in os.environ
    schema.register()
    # The hub client announces every attempt; what came of them is said once, by whoever asked.
    logging.getLogger("huggingface_hub.utils._http").addFilter(
        lambda r: r.levelno > logging.WARNING
    )
    # Pillow refuses pictures that are far too large; those half as large are read, without a word.
    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
    # What a terminal has no letter for is no reason to say nothing.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    mistakes: list[ArbiterError] = []
    begun = False

    def job(config: DictConfig) -> float | None:
        nonlocal begun
        begun = True
        try:
            return task(config)
        except ArbiterError as error:
            # Raised through Hydra, it would be announced once more. A sweep needs it raised.
            if show_all or HydraConfig.get().mode is RunMode.MULTIRUN:
                raise
            mistakes.append(error)
            return None
        except OSError as error:
            line = disk_problem(error, "the run directory or standard output")
            if line is None or show_all or HydraConfig.get().mode is RunMode.MULTIRUN:
                raise
            mistakes.append(ArbiterError(line))
            return None

    # Hydra would print several lines of its own; with this it raises, and the line is made here.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        _refuse_unknown_flags(sys.argv[1:])
        if prepare is not None:
            sys.argv[1:] = prepare(sys.argv[1:])
        start = hydra.main(version_base="1.3", config_path=CONF, config_name=config_name)(job)
        start() if supervise is None else supervise(start)
        if mistakes:
            raise mistakes[0]
    except (ArbiterError, HydraException, OmegaConfBaseException) as error:
        if show_all:
            raise
        if isinstance(error, RunInterrupted):
            print(explain(error), file=sys.stderr)
            sys.exit(INTERRUPTED)
        print(f"error: {explain(error)}", file=sys.stderr)
        drop_unwritten()
        sys.exit(1)
    except BrokenPipeError:
        # Whoever read has had enough, as `| head` does.
        drop_unwritten()
        sys.exit(1)
    except OSError as error:
        # Hydra writes too, before any run begins.
        line = disk_problem(error, "the run directory")
        if line is None and error.filename and not begun:
            line = f"{error.filename}: {os.strerror(error.errno)}; choose another hydra.run.dir"
        if line is None or show_all:
            raise
        print(f"error: {line}", file=sys.stderr)
        sys.exit(1)
    except ValueError as error:
        # How Hydra says `group=null` of a group that every run needs.
        if show_all or "Config group override" not in str(error):
            raise
        print(f"error: {_one_line(str(error))}; name an option of the group", file=sys.stderr)
        sys.exit(1)
    finally:
        if not show_all:
            del os.environ["HYDRA_FULL_ERROR"]
        # Its runtime can hang a Python that comes to its end.
        if directml_loaded():
            leave(sys.exc_info()[1])


def drop_unwritten() -> None:
    """Let go of what standard output does not take: Python would complain when it ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def default_config(config_name: str) -> dict:
    """What an app does without overrides and without a person's own settings. Inside an app."""
    # The group exists only where a person has made it.
    overrides = ["~local"] if Path(CONF, "local").is_dir() else []
    return OmegaConf.to_container(hydra.compose(config_name, overrides))


def _refuse_unknown_flags(arguments: list[str]) -> None:
    """Say in one line what argparse would say in a screenful, with another status."""
    _, rest = get_args_parser().parse_known_args(arguments)
    for flag in (a for a in rest if a.startswith("-")):
        raise UsageError(
            f"{flag}: no such flag; settings are written as key=value, without dashes; see --help"
        )


def quote_free_text(arguments: list[str], keys: tuple[str, ...]) -> list[str]:
    """Quote the values of `keys` for Hydra, so that a person may write any text after the `=`."""
    quoted = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        already = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
        if equals and key in keys and not already:
            argument = f"{key}={_quoted(value)}"
        quoted.append(argument)
    return quoted


def quote_text_lists(arguments: list[str], keys: tuple[str, ...]) -> list[str]:
    """Quote each item of the lists given for `keys`: `[it's,007,true]` holds three texts.

    Items are cut at commas; one that holds a comma itself is put in quotes by the person.
    """
    quoted = []
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals and key in keys and value not in ("", "null", "???"):
            inner = value.strip().removeprefix("[").removesuffix("]")
            items = [item.strip() for item in _ITEM.findall(inner)] if inner.strip() else []
            items = [i[1:-1] if len(i) > 1 and i[0] == i[-1] in "'\"" else i for i in items]
            argument = f"{key}=[{','.join(map(_quoted, items))}]"
        quoted.append(argument)
    return quoted


def _quoted(text: str) -> str:
    """Text as a Hydra value that means just this text: no interpolation, no other type."""
    return QuotedString(text.replace("${", "\\${"), Quote.single).with_quotes()


_ITEM = re.compile(r"""\s*(?:"[^"]*"|'[^']*')\s*(?=,|$)|[^,]+|(?<=,)(?=,|$)""")
"""An item of a list: in quotes up to the next comma, or up to the next comma as it stands."""


def explain(error: Exception) -> str:
    """One line: what is wrong, where, and what is allowed."""
    if isinstance(error, ArbiterError):
        return _one_line(str(error))
    message = str(error)
    if isinstance(error, OverrideParseException):
        return (
            f"{error.override}: not an override; write key=value, and quote text that holds "
            "special characters: 'key=\"a, b\"'"
        )
    if match := re.search(r"Could not (?:find|load) 'hydra/launcher/(\w+)'", message):
        extra = match[1].split("_")[0]
        if extra in _LAUNCHERS:
            return (
                f"hydra/launcher={match[1]}: its plugin is not installed; "
                f"pip install -e '.[{extra}]'"
            )
    if match := re.search(r"Could not find '([^']+)/([^'/]+)'", message):
        group, option = match.groups()
        options = re.findall(r"^\t(\S+)$", message, re.MULTILINE)
        return f"{group}={option}: no such option; there are {', '.join(options) or 'none'}"
    if match := re.search(r"Could not override '([^']+)'", message):
        return _unknown_key(match[1], error)
    cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__
    if isinstance(cause, OmegaConfBaseException) and cause.full_key:
        return _wrong_value(cause, message)
    return _one_line(message)


def _one_line(message: str) -> str:
    return " ".join(message.split())


def _given(key: str, message: str) -> str:
    """The value that was given for a key, read from Hydra's message."""
    match = re.search(r"override \+*" + re.escape(key) + r"=(.*)", message)
    return match[1] if match else "?"


def _unknown_key(key: str, error: Exception) -> str:
    parent, _, name = key.rpartition(".")
    cause = error.__cause__
    names = []
    if isinstance(cause, OmegaConfBaseException) and isinstance(cause.parent_node, DictConfig):
        names = [str(n) for n in cause.parent_node]
    close = difflib.get_close_matches(str(getattr(cause, "key", None) or name), names, n=1)
    hint = f"did you mean {close[0]}? " if close else ""
    where = f"{parent} has" if parent else "there are"
    known = f"{hint}{where} {', '.join(names)}" if names else "--cfg job prints all keys"
    return f"{key}: no such key; {known}"


def _wrong_value(cause: OmegaConfBaseException, message: str) -> str:
    key, owner = str(cause.full_key), cause.object_type
    if isinstance(cause.parent_node, ListConfig):
        # An element of a list: what is allowed is said of the list.
        key = key.rsplit("[", 1)[0]
        owner = cause.parent_node._get_parent()._metadata.object_type
    name = key.rsplit(".", 1)[-1]
    fields = getattr(owner, "__dataclass_fields__", {})
    allowed = f"must be {describe_allowed(owner, name)}" if name in fields else cause.msg
    return _one_line(f"{key}={_given(key, message)}: {allowed}")
