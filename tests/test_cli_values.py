"""Values: conversion against annotations, quoting for Hydra and the shell, factories that name the key."""

import collections.abc
import pickle
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from symlab.cli import arguments, compose, listing, validation
from symlab.cli.conversion import convert
from symlab.rundir import BadInput

HERE = Path("/typed/here")


@pytest.mark.parametrize(
    ("value", "annotation", "wanted"),
    [
        (3, int, 3),
        (3, float, 3.0),
        (3, int | float, 3),
        (0.5, int | float, 0.5),
        (True, bool, True),
        ("x", str, "x"),
        (None, int | None, None),
        ([1, 2], list[float], [1.0, 2.0]),
        ([1, 2], tuple[int, float], (1, 2.0)),
        ([1, 2], tuple[int, ...], (1, 2)),
        (["a"], collections.abc.Sequence[str], ["a"]),
        ({"a": 1}, dict[str, float], {"a": 1.0}),
        ({"a": 1}, collections.abc.Mapping[str, Any], {"a": 1}),
        ("b", Literal["a", "b"], "b"),
        (1, Annotated[float, "unit"], 1.0),
        ("d", Path, HERE / "d"),
        ("../d/", Path, Path("/typed/d")),
        ("/d", Path | None, Path("/d")),
        (["a", "b"], list[Path] | Path, [HERE / "a", HERE / "b"]),
        (object, Any, object),
    ],
)
def test_values_that_fit(value: Any, annotation: Any, wanted: Any) -> None:
    found = convert("key", value, annotation, HERE)
    assert found == wanted
    assert type(found) is type(wanted)


@pytest.mark.parametrize(
    ("value", "annotation", "message"),
    [
        (True, int, "expected a whole number, got true or false"),
        (1.0, int, "key=1.0: expected a whole number, got a decimal number"),
        (True, float, "expected a number, got true or false"),
        (1, bool, "expected true or false, got a whole number"),
        ("1e-3", float, 'key="1e-3": expected a number, got text'),
        (1, str, "expected text, got a whole number"),
        (None, int, "key=null: expected a whole number, got null"),
        ("x", int | None, "expected a whole number or null, got text"),
        ([1, "x"], list[int], "expected a whole number, got a list"),
        (1, list[int], "expected a list of a whole number, got a whole number"),
        ([1], tuple[int, int], "expected a list of 2: a whole number, a whole number"),
        ("c", Literal["a", "b"], "expected one of a, b"),
        (1, Literal[True], "expected one of true"),
        ({"a": "x"}, dict[str, int], "expected a whole number, got a mapping"),
        (1, dict[str, int], "expected a mapping"),
        (3, Path, "expected a path, got a whole number"),
        (3, collections.abc.Callable, "expected an option of the group"),
    ],
)
def test_values_that_do_not_fit(value: Any, annotation: Any, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        convert("key", value, annotation, HERE)
    assert message in str(caught.value)


@settings(max_examples=100, deadline=None)
@example("007")
@example("1e3")
@example("true")
@example("NULL")
@example("nan")
@example("1_0")
@example("a\\")
@example('\\"')
@example("")
@given(st.text(st.characters(categories=("L", "N", "P", "S", "Zs"))).filter(lambda text: "${" not in text))
def test_quoted_values_read_back_equal(value: str) -> None:
    (override,) = compose.OverridesParser.create().parse_overrides([arguments.override_text("key", value)])
    assert override.value() == value
    (word,) = shlex.split(arguments.pasteable("key", value))
    assert word == arguments.override_text("key", value)


def test_ranges_for_optimised_python() -> None:
    assert compose.listed_range("range(0,3)") == "0,1,2"
    assert compose.listed_range("range(4, 0, -2)") == "4,2"
    assert compose.listed_range("range(3)") == "0,1,2"
    for other in ("range(0,1,0)", "range(0.5,2)", "choice(1,2)", "text"):
        assert compose.listed_range(other) == other


def scaled(start: float, *, rate: float, mode: str = "x") -> float:
    if rate < 0:
        raise ValueError(f"rate must be positive, got {rate}")
    if mode == "y":
        raise TypeError("not that way")
    return start * rate


def test_a_factory_names_the_key_of_an_error() -> None:
    assert validation.Factory("group", scaled, {"rate": 2.0})(3.0) == 6.0
    with pytest.raises(BadInput, match=r"^group\.rate=-1\.0: rate must be positive, got -1\.0$"):
        validation.Factory("group", scaled, {"rate": -1.0})(3.0)
    with pytest.raises(BadInput, match=r"^group=scaled: not that way$"):
        validation.Factory("group", scaled, {"rate": 1.0, "mode": "y"})(3.0)
    with pytest.raises(BadInput, match=r"^group=scaled: .* missing"):
        validation.Factory("group", scaled, {})(3.0)
    assert validation.Factory("group", scaled, {"rate": 1.0})(3.0, rate=4.0) == 12.0  # like functools.partial
    again = pickle.loads(pickle.dumps(validation.Factory("group", scaled, {"rate": 2.0})))
    assert again(3.0) == 6.0
    assert again.__name__ == "scaled"


def test_nearest_names() -> None:
    known = ["optimizer.lr", "optimizer.beta", "epochs"]
    assert listing.nearest("optimzer.lr", known) == "; did you mean optimizer.lr?"
    assert listing.nearest("zzz", known, "keys") == "; there are the keys optimizer.lr, optimizer.beta, epochs"


def test_flags_and_overrides_in_any_order(tmp_path: Path) -> None:
    words = ["train", "a=1", "-m", "b=2", "--config-dir", str(tmp_path), "c=3", "--config-name", "x"]
    parsed = arguments.parse(words)
    assert (parsed.job, parsed.overrides, parsed.multirun) == ("train", ("a=1", "b=2", "c=3"), True)
    assert (parsed.config_dir, parsed.config_name) == (tmp_path, "x")
    assert arguments.parse(["train", "--cfg", "job", "--resolve", "-p", "model"]).show == (
        "--cfg",
        "job",
        "--resolve",
        "--package",
        "model",
    )
    for refused in (["train", "--resolve"], ["train", "--config-path", "x"], ["train", "--config-dir", "gone"]):
        with pytest.raises(BadInput):
            arguments.parse(refused)


@pytest.mark.parametrize("job", ["curvature", "factor_momentum", "local_curvature", "symmetry"])
def test_mappings_can_be_given_as_documented(job):
    """`groups={residual:trivial}`: Hydra merges into a mapping that is there already, and refuses new keys of it."""
    with compose.config_sources(job, None, None):
        for key in ("groups", "wrong_groups", "expected"):
            if key in compose.resolved(compose.compose(job, None, [])):
                config = compose.resolved(compose.compose(job, None, [f"{key}={{residual:trivial}}"]))
                assert config[key] == {"residual": "trivial"}


def test_a_figure_that_is_left_out_is_not_blamed_for_another_key():
    with compose.config_sources("curvature", None, None), pytest.raises(BadInput, match=r"^lrr=1: there is no key lrr"):
        compose.compose("curvature", None, ["~plot@plots.spectrum", "lrr=1"])
