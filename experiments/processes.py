"""The train app under torchrun: the first process leads, the others follow.

Only the first one runs Hydra: it makes the run directory, logs and speaks. The others are told the
configuration and the state to go on from, and write nothing; what makes one of them fail is printed
by the first.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict

from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from arbiter.config import instantiate
from arbiter.console import console
from arbiter.errors import ArbiterError, ProcessFailed, ProcessLost, RunError, RunInterrupted
from arbiter.hardware.distributed import ranks, start
from arbiter.pipeline.config import TrainConfig
from arbiter.training.checkpoint import State, share_state
from arbiter.training.interruption import Interruption
from arbiter.training.resume import flatten
from arbiter.training.run_directory import Onlooker
from experiments import schema
from experiments.app import CONF, INTERRUPTED, explain, run_app
from experiments.resume import is_multirun

_led = False
"""Whether the others have been told what to do."""

Prepare = Callable[[list[str]], list[str]]
Train = Callable[[TrainConfig, Onlooker, "State | None", Interruption], float]


def run_train_app(
    main: Callable[[DictConfig], float],
    train: Train,
    prepare: Prepare,
    supervise: Callable[[Callable[[], None]], None],
) -> None:
    """Run `main` under Hydra in the first process, and `train` alone in the others.

    Args:
        main: the app.
        train: the part of it that all processes do.
        prepare, supervise: as in `run_app`.
    """
    try:
        start()
    except ProcessLost as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    if ranks().first:
        _run_first(main, prepare, supervise)
    else:
        sys.exit(_follow(train))


def _run_first(
    main: Callable[[DictConfig], float],
    prepare: Prepare,
    supervise: Callable[[Callable[[], None]], None],
) -> None:
    def arguments(given: list[str]) -> list[str]:
        if ranks().size > 1 and is_multirun(given):
            raise RunError("-m: torchrun's processes do one run; start torchrun once for each")
        return prepare(given)

    status = 1
    try:
        run_app(main, "train", arguments, supervise)
        status = 0
    except SystemExit as stopped:
        status = stopped.code if isinstance(stopped.code, int) else 0 if not stopped.code else 1
        raise
    finally:
        # The others see that it is gone, and need not say so.
        ranks().report_end(status)
        if not _led:
            with suppress(ProcessLost, ProcessFailed):
                ranks().share({"status": status})


def lead(config: TrainConfig, state: State | None) -> None:
    """Tell the others what to do, as the first process."""
    global _led
    _led = True
    if ranks().size > 1:
        ranks().share({"overrides": list(HydraConfig.get().overrides.task), **asdict(config)})
        share_state(state, ranks())


def _follow(train: Train) -> int:
    """Do as the first process says; the exit status."""
    console.quiet = True
    logging.getLogger().addHandler(logging.NullHandler())
    try:
        told = ranks().share()
        if "status" in told:
            return told["status"]
        config, state = _typed(told), share_state(None, ranks())
        with Interruption(config.checkpoint.max_minutes) as interruption:
            train(config, Onlooker(), state, interruption)
        return 0
    except RunInterrupted as error:
        status = ranks().end_of_first()
        if status is None:
            print(explain(error), file=sys.stderr)
        return INTERRUPTED if status is None else status
    except ArbiterError as error:
        ranks().report_failure(explain(error))
    except BaseException as error:
        ranks().report_failure(f"{type(error).__name__}: {explain(error)}")
        traceback.print_exc()
    return 1


def _typed(values: dict) -> TrainConfig:
    """The first process's configuration, as the typed objects that Hydra makes."""
    overrides = values.pop("overrides")
    schema.register()
    with initialize_config_dir(CONF, version_base="1.3"):
        composed = compose("train", overrides)
    # Where a resumed run had other values than the recipes have now, the run's count.
    for key, value in flatten(values):
        OmegaConf.update(composed, key, value)
    return instantiate(composed)
