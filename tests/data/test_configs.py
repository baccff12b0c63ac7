"""Every option of the data, model and plot groups names its function and each of its keys, with the same defaults."""

import importlib
import inspect
from pathlib import Path

import pytest
import yaml

CONF = Path(__file__).parents[2] / "conf"
OPTIONS = sorted(path for group in ("data", "model", "plot") for path in (CONF / group).glob("*.yaml"))


def test_every_module_has_its_option():
    names = {path.stem for path in OPTIONS if path.parent.name == "data"}
    assert {"teacher_student", "digits", "fashion_mnist", "mnist", "cifar10", "cifar100"} <= names


@pytest.mark.parametrize("path", OPTIONS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_option_agrees_with_the_signature(path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# "), "the first line says what the option is"
    config = yaml.safe_load(text)
    module, _, name = config.pop("_target_").rpartition(".")
    function = getattr(importlib.import_module(module), name)
    keys = {
        key: parameter.default
        for key, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY and key != "title"
    }
    defaults = {key: list(value) if isinstance(value, tuple) else value for key, value in keys.items()}
    assert config == defaults
