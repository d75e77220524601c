"""Measure a trained model as it is deployed; --help shows how."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from arbiter.calibration.deployed import UNCALIBRATED, Deployed
from arbiter.config import from_dict, instantiate
from arbiter.console import as_lines, say
from arbiter.datasets.mix import DatasetConfig, Mix, cap_by_group, load_mix
from arbiter.encoders.base import Compute
from arbiter.engine import Arbiter
from arbiter.errors import ConfigError, RunError, SourceError
from arbiter.evaluation.data_record import read_record
from arbiter.evaluation.document import RESERVED, document, write_document
from arbiter.evaluation.measure import check_inputs, measure
from arbiter.evaluation.plots import write_plot
from arbiter.evaluation.table import tables
from arbiter.features.dataset import index_samples
from arbiter.features.deployed_store import DeployedStore
from arbiter.features.progress import BuildProgress
from arbiter.features.store import FeatureStore
from arbiter.hardware.device import batches_ahead, encoder_device, resolve_device
from arbiter.hardware.kernels import attention_kernel
from arbiter.model.files import load_model, to_device
from arbiter.model.predict import Running
from arbiter.sample import Sample
from experiments.app import quote_free_text, run_app
from experiments.schema import SOURCES, EvaluateConfig

_WARM_UP = 3
_LONGEST_NAME = 200


def main(composed: DictConfig) -> None:
    """Load, measure, print, write."""
    config: EvaluateConfig = instantiate(composed)
    run, hardware = Path(config.run), config.hardware
    device = resolve_device(hardware.device)
    torch.set_num_threads(hardware.num_threads or torch.get_num_threads())
    compute = Compute(encoder_device(hardware, device), hardware.encoder_precision)
    loaded = to_device(load_model(run / "model", compute), device, hardware.moe_dispatch)
    arbiter = Arbiter(loaded)
    asked = _asked(config, run)

    # Samples
    samples, notes = _choose(load_mix(asked.dataset, asked.seed, needed=()), config, asked.name)
    check_inputs(loaded.model, samples)
    with BuildProgress() as progress:
        store = FeatureStore(
            Path(config.paths.features), loaded.encoder, hardware.encoder_batch_size, progress,
            hardware.decode_threads,
        )  # fmt: skip
        store = DeployedStore(store, loaded.codecs)
        data = index_samples({"": samples}, store, loaded.encoder.spec)[""]

    # Measurement
    say(f"measuring on {len(samples):,} samples")
    record, calibration = read_record(run), arbiter.calibration
    fitted = UNCALIBRATED if calibration is None else calibration.fitted
    running = Running(device, hardware.eval_batch_size, batches_ahead(hardware, device))
    deployed = Deployed(loaded.model, fitted, loaded.bank, running)
    majority = None if record is None else record.majority
    with attention_kernel(hardware.attention_kernel, device):
        evidence = measure(deployed, calibration, data, majority, config.per_source)
        seconds = latency(arbiter, samples, config.latency_samples)
    report = document(
        evidence, data, record,
        run=run, dataset=asked.name, split=config.split, alphas=config.alphas, notes=notes,
    )  # fmt: skip
    report["overall"]["latency"] = seconds
    path = write_document(run, asked.file, report)
    write_plot(report, path.with_suffix(".svg"))
    for line in lines(report, path):
        say(line)


@dataclass(frozen=True)
class _Asked:
    """The data to evaluate on, the seed of its splits, and what it is called."""

    dataset: DatasetConfig
    seed: int
    name: str
    file: str


def _asked(config: EvaluateConfig, run: Path) -> _Asked:
    """What the command line and the run say.

    Splits are dealt out with the run's seed, so that what it trained on is in the same split again.

    Raises:
        RunError: the run's configuration is missing or damaged.
    """
    try:
        own = OmegaConf.load(run / ".hydra" / "config.yaml")
        seed, dataset = int(own.seed), config.dataset
        name = HydraConfig.get().runtime.choices.get("dataset")
        if dataset is None:
            dataset = _own_dataset(OmegaConf.to_container(own.dataset, resolve=True))
            hydra = OmegaConf.load(run / ".hydra" / "hydra.yaml").hydra
            name = hydra.runtime.choices.get("dataset")
    except (OSError, OmegaConfBaseException, AttributeError, KeyError, TypeError, ValueError):
        raise RunError(
            f"{run}: .hydra with the run's configuration is missing or damaged, which says how its "
            "data were split; name the directory that experiments.train made"
        ) from None
    sources = list(dataset.sources)
    if name is None or (name in sources and len(sources) > 1):
        name = "+".join(sources)  # a mix that was put together on the command line
    file = config.name or (name if config.split == "test" else f"{name}-{config.split}")
    if Path(file).name != file or file.startswith("."):
        raise ConfigError("name", file, "must be a plain file name without a folder")
    if len(file.encode()) > _LONGEST_NAME:
        raise ConfigError("name", file, f"must be at most {_LONGEST_NAME} bytes long")
    if file in RESERVED:
        raise ConfigError("name", file, "names a file that training writes; take another")
    return _Asked(dataset, seed, name, file)


def _own_dataset(values: dict) -> DatasetConfig:
    """A run's dataset from its saved configuration."""
    classes = {str(source._target_): source for source in SOURCES.values()}
    config = from_dict(DatasetConfig, values)
    config.sources = {
        name: from_dict(classes[source["_target_"]], source)
        for name, source in values["sources"].items()
    }
    return config


