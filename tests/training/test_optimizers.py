from arbiter.training.optimizers import AdamWConfig, adamw
from tests.conftest import make_model


def test_decay_acts_on_matrices_only(dataset, encoder):
    model = make_model(dataset, encoder)
    optimizer = adamw(AdamWConfig(weight_decay=0.3), model)
    decay = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    assert len(decay) == len(list(model.parameters()))
    for name, parameter in model.named_parameters():
        matrix = name.endswith(("weight", "w_in_EHF", "w_out_EFH")) and "norm" not in name
        # A LayerNorm inside a Sequential has a one-dimensional weight.
        matrix = matrix and parameter.ndim > 1
        assert decay[id(parameter)] == (0.3 if matrix else 0.0), name
