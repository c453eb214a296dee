"""Which reading of the paper's words gives its tables? Every reading at common learning rates, all scored alike.

The paper leaves open whether the softmax is applied once or twice, whose derivative the server returns (`READINGS`),
and which learning rates it took. A reading gives OGD's and DLR's rows of Tables 1 and 2 at one learning rate for all,
and Tables 3 and 4. Its distance to a table is the root mean square of ``log(ours / the paper's)``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from anabranch.config.run import Config
from anabranch.paper.arms import errors
from anabranch.paper.client_step import ARMS, client_rates
from anabranch.paper.experiment import Column, Experiment, Presentation, Row, Run, Table, Value, select
from anabranch.paper.paper import number
from anabranch.paper.study import ACTIVATIONS, IMNIST, IMNIST_DRIFT, UPDATES, Method, Problem, Study

RATES = (0.015, 0.01, 0.003, 0.006)
SLR_RATES = (0.1, 0.01, 0.001, 0.0001)
SEEDS = 3
SOFTMAX = {"once": False, "twice": True}
READINGS = {
    "by the text": "DLR",
    "by Algorithm 3": "DLR by Algorithm 3",
    "by the letter of Algorithm 1": "DLR by the letter of Algorithm 1",
}
"""The arm of `client-step` that each reading of DLR is."""
TABLES: dict[str, Mapping[str, tuple[str, dict[str, Any]]]] = {
    **{
        table: {f"{update}-{activation}": (update, rule) for update in ("OGD", "DLR") for activation, rule in rules}
        for table, rules in (("drift", ACTIVATIONS.items()), ("stationary", ACTIVATIONS.items()))
    },
    "probability": {f"p = {p:g}": ("DLR", {"name": "Random", "p": p}) for p in (0.25, 0.5, 0.75, 1.0)},
    "threshold": {f"Γ = {text}": ("DLR", {"name": "Event", "threshold": float(text.replace("−", "-"))})
                  for text in ("0.6", "0.2", "−0.2")},
}  # fmt: skip
"""By the experiment that has the paper's numbers: its rows, and the update and the activation of each."""


def _problem(table: str) -> Problem:
    return IMNIST if table == "stationary" else IMNIST_DRIFT


def _config_of(study: Study, cell: Mapping[str, Any], update: str, rule: dict[str, Any], seed: int) -> Config:
    arm = ARMS[READINGS[cell["DLR"]] if update == "DLR" else "OGD"]
    activation = str(rule["name"])
    return study.config(
        _problem(cell["table"]),
        Method("", activation),
        seed=seed,
        learning_rate=client_rates(cell["rate"], activation, arm.factor),
        update=arm.update,
        activation=rule,
        model={"name": "imnist", "server_softmax": SOFTMAX[cell["softmax"]]},
    )


def _dlr_and_ogd(study: Study) -> Iterator[Run]:
    for seed in study.seeds_of(SEEDS):
        for table, rows in TABLES.items():
            for rate in RATES:
                for softmax in SOFTMAX:
                    for reading in READINGS:
                        cell: dict[str, Value] = {"table": table, "softmax": softmax, "DLR": reading, "rate": rate}
                        for row, (update, rule) in rows.items():
                            yield Run({**cell, "row": row}, _config_of(study, cell, update, rule, seed))


def _slr(study: Study) -> Iterator[Run]:
    """Yield one seed: a trial of SLR takes four times as long as the others."""
    for rate in SLR_RATES:
        for softmax, twice in SOFTMAX.items():
            for activation in ACTIVATIONS:
                model = {"name": "imnist", "server_softmax": twice}
                method = Method("SLR", activation)
                config = study.config(IMNIST_DRIFT, method, learning_rate=rate, update=UPDATES["SLR"], model=model)
                cell = {"table": "drift", "softmax": softmax, "DLR": None, "rate": rate}
                yield Run({**cell, "row": str(method)}, config)


def _runs(study: Study) -> list[Run]:
    return [*_dlr_and_ogd(study), *_slr(study)]


def distance(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Return the root mean square of ``log(ours / the paper's)``, or None where there is no pair.

    >>> distance([(0.1, 0.1), (0.2, 0.2)]), round(distance([(0.2, 0.1)]), 4)
    (0.0, 0.6931)
    """
    return math.sqrt(fmean(math.log(ours / theirs) ** 2 for ours, theirs in pairs)) if pairs else None


def _score(table: str, rows: Sequence[Row]) -> float | None:
    """Return a reading's distance to one of the paper's tables; None where a row is missing or diverged."""
    held = {str(row.labels["row"]): list(errors(row).values()) for row in rows}
    if any(not each for each in held.values()):
        return None
    theirs = {row: number(table, row, "error") for row in held}
    return distance([(fmean(held[row]), error) for row, error in theirs.items() if error is not None])


def _line(reading: str | None, softmax: str, rate: float, rows: Sequence[Row]) -> dict[str, Value]:
    some = select(rows, DLR=reading, softmax=softmax, rate=rate)
    scores = {table: _score(table, select(some, table=table)) for table in TABLES}
    known = [score for table, score in scores.items() if score is not None and select(some, table=table)]
    return {
        "row": f"SLR, softmax {softmax}" if reading is None else f"DLR {reading}, softmax {softmax}",
        "rate": rate,
        **scores,
        "seeds": min((len(row.records) for row in some), default=0),
        "all": math.sqrt(fmean(score**2 for score in known)) if len(known) == len(TABLES) else None,
    }


def _present(study: Study, rows: list[Row]) -> Presentation:
    own = [_line(reading, softmax, rate, rows) for reading in READINGS for softmax in SOFTMAX for rate in RATES]
    slr = [_line(None, softmax, rate, rows) for softmax in SOFTMAX for rate in SLR_RATES]
    columns = [
        Column("row", "reading"),
        Column("rate", "learning rate", "g"),
        Column("seeds", "seeds"),
        Column("drift", "Table 2", ".3f"),
        Column("stationary", "Table 1", ".3f"),
        Column("probability", "Table 3", ".3f"),
        Column("threshold", "Table 4", ".3f"),
        Column("all", "all", ".3f"),
    ]
    caption = "Distance of each reading to the paper's tables"
    return Presentation(
        [
            Table("readings", f"{caption}: OGD's and DLR's rows", columns, own),
            Table("readings-slr", f"{caption}: SLR's row of Table 2, one seed", columns[:4], slr, one_seed=True),
        ],
        notes=[
            "A distance is the root mean square of log(ours / the paper's): 0.1 is about 10 %. All methods of a "
            "reading have one learning rate. A distance is missing while one of its trials is."
        ],
    )


EXPERIMENT = Experiment(
    "readings",
    "Tables 1 to 4 again",
    "Which reading of the paper's words gives its tables?",
    _runs,
    _present,
    timed=False,
)
