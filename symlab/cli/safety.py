"""Keeps a config from running code through Hydra's own node, which Hydra acts on before any job starts.

Allowed: Hydra's own launchers and sweepers and those of installed plugins (hydra_plugins), Hydra's two recording
callbacks, what SYMLAB_PLUGINS names, and loggers made of the handlers that symlab or Hydra itself configures. Hydra's
own copies of the config stay inside the run's directory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from symlab.cli.names import PLUGINS, plugin_roots
from symlab.rundir import BadInput

PLUGIN_PACKAGES = ("hydra_plugins.", "hydra._internal.core_plugins.")
BASIC = (
    "hydra._internal.core_plugins.basic_launcher.BasicLauncher",
    "hydra._internal.core_plugins.basic_sweeper.BasicSweeper",
)
SHELL = ("setup", "teardown", "python", "srun_args", "additional_parameters", "comment")
ENVIRONMENT = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_VISIBLE_DEVICES",
    "MKL_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "OPENBLAS_NUM_THREADS",
)
CALLBACKS = (
    "hydra.experimental.callbacks.LogJobReturnCallback",
    "hydra.experimental.callbacks.PickleJobInfoCallback",
)
HANDLERS: Mapping[str, frozenset[str]] = {  # handler class -> the keys that it may have beside `class`
    "logging.StreamHandler": frozenset({"formatter", "stream", "level"}),
    "logging.FileHandler": frozenset({"formatter", "filename", "mode", "encoding", "level", "delay"}),
}
STREAMS = ("ext://sys.stdout", "ext://sys.stderr")
LOG_FILES = (
    "${hydra.runtime.output_dir}/log.txt",
    "${hydra.runtime.output_dir}/${hydra.job.name}.log",
)
FORMATTER = frozenset({"format", "datefmt"})
LOGGING = frozenset({"version", "root", "loggers", "handlers", "formatters", "disable_existing_loggers"})


def check_hydra_node(hydra: DictConfig) -> None:
    """Raises BadInput, naming the key, if the node could make Hydra call anything else."""
    typed = [str(override) for override in hydra.overrides.hydra]
    for key in ("launcher", "sweeper"):
        node = OmegaConf.to_container(hydra[key], resolve=True) if hydra.get(key) is not None else {}
        _check_plugin(f"hydra.{key}", node, typed)
    callbacks = OmegaConf.to_container(hydra.callbacks, resolve=True) if hydra.get("callbacks") else {}
    for name, node in _items(callbacks, "hydra.callbacks"):
        _check_callback(f"hydra.callbacks.{name}", node)
    for name, value in _items(OmegaConf.to_container(hydra.job.env_set, resolve=False), "hydra.job.env_set"):
        if name not in ENVIRONMENT:
            raise BadInput(f"hydra.job.env_set.{name}={value}: not allowed; only {', '.join(ENVIRONMENT)}")
    _check_subdirectory(OmegaConf.to_container(hydra, resolve=False))
    for key in ("hydra_logging", "job_logging"):
        node = OmegaConf.to_container(hydra[key], resolve=False) if hydra.get(key) is not None else {}
        check_logging(f"hydra.{key}", node)


def _check_subdirectory(node: Any) -> None:
    """Hydra writes its config.yaml, hydra.yaml and overrides.yaml there, over files of those names."""
    name = node.get("output_subdir")
    if name is not None and not re.fullmatch(r"\.?[A-Za-z0-9_][A-Za-z0-9_.-]*", str(name)):
        raise BadInput(f"hydra.output_subdir={name}: not allowed; a folder inside the run's directory, e.g. .hydra")


def _check_plugin(key: str, node: Any, typed: Sequence[str]) -> None:
    """Another launcher or sweeper, and the shell commands that some launchers take, must be typed by the user."""
    entries = dict(_items(node, key))
    target = entries.pop("_target_", None)
    if target is not None and not (isinstance(target, str) and target.startswith(PLUGIN_PACKAGES)):
        raise BadInput(f"{key}._target_={target}: not allowed; it comes from Hydra or from hydra_plugins")
    choice = key.replace(".", "/") + "="
    if target not in (None, *BASIC) and not any(override.lstrip("+").startswith(choice) for override in typed):
        raise BadInput(f"{key}._target_={target}: a config may not choose it; type {choice}... on the command line")
    for path, value in _leaves(entries, key):
        if path.endswith("._target_"):
            _check_root(path, value)
        if isinstance(value, str) and "\n" in value:
            raise BadInput(f"{path}={value!r}: not allowed; a line break could start a command in a job script")
        part = path.removeprefix(f"{key}.").partition(".")[0]
        if part in SHELL and value is not None and not any(o.lstrip("+").startswith(f"{key}.{part}") for o in typed):
            raise BadInput(f"{path}={value}: a config may not set it; type {key}.{part}=... on the command line")


def _check_callback(key: str, node: Any) -> None:
    for path, target in _targets(node, key):
        if path != f"{key}._target_" or target not in CALLBACKS:
            _check_root(path, target)


def _check_root(path: str, target: Any) -> None:
    if not any(isinstance(target, str) and target.startswith(root + ".") for root in plugin_roots()):
        raise BadInput(
            f"{path}={target}: not allowed; Hydra would call it "
            f"(to use your own code, name its top module in the environment variable {PLUGINS})"
        )


def check_logging(key: str, node: Any) -> None:
    """Only plain handlers, formatters and levels; raw values, so that no interpolation hides a name."""
    for name, value in _items(node, key):
        if name not in LOGGING:
            raise _refused(f"{key}.{name}", value)
    for name, formatter in _items(node.get("formatters"), key):
        _check_entries(f"{key}.formatters.{name}", formatter, FORMATTER)
    for name, handler in _items(node.get("handlers"), key):
        _check_handler(f"{key}.handlers.{name}", handler)
    for name in ("root", "loggers", "version", "disable_existing_loggers"):
        for path, value in _leaves(node.get(name), f"{key}.{name}"):
            if _is_special(value) or path.rpartition(".")[2] in ("()", ".", "class", "filters"):
                raise _refused(path, value)


def _check_handler(path: str, handler: Any) -> None:
    entries = dict(_items(handler, path))
    kind = entries.pop("class", None)
    if kind is not None and kind not in HANDLERS:
        raise _refused(f"{path}.class", kind)
    stream, filename = entries.pop("stream", STREAMS[0]), entries.pop("filename", LOG_FILES[0])
    if stream not in STREAMS:
        raise _refused(f"{path}.stream", stream)
    if filename not in LOG_FILES:
        raise _refused(f"{path}.filename", filename)
    _check_entries(path, entries, HANDLERS.get(str(kind), frozenset.union(*HANDLERS.values())))


def _check_entries(path: str, node: Any, allowed: frozenset[str]) -> None:
    for name, value in _items(node, path):
        if name not in allowed or isinstance(value, (dict, list)) or _is_special(value):
            raise _refused(f"{path}.{name}", value)


def _is_special(value: Any) -> bool:
    return isinstance(value, str) and ("://" in value or "${" in value)


def _refused(path: str, value: Any) -> BadInput:
    return BadInput(f"{path}={value}: not allowed; loggers keep the handlers of conf/base.yaml (set levels freely)")


def _items(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    if node is None:
        return
    if not isinstance(node, dict):
        raise BadInput(f"{path}={node}: expected a mapping")
    yield from ((str(key), value) for key, value in node.items())


def _targets(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield from ((where, value) for where, value in _leaves(node, path) if where.endswith("._target_"))


def _leaves(node: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Dotted path and value of everything that is not a mapping or a list."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _leaves(value, f"{path}.{key}")
    elif isinstance(node, Sequence) and not isinstance(node, str):
        for index, value in enumerate(node):
            yield from _leaves(value, f"{path}.{index}")
    else:
        yield path, node
