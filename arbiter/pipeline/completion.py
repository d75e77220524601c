"""What comes after training: calibration, the official test once, and the files that are left.

Calibration and test go through the path that `decide` takes.
"""

from __future__ import annotations

import logging

import torch

from arbiter.calibration.calibration import Calibration, calibrate, describe_calibration
from arbiter.calibration.deployed import UNCALIBRATED, Deployed
from arbiter.console import as_lines
from arbiter.evaluation.data_record import write_record
from arbiter.evaluation.document import document, write_document
from arbiter.evaluation.figures import summary_figures
from arbiter.evaluation.measure import measure
from arbiter.evaluation.table import tables
from arbiter.files import new_directory, write_json_atomic, write_text_atomic
from arbiter.foils import FoilBank
from arbiter.hardware.device import batches_ahead
from arbiter.model.bank import travelling_bank
from arbiter.model.card import model_card
from arbiter.model.decision_model import DecisionModel
from arbiter.model.files import save_model
from arbiter.model.predict import Running
from arbiter.pipeline.config import TrainConfig
from arbiter.pipeline.preparation import Prepared
from arbiter.report import choose_gallery, write_gallery, write_report
from arbiter.training.interruption import Interruption
from arbiter.training.run_directory import RunDirectory
from arbiter.verification import verify

log = logging.getLogger(__name__)


def complete(
    config: TrainConfig,
    prepared: Prepared,
    model: DecisionModel,
    trained: dict,
    run: RunDirectory,
    interruption: Interruption,
    default: dict | None,
) -> None:
    """Calibrate and test a trained model, and write model, summary and report.

    Args:
        trained: what the summary says of the run so far.
        interruption: says when to stop.
        default: the configuration that the report compares with.

    Raises:
        RunInterrupted: the run was asked to stop.
    """
    interruption.check()
    device = next(model.parameters()).device
    ahead = batches_ahead(config.hardware, device)
    running = Running(device, config.hardware.eval_batch_size, ahead)
    model.eval()
    bank = _bank(config, prepared)
    calibration = calibrate(
        model, prepared.data["calibration"], config.calibration, bank, running, config.seed
    )
    log.info("calibration: %s", describe_calibration(calibration))
    interruption.check()
    fitted = UNCALIBRATED if calibration is None else calibration.fitted
    test = _test(config, prepared, Deployed(model, fitted, bank, running), calibration, run)
    interruption.check()
    overall = {} if test is None else test["overall"]
    summary = {
        "status": "finished",
        **trained,
        "calibration": None if calibration is None else calibration.summary(bank),
        "test": {} if test is None else summary_figures(test),
        "exit": overall.get("exit"),
        "deliberation": overall.get("certified"),
    }
    with new_directory(run.model) as directory:
        codecs = {kind: prepared.store.codecs(kind) for kind in prepared.kinds}
        save_model(directory, model, prepared.encoder, codecs, bank)
        if calibration is not None:
            write_json_atomic(directory / "calibration.json", calibration.to_dict())
        card = model_card(summary, model.modalities, overall or None)
        write_text_atomic(directory / "README.md", card)
    run.write_summary(summary)
    run.log("final", **summary)
    log.info("report: %s", write_report(run.path, default))
    _verify(prepared, device, run)


def _bank(config: TrainConfig, prepared: Prepared) -> FoilBank | None:
    """The foils that travel with the model, if it was trained against any."""
    foils, deliberation = config.objective.foils, config.calibration.deliberation
    if not (foils.weight and deliberation.passes):
        return None
    texts = prepared.data["calibration"].tables["text"]
    return travelling_bank(foils, prepared.further_texts, texts, deliberation.bank)


def _test(
    config: TrainConfig,
    prepared: Prepared,
    deployed: Deployed,
    calibration: Calibration | None,
    run: RunDirectory,
) -> dict | None:
    """The document of the test split, logged and written; None for a mix without one."""
    record = write_record(run.path, prepared.data)
    samples, data = prepared.samples["test"], prepared.data["test"]
    if not samples:
        return None
    evidence = measure(deployed, calibration, data, record.majority)
    chosen = choose_gallery(samples, evidence.outcome.probabilities)
    write_gallery(run.path, "test", chosen)
    found = document(
        evidence, data, record,
        run=run.path, dataset="+".join(config.dataset.sources), split="test",
    )  # fmt: skip
    write_document(run.path, "test", found)
    # The rest is in evaluation/test.json and in the report.
    for line in as_lines(tables(found)[:1]):
        log.info("%s", line)
    return found


def _verify(prepared: Prepared, device: torch.device, run: RunDirectory) -> None:
    """Load what was written, and let it decide."""
    store, samples = prepared.store, prepared.samples["test"]
    for line in verify(run.model, prepared.encoder, store.root, device, samples):
        log.info("%s", line)
