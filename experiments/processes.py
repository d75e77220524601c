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
from dataclasses import asdict

from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from arbiter.config import instantiate
from arbiter.console import console
from arbiter.errors import ArbiterError, ProcessLost, RunError, RunInterrupted
from arbiter.hardware.distributed import ranks, start
from arbiter.training.checkpoint import State, share_state
from arbiter.training.interruption import Interruption
from arbiter.training.resume import flatten
from arbiter.training.run_directory import Onlooker
from experiments import schema
from experiments.app import CONF, INTERRUPTED, explain, run_app
from experiments.resume import is_multirun, resume_arguments
from experiments.schema import TrainConfig

Train = Callable[[TrainConfig, Onlooker, "State | None", Interruption], float]


def run_train_app(main: Callable[[DictConfig], float], train: Train) -> None:
    """Run `main` under Hydra in the first process, and `train` alone in the others."""
    try:
        start()
    except ProcessLost as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    if ranks().first:
        _run_first(main)
    else:
        sys.exit(_follow(train))


def _run_first(main: Callable[[DictConfig], float]) -> None:
    status = 1
    try:
        run_app(main, "train", _arguments)
        status = 0
    except SystemExit as stopped:
        status = stopped.code if isinstance(stopped.code, int) else 0 if not stopped.code else 1
        raise
    finally:
        # The others see that it is gone, and need not say so.
        ranks().report_end(status)


def _arguments(arguments: list[str]) -> list[str]:
    if ranks().size > 1 and is_multirun(arguments):
        raise RunError("-m: torchrun's processes do one run; start torchrun once for each")
    return resume_arguments(arguments)


def lead(config: TrainConfig, state: State | None) -> None:
    """Tell the others what to do, as the first process."""
    if ranks().size > 1:
        ranks().share({"overrides": list(HydraConfig.get().overrides.task), **asdict(config)})
        share_state(state, ranks())


def _follow(train: Train) -> int:
    """Do as the first process says; the exit status."""
    console.quiet = True
    logging.getLogger().addHandler(logging.NullHandler())
    try:
        config, state = _told()
        with Interruption(config.checkpoint.max_minutes) as interruption:
            train(config, Onlooker(), state, interruption)
        return 0
    except ProcessLost as error:
        status = ranks().end_of_first()
        if status is None:
            print(explain(error), file=sys.stderr)
        return INTERRUPTED if status is None else status
    except RunInterrupted:
        return INTERRUPTED
    except ArbiterError as error:
        ranks().report_failure(explain(error))
    except BaseException as error:
        ranks().report_failure(f"{type(error).__name__}: {explain(error)}")
        traceback.print_exc()
    return 1


def _told() -> tuple[TrainConfig, State | None]:
    """The first process's configuration, as the typed objects that Hydra makes, and its state."""
    values = ranks().share()
    overrides = values.pop("overrides")
    schema.register()
    with initialize_config_dir(CONF, version_base="1.3"):
        composed = compose("train", overrides)
    # Where a resumed run had other values than the recipes have now, the run's count.
    for key, value in flatten(values):
        OmegaConf.update(composed, key, value)
    return instantiate(composed), share_state(None, ranks())
