"""All finished runs of a comparison, on disk by the key of their trial, so that none is done twice.

Runs under a key that the present configuration does not ask for are kept, in the tables former_<name>.csv.
"""

import json
from collections.abc import Collection, Mapping
from typing import Any

from symlab.comparison.run_trial import TrialResult
from symlab.comparison.trial import Trial
from symlab.rundir import BadInput, RunDir

TRIALS, RESULTS, CURVES = "trials", "results", "curves"
LAST = ("train_loss", "test_loss", "train_accuracy", "test_accuracy")
NEEDED = ("optimizer", "seed", "status", "step", "time_s", "duration_s", "message", "key")
RETRIED = ("failed",)  # statuses that do not count as finished
Row = dict[str, Any]


class Ledger:
    """Reads what is there once, then appends; a run is on record as soon as it ends.

    `made_with`: code, versions and machine of this start, written beside each of its runs.
    """

    def __init__(self, run: RunDir, made_with: str = "") -> None:
        self.run, self.made_with = run, made_with
        self._tables = {name: self._read(name) for name in (TRIALS, RESULTS)}
        self._forget_halves()

    def _forget_halves(self) -> None:
        """A result without the end of its curve, and a curve without its result (killed between them), are no run."""
        done = self._tables[RESULTS]
        curves = {name: self.run.read_rows(name) for name in (CURVES, f"former_{CURVES}")}
        ends = {(row["key"], row["step"]) for rows in curves.values() for row in rows}
        for key, row in list(done.items()):
            if row["status"] == "completed" and (key, row["step"]) not in ends:
                del done[key]
        if any(row["key"] not in done for row in curves[CURVES]):
            self.run.keep_rows(lambda row: row["key"] in done, CURVES)

    def _read(self, name: str) -> dict[str, Row]:
        """Key -> row; of a trial that failed and was done again the later one."""
        rows = [*self._checked(f"former_{name}"), *self._checked(name)]
        return {str(row["key"]): row for row in rows}

    def _checked(self, name: str) -> list[Row]:
        """Raises BadInput, naming the file, for a table that lacks a column."""
        rows = self.run.read_rows(name)
        missing = [column for column in (*NEEDED, *LAST) if rows and column not in rows[0]]
        if missing:
            raise BadInput(f"{self.run.path / name}.csv has no column {', '.join(missing)}: it was changed by hand?")
        return rows

    def trial(self, key: str) -> TrialResult | None:
        """A tuning run that is on record."""
        row = self._tables[TRIALS].get(key)
        if row is None or row["status"] in RETRIED:
            return None
        last = {"step": row["step"]} | {name: row[name] for name in LAST}
        rows = [last] if row["status"] == "completed" else []
        return TrialResult(row["status"], row["message"] or "", rows, int(row["step"]), float(row["time_s"]))

    def result(self, key: str) -> Row | None:
        """The row of a reported run that is on record."""
        row = self._tables[RESULTS].get(key)
        return None if row is None or row["status"] in RETRIED else row

    def add_trial(self, key: str, place: Mapping[str, Any], trial: Trial, result: TrialResult) -> None:
        """Write down a tuning run; `place`: its round, number and value under the present objective."""
        row = {
            "optimizer": trial.label,
            **place,
            "seed": trial.seed,
            "settings": json.dumps(dict(trial.settings)),
            **_outcome(result),
            **_last(result),
            "made_with": self.made_with,
            "key": key,
        }
        self.run.append_rows([row], TRIALS)
        self._tables[TRIALS][key] = row

    def add_result(self, key: str, trial: Trial, result: TrialResult) -> None:
        """Write down a reported run: first its curve, then its row."""
        name = f"{trial.label} {trial.seed}"
        labels = {"optimizer": trial.label, "seed": trial.seed, "run": name, "group": trial.label}
        columns = dict.fromkeys(("step", "epoch", "lr", *LAST, "batch_loss", "time_s"))
        curve = [labels | columns | row | {"key": key} for row in result.rows]
        self.run.append_rows(curve, CURVES)
        known = [row for row in result.rows if row["test_loss"] is not None and row["test_loss"] == row["test_loss"]]
        best: Mapping[str, Any] = min(known, key=lambda row: row["test_loss"], default={})
        row = {
            "optimizer": trial.label,
            "seed": trial.seed,
            **_outcome(result),
            **_last(result),
            "best_test_loss": best.get("test_loss"),
            "best_step": best.get("step"),
            "step_time_ms": result.step_time_ms,
            "state_mib": result.state_mib,
            "parameters": result.parameters,
            "references": json.dumps(result.references),
            "settings": json.dumps(trial.effective_settings()),
            "made_with": self.made_with,
            "key": key,
        }
        self.run.append_rows([row], RESULTS)
        self._tables[RESULTS][key] = row

    def place(self, places: Mapping[str, Mapping[str, Any]]) -> None:
        """Write round, number and value of each tuning run anew: another objective or budget has changed them."""
        rows = [{**row, **places[row["key"]]} for row in self.run.read_rows(TRIALS) if row["key"] in places]
        if rows:
            order = {key: number for number, key in enumerate(places)}
            self.run.replace_rows(sorted(rows, key=lambda row: order[row["key"]]), TRIALS)

    def settle(self, tables: Collection[str], keys: Collection[str]) -> None:
        """Put the rows of `keys` into the tables, and all others into the former ones; each once."""
        for name in tables:
            rows = [*self.run.read_rows(f"former_{name}"), *self.run.read_rows(name)]
            identity = ("key", "step") if name == CURVES else ("key",)
            unique = list({tuple(row[column] for column in identity): row for row in rows}.values())
            current = [row for row in unique if row["key"] in keys]
            former = [row for row in unique if row["key"] not in keys]
            if former or len(unique) < len(rows) or self.run.read_rows(f"former_{name}"):
                self.run.replace_rows(unique, name)  # first all: a row may stand twice, but is never lost
                self.run.replace_rows(former, f"former_{name}")
                self.run.replace_rows(current, name)


def _outcome(result: TrialResult) -> Row:
    return {
        "status": result.status,
        "step": result.step,
        "time_s": result.time_s,
        "duration_s": result.duration_s,
        "message": " ".join(result.message.split()) or None,
    }


def _last(result: TrialResult) -> Row:
    """Columns of the last evaluation; empty for a run that did not complete."""
    last: Mapping[str, Any] = result.rows[-1] if result.rows and result.status == "completed" else {}
    return {name: last.get(name) for name in LAST}
