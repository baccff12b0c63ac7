"""The table of docs/data.md names every data set with its rows, its shape and where its files lie."""

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

from symlab.data.digits import digits

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "data.md").read_text("utf-8")
ROWS = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE, flags=re.MULTILINE))
OPTIONS = sorted(path.stem for path in (ROOT / "conf" / "data").glob("*.yaml"))


def test_every_option_has_its_row():
    assert sorted(ROWS) == OPTIONS


def test_the_rows_of_digits():
    data = digits()
    assert ROWS["digits"].startswith(f"{data.num_train:,} + {data.num_test:,} |")


@pytest.mark.parametrize("name", [name for name in OPTIONS if name.endswith("_synthetic")])
def test_rows_of_the_made_up_sets_are_their_defaults(name):
    keys = inspect.signature(getattr(import_module(f"symlab.data.{name}"), name)).parameters
    assert ROWS[name].startswith(f"{keys['rows'].default:,} + {keys['test_rows'].default:,} |")
    assert str(keys["root"].default) == "data/synthetic"
    if "classes" in keys:
        assert f"{keys['classes'].default} classes" in ROWS[name]


@pytest.mark.parametrize("name", OPTIONS)
def test_where_it_is_kept(name):
    text = (ROOT / "symlab" / "data" / f"{name}.py").read_text("utf-8")
    streamed = ") -> StreamedDataset:" in text
    assert ROWS[name].endswith("on disk" if streamed else "in memory")
