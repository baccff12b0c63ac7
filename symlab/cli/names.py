"""Which Python object a `_target_` of a config may name.

The rule: `_target_: <module>.<attribute>` must lie in the package of its group, or in a root that the user named
in the environment variable SYMLAB_PLUGINS; the attribute must be public, a function or a class, and defined in
that very module. So a config from somebody else cannot name os.system, torch.load or builtins.open, nor reach
them through a module that symlab imports.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
from collections.abc import Callable
from typing import Any

from symlab.cli.listing import nearest
from symlab.rundir import BadInput

PACKAGES = {
    "model": "symlab.models",
    "data": "symlab.data",
    "optimizer": "symlab.optim",
    "schedule": "symlab.schedules",
    "loss": "symlab.training.losses",
    "plot": "symlab.plots",
    "search": "symlab.search",
    "constraint": "symlab.constraint",
    "protocol": "symlab.protocols",
}
PLUGINS = "SYMLAB_PLUGINS"


def plugin_roots() -> list[str]:
    return [root.strip() for root in os.environ.get(PLUGINS, "").split(",") if root.strip()]


def resolve(group: str, target: object) -> Callable[..., Any]:
    """The function or class that `target` names, for that group.

    Raises BadInput, naming the key and the rule, for anything else.
    """
    key = f"{group}._target_={target}"
    if not isinstance(target, str) or not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", target):
        raise BadInput(f"{key}: a target is text of the form <module>.<function>")
    module_name, _, attribute = target.rpartition(".")
    top = group.partition(".")[0]  # optimizer, or optimizers.adam: one of several, in a key named after the group
    known = top if top in PACKAGES else top.removesuffix("s")
    roots = [PACKAGES[known]] if known in PACKAGES else []
    roots += plugin_roots()
    if not any(module_name == root or module_name.startswith(root + ".") for root in roots):
        allowed = ", ".join(roots) or "no module"
        raise BadInput(
            f"{key}: not allowed; {group} may name what is in {allowed} "
            f"(to use your own code, name its top module in the environment variable {PLUGINS})"
        )
    return _attribute(key, module_name, attribute)


def _attribute(key: str, module_name: str, attribute: str) -> Callable[..., Any]:
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and not (module_name + ".").startswith(error.name + "."):
            raise BadInput(f"{key}: {module_name} needs the package {error.name}, which is not installed") from error
        raise BadInput(f"{key}: there is no module {error.name}") from error
    found = vars(module).get(attribute)
    ours = (inspect.isfunction(found) or inspect.isclass(found)) and found.__module__ == module_name
    if found is None or not ours or attribute.startswith("_"):
        public = [name for name, value in vars(module).items() if _is_own(value, module_name, name)]
        raise BadInput(f"{key}: {module_name} defines no public {attribute}{nearest(attribute, public, 'names')}")
    return found


def _is_own(value: object, module_name: str, name: str) -> bool:
    own = inspect.isfunction(value) or inspect.isclass(value)
    return own and not name.startswith("_") and getattr(value, "__module__", None) == module_name
