"""The layout's rules, read from the source with ast: who imports whom, lengths, names, habits."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import symlab

PACKAGE = Path(symlab.__file__).parent
ROOT = PACKAGE.parent
SOURCES = sorted(PACKAGE.rglob("*.py"))

ALLOWED = {  # package -> packages of symlab that it may import, beside itself
    "symmetry": set(),
    "models": set(),
    "data": set(),
    "plots": set(),
    "schedules": set(),
    "rundir": set(),
    "curvature": {"symmetry"},
    "optim": {"symmetry", "curvature"},
    "search": set(),
    "constraint": {"symmetry"},
    "protocols": {"symmetry", "curvature", "constraint", "data", "training", "rundir"},
    "training": {"data", "rundir"},
    "comparison": {"data", "rundir", "training", "search"},
    "jobs": {
        *("symmetry", "curvature", "optim", "models", "data", "schedules", "training", "plots", "rundir"),
        *("search", "comparison", "constraint", "protocols"),
    },
    "cli": {"rundir"},
}
FORBIDDEN_NAMES = {"utils", "core", "common", "helpers", "misc", "util", "helper"}
LONGEST_FILE = 400
LONGEST_FUNCTION = 50  # lines without the docstring


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def package_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Dotted names of all modules and attributes that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(path)} imports relatively"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def inner_imports(path: Path) -> Iterator[str]:
    yield from (imported for imported in imports(path) if imported.startswith("symlab."))


def test_the_table_names_every_package() -> None:
    packages = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert packages == set(ALLOWED)


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_who_imports_whom(path: Path) -> None:
    package = package_of(path)
    if package in ("__init__", "__main__"):
        return
    for imported in inner_imports(path):
        other = imported.split(".")[1]
        if other == "__version__":
            continue
        assert other == package or other in ALLOWED[package], f"{name(path)} imports {imported}"


def chosen_by_config() -> set[str]:
    """Modules of the models, data sets, optimizers, schedules and plots that a config names (losses: of training)."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "conf").rglob("*.yaml")]
    targets = [target for text in texts for target in re.findall(r"^_target_: (\S+)", text, flags=re.MULTILINE)]
    return {target.rpartition(".")[0] for target in targets} - {"symlab.training.losses"}


@pytest.mark.parametrize("path", [path for path in SOURCES if package_of(path) in ("jobs", "training")], ids=name)
def test_jobs_import_nothing_that_a_config_chooses(path: Path) -> None:
    chosen = chosen_by_config()
    assert len(chosen) > 10
    for imported in inner_imports(path):
        assert imported.rpartition(".")[0] not in chosen, f"{name(path)} imports {imported}"
        assert imported not in chosen, f"{name(path)} imports {imported}"


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_only_the_command_line_knows_hydra(path: Path) -> None:
    if package_of(path) != "cli":
        assert not {imported.partition(".")[0] for imported in imports(path)} & {"hydra", "omegaconf"}


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_lengths(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LONGEST_FILE
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert function_length(node) <= LONGEST_FUNCTION, f"{name(path)}: {node.name} is too long"


def function_length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of the body without its docstring."""
    first = node.body[0]
    has_docstring = ast.get_docstring(node) is not None
    start = first.end_lineno if has_docstring else first.lineno - 1
    assert node.end_lineno is not None
    assert start is not None
    return node.end_lineno - start


def test_names() -> None:
    for folder in ("symlab", "conf", "scripts", "tests", "docs"):
        for path in (ROOT / folder).rglob("*"):
            assert path.stem.lower() not in FORBIDDEN_NAMES, name(path)


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_habits(path: Path) -> None:
    """No hasattr, no broad except that swallows (the command line excepted), no pyplot."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ExceptHandler) and package_of(path) != "cli":
            caught = {item.id for item in ast.walk(node.type) if isinstance(item, ast.Name)} if node.type else {"all"}
            assert not caught & {"Exception", "BaseException", "all"} or is_reraised(node), name(path)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            of_a_library = bool(node.args) and ast.unparse(node.args[0]).startswith("torch.")
            assert node.func.id != "hasattr" or of_a_library, name(path)
    assert not any(imported.startswith("matplotlib.pyplot") for imported in imports(path))


def is_reraised(handler: ast.ExceptHandler) -> bool:
    """Cleaning up and raising again is no silent fallback."""
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


@pytest.mark.parametrize("job", sorted((PACKAGE / "jobs").glob("[a-z]*.py")), ids=name)
def test_each_job_is_one_typed_function_with_a_config_of_the_same_name(job: Path) -> None:
    (function,) = [
        node
        for node in ast.parse(job.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name == job.stem
    ]
    assert [argument.arg for argument in function.args.args] == ["run"]
    assert function.args.kwarg is None
    assert all(argument.annotation is not None for argument in function.args.kwonlyargs)
    config = ROOT / "conf" / f"{job.stem}.yaml"
    assert config.read_text(encoding="utf-8").startswith("# "), f"{name(config)} needs a comment in its first line"


def test_each_config_of_a_job_has_its_module() -> None:
    for config in (ROOT / "conf").glob("*.yaml"):
        assert config.stem == "base" or (PACKAGE / "jobs" / config.name).with_suffix(".py").exists()
