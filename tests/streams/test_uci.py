from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from anabranch.errors import ConfigError, DataError
from anabranch.streams import higgs, susy

MAKERS = {"SUSY": (susy, 18, "279/susy"), "HIGGS": (higgs, 28, "280/higgs")}


def write(folder: Path, name: str, features: int, header: bool = False) -> np.ndarray:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    x, y = rng.normal(2, 3, (50, features)), rng.integers(0, 2, 50)
    lines = [",".join([f"{label:.18e}", *(f"{v:.18e}" for v in row)]) for label, row in zip(y, x, strict=True)]
    if header:
        lines.insert(0, ",".join(["label", *(f"f{i}" for i in range(features))]))
    raw = ("\n".join(lines) + "\n").encode()
    (folder / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return np.column_stack([y, x])


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("gz", ["", ".gz"])
@pytest.mark.parametrize("header", [True, False])
def test_the_file_of_the_uci(tmp_path: Path, name: str, gz: str, header: bool) -> None:
    make, features, _ = MAKERS[name]
    data = write(tmp_path, f"{name}.csv{gz}", features, header)
    stream = make(tmp_path / f"{name}.csv{gz}")
    assert (stream.widths, stream.classes) == ((features // 2,) * 2, 2)
    blocks = list(stream.blocks())
    x = np.concatenate([b.x for b in blocks])
    assert np.concatenate([b.y for b in blocks]).tolist() == data[:, 0].tolist()
    np.testing.assert_allclose(x[-1], ((data - data.mean(axis=0)) / data.std(axis=0))[-1, 1:], rtol=1e-9)
    assert stream.describe()["file"] == f"{name}.csv{gz}"


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("gz", ["", ".gz"])
@pytest.mark.parametrize("sub", [True, False])
def test_where_it_is_looked_for(tmp_path: Path, monkeypatch, name: str, gz: str, sub: bool) -> None:
    make, features, _ = MAKERS[name]
    write(tmp_path / name.lower() if sub else tmp_path, f"{name}.csv{gz}", features)
    assert make(data_dir=tmp_path).widths == (features // 2,) * 2
    monkeypatch.setenv("ANABRANCH_DATA", str(tmp_path))
    assert make().widths == (features // 2,) * 2
    assert make(split=3).widths == {"SUSY": (6, 6, 6), "HIGGS": (10, 9, 9)}[name]


@pytest.mark.parametrize("name", MAKERS)
def test_not_found(tmp_path: Path, monkeypatch, name: str) -> None:
    make, _, page = MAKERS[name]
    with pytest.raises(DataError, match=f"no {name}.csv: neither path nor data_dir nor ANABRANCH_DATA.*{page}"):
        make()
    with pytest.raises(DataError, match=rf"{tmp_path / name.lower()}, where there are: no files. .*{page}"):
        make(data_dir=tmp_path)
    (tmp_path / name.lower()).mkdir()
    (tmp_path / name.lower() / "sample.csv.gz").touch()
    (tmp_path / "notes.txt").touch()
    monkeypatch.setenv("ANABRANCH_DATA", str(tmp_path))
    with pytest.raises(DataError, match=rf"there are: notes.txt, {name.lower()}/sample.csv.gz"):
        make()
    with pytest.raises(DataError, match="gone does not exist"):
        make(data_dir=tmp_path / "gone")
    with pytest.raises(DataError, match="gone: no such file"):
        make(tmp_path / "gone")


def test_another_table_is_not_taken_for_it(tmp_path: Path) -> None:
    write(tmp_path, "HIGGS.csv", 18)
    with pytest.raises(DataError, match="19 columns, but HIGGS has 29"):
        higgs(data_dir=tmp_path)
    with pytest.raises(ConfigError, match="adds up to 17"):
        susy(tmp_path / "HIGGS.csv", split=[9, 8])


def test_the_real_samples(real) -> None:
    for make, name, rows in (
        (susy, "susy/utokyo_SUSY_1K.csv.gz", 1000),
        (susy, "susy/susy_18f_all_10998.csv.gz", 10_998),
        (higgs, "higgs/higgs_28f_all.csv.gz", 18_477),
    ):
        stream = make(real(name), shuffle_buffer=5000)
        x = np.concatenate([b.x for b in stream.blocks()])
        assert x.shape == (rows, sum(stream.widths))
        np.testing.assert_allclose(x[rows // 2 :].std(), 1, atol=0.1)
