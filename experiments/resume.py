"""`resume=<run dir>`: the run's own command line, in the run's own directory."""

from __future__ import annotations

from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf


def _key(override: str) -> str:
    """The key of `key=value`, without Hydra's signs for adding and deleting."""
    return override.lstrip("+~").split("=", 1)[0].split("@", 1)[0]


def resume_arguments(arguments: list[str]) -> list[str]:
    """Put a run's own overrides before those given beside `resume=<run dir>`.

    Anything else, `resume=auto` among it, comes back as it is.
    """
    given = next((a for a in arguments if a.startswith("resume=")), "resume=auto")
    value = OverridesParser.create().parse_override(given).value()
    if value in (None, "auto"):
        return arguments
    run = Path(str(value))
    saved = run / ".hydra" / "overrides.yaml"
    if not saved.is_file():
        return arguments
    keys = {_key(a) for a in arguments}
    own = [o for o in OmegaConf.to_container(OmegaConf.load(saved)) if _key(o) not in keys]
    # The run keeps the .hydra that it began with.
    return [*own, *arguments, f"hydra.run.dir={run}", "hydra.output_subdir=null"]


def overridden_keys() -> list[str]:
    """The keys given now, beyond those that the run began with."""
    hydra = HydraConfig.get()
    saved = Path(hydra.runtime.output_dir) / ".hydra" / "overrides.yaml"
    own = OmegaConf.to_container(OmegaConf.load(saved)) if hydra.output_subdir is None else []
    return [_key(override) for override in hydra.overrides.task if override not in own]
