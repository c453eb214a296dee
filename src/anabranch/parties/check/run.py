"""What a run would read: its stream, as training gets it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from anabranch.config import build as runner
from anabranch.config.run import Config, TableStream, form_of
from anabranch.parties.check.findings import Findings, Sample
from anabranch.parties.check.party import MOST, MOST_CELLS, SAMPLES, look_at_columns, use_of
from anabranch.streams.tables import Table
from anabranch.tables import open_table

MOST_OF_AN_ENDLESS_STREAM = 10_000


def check_run(file: str, config: Config) -> Findings:
    """Look at the data of a run.

    Raises:
        AnabranchError: as starting the run does.
    """
    plan = runner.build(config)
    stream = plan.stream
    findings = Findings(file, f"a run of {len(stream.widths)} clients", config.stream.name)
    width = sum(stream.widths)
    most = MOST_OF_AN_ENDLESS_STREAM if stream.endless else MOST
    most = min(most, max(SAMPLES, MOST_CELLS // width), config.rounds or most)
    counts: Counter[int] = Counter()
    low, high = np.full(width, np.inf), np.full(width, -np.inf)
    for block in stream.blocks():
        x, y = block.x[: most - findings.rows], block.y[: most - findings.rows]
        counts.update(y.tolist())
        if len(x):
            low, high = np.minimum(low, x.min(axis=0)), np.maximum(high, x.max(axis=0))
        for row in x[: SAMPLES - len(findings.samples)]:
            findings.samples.append(Sample(f"row {len(findings.samples) + 1}", "", row.tolist()))
        findings.rows += len(x)
        if findings.rows >= most:
            findings.complete = False
            break
    findings.events = findings.rows
    names = stream.class_names if isinstance(stream, Table) else ()
    findings.classes = {names[each] if names else str(each): counts[each] for each in sorted(counts)}
    findings.features = [f"{m}.{i + 1}" for m, n in enumerate(stream.widths, 1) for i in range(n)]
    same = int((low == high).sum())
    if findings.rows and same:
        findings.notes.append(f"{same:,} of {width:,} features have the same value in all rows that were looked at")
    if isinstance(stream, Table) and isinstance(config.stream, TableStream):
        findings.data = config.stream.path
        findings.features = [f"{m}: {feature}" for m, _, rule in stream.uses for feature in rule.features]
        uses = {name: f"client {m}: {use_of(rule, 'the run ends')}" for m, name, rule in stream.uses}
        reader = open_table(Path(config.stream.path), form_of(config.stream))
        look_at_columns(findings, reader, uses | {stream.label: f"the label, {stream.classes} classes"})
    return findings
