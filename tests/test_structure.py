"""The house: imports go one way, and no room holds what must not be there."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Lower rooms first; a file may import its own level and those below.
LEVELS = [
    {"errors", "config", "seeds", "files", "strict_json", "console", "provenance"},
    {"sample", "hardware"},
    {"media"},
    {"clips"},
    {"encoders", "datasets"},
    {"features", "foils"},
    {"model"},
    {"calibration"},
    {"decision", "judge"},
    {"evaluation"},
    {"training", "report", "sharing", "sweeps"},
    {"inputs", "planning"},
    {"engine"},
    {"verification"},
    {"pipeline"},
]
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
FILES = sorted((ROOT / "arbiter").rglob("*.py"))


def imported_rooms(path: Path) -> set[str]:
    """The rooms of the package that a file imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("arbiter.")}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_down_only(path):
    room = path.relative_to(ROOT / "arbiter").parts[0].removesuffix(".py")
    if room == "__init__":
        return
    too_high = {other for other in imported_rooms(path) if LEVEL[other] > LEVEL[room]}
    assert not too_high, f"{room} imports {too_high}"


def test_the_library_never_unpickles():
    for path in FILES + sorted((ROOT / "experiments").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                assert not {a.name for a in node.names} & {"pickle", "dill", "joblib"}, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                called = ast.unparse(node.func)
                assert called not in ("torch.load", "torch.save", "np.load"), path
