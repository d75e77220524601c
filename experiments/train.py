"""Train one decision model: python -m experiments.train [overrides].

Samples -> features -> model -> training -> calibration -> test -> run directory, in that order.
"""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from arbiter.config import instantiate
from arbiter.console import say
from arbiter.errors import RunInterrupted
from arbiter.pipeline.config import TrainConfig
from arbiter.pipeline.train import train
from arbiter.training.interruption import Interruption
from arbiter.training.resume import extendable_state, find_state, is_done, settled_values
from arbiter.training.run_directory import RunDirectory
from arbiter.training.tensorboard import TensorBoard
from experiments.app import default_config, quote_free_text
from experiments.processes import lead, run_train_app
from experiments.resume import overridden_keys, resume_arguments
from experiments.sweep import in_sweep, supervised, sweep_arguments


def main(composed: DictConfig) -> float:
    """One run; returns the best validation accuracy, which sweepers maximise."""
    with RunDirectory(Path(HydraConfig.get().runtime.output_dir)) as run:
        config: TrainConfig = instantiate(composed)
        state = find_state(run, config.resume)
        if state is not None:
            for key, value in settled_values(state, asdict(config), overridden_keys()).items():
                OmegaConf.update(composed, key, value)
            config = instantiate(composed)
        if is_done(run, config.resume, state, config.schedule.epochs):
            say(f"already finished: {run.path}")
            return run.read_summary()["validation"]["accuracy"]
        if state is not None:
            state = extendable_state(run, state, config.schedule.epochs)
        if config.logging.tensorboard:
            run.listeners.append(TensorBoard(run.path / "tensorboard"))
        run.begin()
        lead(config, state)
        try:
            with Interruption(config.checkpoint.max_minutes) as interruption:
                best = train(config, run, state, interruption, default_config("train"))
        except RunInterrupted as error:
            raise type(error)(f"{error}; resume={run.path} goes on with it") from error
    say(f"run directory: {run.path}")
    return best


def prepare(arguments: list[str]) -> list[str]:
    """The arguments that Hydra is given."""
    return sweep_arguments(resume_arguments(arguments))


if __name__ == "__main__":
    sys.argv[1:] = quote_free_text(sys.argv[1:], ("resume",))
    run_train_app(in_sweep(main), train, prepare, supervised)
