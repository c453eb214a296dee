"""SUSY and HIGGS, the paper's two tables from the UCI repository."""

from __future__ import annotations

import os
from pathlib import Path

from anabranch.errors import DataError
from anabranch.storage.files import reading
from anabranch.streams.digits import ENV
from anabranch.streams.tables import Split, Standardise, Table, table
from anabranch.tables import open_table


def susy(
    path: str | Path | None = None,
    data_dir: str | Path | None = None,
    *,
    split: Split = (9, 9),
    standardise: Standardise = "online",
    shuffle_buffer: int = 0,
    seed: int = 0,
) -> Table:
    """SUSY (UCI 279): 18 features of a particle collision; class 1 is supersymmetric. Two clients hold half each.

    The file is UCI's ``SUSY.csv``, plain or gzipped: the label first, no header (one is recognised), 5,000,000 rows.

    Args:
        path: the file. By default ``SUSY.csv`` or ``SUSY.csv.gz`` is looked for in ``data_dir``, or in the folder that
            the environment variable ``ANABRANCH_DATA`` names, and there in the subfolder ``susy``.
        data_dir: where to look, if there is no ``path``.
        split, standardise, shuffle_buffer, seed: as in :func:`~anabranch.streams.tables.table`.

    Raises:
        DataError: no file was found, or it has not 18 features, and whatever ``table`` raises.

    Source: Baldi, Sadowski and Whiteson (2014), https://archive.ics.uci.edu/dataset/279/susy; Wang et al. (ICLR 2025),
    appendix.
    """
    return _physics("SUSY", 18, "279/susy", path, data_dir, split, standardise, shuffle_buffer, seed)


def higgs(
    path: str | Path | None = None,
    data_dir: str | Path | None = None,
    *,
    split: Split = (14, 14),
    standardise: Standardise = "online",
    shuffle_buffer: int = 0,
    seed: int = 0,
) -> Table:
    """HIGGS (UCI 280): 28 features of a particle collision; class 1 is a Higgs boson. Two clients hold half each.

    The file is UCI's ``HIGGS.csv``, plain or gzipped, 11,000,000 rows; everything else is as in :func:`susy`.

    Source: Baldi, Sadowski and Whiteson (2014), https://archive.ics.uci.edu/dataset/280/higgs.
    """
    return _physics("HIGGS", 28, "280/higgs", path, data_dir, split, standardise, shuffle_buffer, seed)


def _physics(
    name: str,
    features: int,
    page: str,
    path: str | Path | None,
    data_dir: str | Path | None,
    split: Split,
    standardise: Standardise,
    shuffle_buffer: int,
    seed: int,
) -> Table:
    file = _find(name, page, data_dir) if path is None else Path(path)
    columns = len(open_table(file).names)
    if columns != features + 1:
        raise DataError(f"{file}: {columns} columns, but {name} has {features + 1}, the label and {features} features")
    return table(
        file,
        split=split,
        label="first",
        standardise=standardise,
        classes=2,
        shuffle_buffer=shuffle_buffer,
        seed=seed,
    )


def _find(name: str, page: str, data_dir: str | Path | None) -> Path:
    """Return the file ``name``.csv[.gz] in the data folder, or an error that says where it was looked for."""
    where = data_dir or os.environ.get(ENV)
    how = f"It is offered at https://archive.ics.uci.edu/dataset/{page}; name the file by path, or its folder by "
    how += f"data_dir or {ENV}."
    if not where:
        raise DataError(f"no {name}.csv: neither path nor data_dir nor {ENV} says where it is. {how}")
    folders = (Path(where), Path(where) / name.lower())
    with reading(folders[0], DataError):
        for folder in folders:
            for file in (folder / f"{name}.csv", folder / f"{name}.csv.gz"):
                if file.is_file():
                    return file
        if not folders[0].is_dir():
            raise DataError(f"no {name}.csv: the folder {where} does not exist. {how}")
        there = [str(f.relative_to(where)) for folder in folders if folder.is_dir() for f in sorted(folder.iterdir())]
        files = [f for f in there if (Path(where) / f).is_file()]
    found = ", ".join(files) if files else "no files"
    raise DataError(f"no {name}.csv or {name}.csv.gz in {folders[0]} or {folders[1]}, where there are: {found}. {how}")