def _choose(mix: Mix, config: EvaluateConfig, name: str) -> tuple[list[Sample], list[str]]:
    """The samples of the split that have an answer, and what there is to say of them.

    Raises:
        SourceError: there are none.
    """
    chosen = [sample for split in mix for sample in mix[split] if config.split in (split, "all")]
    if not chosen:
        there = ", ".join(f"{len(part)} {split}" for split, part in mix.items() if part)
        raise SourceError(
            f"{name}: no samples in the {config.split} split; there are {there}; name another "
            "split, or split=all"
        )
    samples = [sample for sample in chosen if sample.answer is not None]
    if not samples:
        raise SourceError(f"{name}: none of {len(chosen)} samples has an answer to compare with")
    kept = cap_by_group(samples, config.max_samples, 0)
    notes = []
    if len(samples) < len(chosen):
        notes.append(f"{len(chosen) - len(samples)} samples without an answer were left out")
    for source in mix.statistics:
        for why, part in (
            (f"no samples in the {config.split} split", chosen),
            ("no sample with an answer", samples),
            (f"no sample among those that max_samples={config.max_samples} keeps", kept),
        ):
            if not any(sample.source == source for sample in part):
                notes.append(f"{source} has {why}: no figures are of it")
                break
    return kept, notes


def latency(arbiter: Arbiter, samples: Sequence[Sample], count: int) -> dict | None:
    """Seconds from media to answer of decisions made one by one; None of none.

    Args:
        count: decisions, evenly spread over the samples; a few more go before them unmeasured.
    """
    if count == 0:
        return None
    places = np.linspace(0, len(samples) - 1, min(count, len(samples))).round().astype(int)
    seconds = []
    for place in [*places[:_WARM_UP], *places]:
        started = time.perf_counter()
        arbiter.decide_batch([samples[place]])
        seconds.append(time.perf_counter() - started)
    measured = seconds[min(_WARM_UP, len(places)) :]
    p50, p95 = np.quantile(measured, (0.5, 0.95)).tolist()
    return {"p50_seconds": p50, "p95_seconds": p95, "n": len(measured)}


def lines(report: dict, path: Path) -> list[str]:
    """An evaluation for a person to read."""
    printed = as_lines(tables(report))
    found = report["overall"]["latency"]
    if found:
        printed.append(
            f"latency: p50 {found['p50_seconds'] * 1e3:.1f} ms, p95 "
            f"{found['p95_seconds'] * 1e3:.1f} ms over {found['n']} single decisions"
        )
    printed += [f"note: {note}" for note in report["notes"]]
    return [*printed, f"written: {path}, {path.with_suffix('.svg').name}"]


if __name__ == "__main__":
    sys.argv[1:] = quote_free_text(sys.argv[1:], ("run", "name"))
    run_app(main, "evaluate")
