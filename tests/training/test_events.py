"""The figures of metrics.jsonl's lines, held against values worked out by hand."""

import numpy as np
import pytest
import torch

from arbiter.model.predict import predict
from arbiter.training.events import step_figures
from arbiter.training.totals import Totals
from arbiter.training.validation import validation_figures
from tests.conftest import make_model


def test_a_step_tells_each_experts_load_layer_by_layer(dataset, encoder):
    model = make_model(dataset, encoder)
    loads = [[0.5, 0.25, 0.125, 0.125], [1 / 3, 1 / 3, 1 / 3, 0.0]]
    for layer, load in zip(model.layers, loads, strict=True):
        layer.moe.load.copy_(torch.tensor(load))
    figures = step_figures(Totals(), model, torch.device("cpu"))
    assert figures["expert_load"] == [[0.5, 0.25, 0.125, 0.125], [0.3333, 0.3333, 0.3333, 0.0]]
    assert figures["least_loaded_share"] == 0


def test_validation_by_source_adds_up_to_the_whole(dataset, encoder):
    predictions = predict(make_model(dataset, encoder), dataset, 8, torch.device("cpu"))
    figures = validation_figures(predictions, dataset)
    sources = [sample.source for sample in dataset.samples]
    for name in ("val_loss", "val_acc"):
        parts = figures[f"{name}_by_source"]
        assert set(parts) == {"squares", "mixed"}
        mean = sum(parts[source] * sources.count(source) for source in parts) / len(sources)
        assert figures[name] == pytest.approx(mean)
    rows = [i for i, source in enumerate(sources) if source == "mixed"]
    chosen = [predictions.probabilities[i, predictions.answer[i]] for i in rows]
    assert figures["val_loss_by_source"]["mixed"] == pytest.approx(-np.log(chosen).mean())
