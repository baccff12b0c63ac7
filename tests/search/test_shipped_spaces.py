"""The search spaces in conf/: they can be read, hold the values that are configured, and name keys with a meaning."""

from pathlib import Path

import pytest
import yaml

import symlab
from symlab.search import Space

CONF = Path(symlab.__file__).parents[1] / "conf"
FILES = sorted([*CONF.glob("optimizer/*.yaml"), *CONF.glob("schedule/*.yaml")])
NOTHING_TO_TUNE = {"constant", "cosine"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_each_option_declares_a_space_around_its_own_values(file: Path) -> None:
    node = yaml.safe_load(file.read_text(encoding="utf-8"))
    space = Space.of(node.get("_tune_") or {}, prefix=f"{file.stem}.")
    assert bool(space.dimensions) == (file.stem not in NOTHING_TO_TUNE)
    assert len(space.dimensions) <= 3
    for dimension in space.dimensions:
        key = dimension.key.partition(".")[2]
        assert 0 <= dimension.to_unit(node[key]) <= 1, f"{file.stem}.{key}={node[key]} is outside its own range"
        if key == "lr":
            assert dimension.scale == "log"
            assert dimension.low is not None
            assert dimension.high is not None
            assert dimension.high >= 100 * dimension.low  # wide enough that nobody's taste decides
            assert dimension.max == 100  # the largest rate that an optimizer takes
