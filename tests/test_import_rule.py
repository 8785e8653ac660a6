"""Who may import whom (docs/structures.md). The build fails when a module breaks the rule."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PURE = ("gllm.core", "rserve.core", "rserve.sim")
NOT_PURE = {"time", "threading", "os", "random", "asyncio", "multiprocessing", "socket", "subprocess"}
SIMULATOR_EDGE = {
    f"rserve.sim.{name}" for name in ("cli", "sweep", "calibrate", "recording", "output", "paper")
}
ALLOWED = {
    "gllm.core": {"gllm.core"},
    "gllm.layers": {"gllm.layers"},
    "gllm.models": {"gllm.models", "gllm.layers", "gllm.core.model_shape", "gllm.core.config_reader"},
    "gllm.multimodal": {"gllm.multimodal", "gllm.core"},
    "gllm.runtime": {
        "gllm.runtime", "gllm.core", "gllm.layers", "gllm.models", "gllm.multimodal", "gllm.config",
    },
    "gllm.entrypoints": {"gllm"},
    "rserve.core": {"rserve.core", "gllm.core"},
    "rserve.sim": {"rserve.sim", "rserve.core", "gllm.core", "gllm.models.names", "gllm.models.shape_file"},
    "rserve.calibration": {
        "rserve.calibration", "rserve.runtime", "rserve.sim", "rserve.core", "rserve.config", "gllm",
    },
    "rserve.runtime": {
        "rserve.runtime", "rserve.core", "rserve.config", "gllm.runtime", "gllm.models", "gllm.core",
        "gllm.layers", "gllm.config",
    },
}  # fmt: skip


def module_of(file: Path) -> str:
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(file: Path) -> list[str]:
    """Absolute names of all modules that a file imports, at whatever depth."""
    package = module_of(file).split(".") if file.name == "__init__.py" else module_of(file).split(".")[:-1]
    found: list[str] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            found.append(".".join([*base, *(node.module or "").split(".")]).strip("."))
    return found


FILES = [f for top in ("gllm", "rserve") for f in sorted((ROOT / top).rglob("*.py"))]


def inside(name: str, packages: tuple[str, ...] | set[str]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


@pytest.mark.parametrize("layer", ALLOWED)
def test_a_layer_imports_only_what_lies_below_it(layer: str):
    for file in FILES:
        if inside(module_of(file), (layer,)) and module_of(file) not in SIMULATOR_EDGE:
            ours = [name for name in imports_of(file) if inside(name, ("gllm", "rserve"))]
            wrong = [name for name in ours if not inside(name, ALLOWED[layer])]
            assert not wrong, f"{file.relative_to(ROOT)} imports {wrong}"


def test_the_core_and_the_simulator_use_the_standard_library_only_and_no_clock():
    for file in FILES:
        if inside(module_of(file), PURE) and module_of(file) not in SIMULATOR_EDGE:
            names = {name.split(".")[0] for name in imports_of(file)} - {"gllm", "rserve", "__future__"}
            assert names <= sys.stdlib_module_names, f"{file.relative_to(ROOT)} imports {names}"
            allowed_random = {"random"} if inside(module_of(file), ("rserve.sim",)) else set()
            clocks = (names & NOT_PURE) - allowed_random
            assert not clocks, f"{file.relative_to(ROOT)} imports {clocks}"


def test_gllm_never_imports_rserve():
    for file in FILES:
        if inside(module_of(file), ("gllm",)):
            assert not [n for n in imports_of(file) if inside(n, ("rserve",))], file


def test_layers_and_kernels_never_import_the_core():
    for file in FILES:
        if inside(module_of(file), ("gllm.layers",)):
            assert not [n for n in imports_of(file) if inside(n, ("gllm.core",))], file
