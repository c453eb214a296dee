"""A file is read by what is in it, and refused with a word of what that is."""

from __future__ import annotations

import bz2
import gzip
import lzma
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.errors import ConfigError, DataError
from anabranch.tables import TableForm, open_table
from anabranch.tables.heading import named_by

TEXT = "größe,b,y\n1,2,0\n3,4,1\n"
ZSTD = pa.compress(TEXT.encode(), codec="zstd", asbytes=True)


def written(folder: Path, name: str, raw: bytes) -> Path:
    path = folder / name
    path.write_bytes(raw)
    return path


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("t.csv", TEXT.encode()),
        ("bom.csv", TEXT.encode("utf-8-sig")),
        ("t.txt", TEXT.encode("utf-16")),
        ("big.csv", b"\xfe\xff" + TEXT.encode("utf-16-be")),
        ("wide.csv", TEXT.encode("utf-32")),
        ("gzipped.csv", gzip.compress(TEXT.encode())),
        ("t.CSV.GZ", gzip.compress(TEXT.encode("utf-16"))),
        ("unpacked.csv.gz", TEXT.encode()),
        ("t.csv.bz2", bz2.compress(TEXT.encode())),
    ],
)
def test_what_can_be_read_is(tmp_path: Path, name: str, raw: bytes) -> None:
    reader = open_table(written(tmp_path, name, raw))
    assert reader.names == ["größe", "b", "y"]
    assert [column.to_pylist() for column in reader.whole([0, 2])] == [["1", "3"], ["0", "1"]]


def test_parquet_is_known_by_its_content(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "t.parquet")
    raw = (tmp_path / "t.parquet").read_bytes()
    for name, content in [("t.csv", raw), ("t.bin", gzip.compress(raw)), ("t.PQ", raw)]:
        assert open_table(written(tmp_path, name, content)).whole([0])[0].to_pylist() == [1, 2]


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (TEXT.encode("latin-1"), "the first line is not text in UTF-8: .* encoding = 'latin-1' or 'cp1252'"),
        (TEXT.encode("utf-16-le"), "no text in UTF-8: if it is text in UTF-16, give encoding = 'utf-16-le'"),
        (lzma.compress(TEXT.encode()), "it is compressed by xz, not CSV or Parquet"),
        (b"PK\x03\x04 and more", "a ZIP archive or an Excel workbook, not CSV"),
        (b"<!DOCTYPE html><p>404</p>", "it is a web page"),
        (b"\x1f\x8b and no gzip", "cannot be read"),
        (b"\n\n", "the file is empty"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, raw: bytes, said: str) -> None:
    with pytest.raises(DataError, match=said):
        open_table(written(tmp_path, "t.csv", raw))


def test_a_declared_encoding_is_used(tmp_path: Path) -> None:
    path = written(tmp_path, "t.csv", TEXT.encode("latin-1"))
    assert open_table(path, TableForm(encoding="latin-1")).names[0] == "größe"
    assert open_table(written(tmp_path, "u.csv", TEXT.encode("utf-16-be")), TableForm(encoding="utf-16-be")).find("b")
    marked = written(tmp_path, "m.csv", TEXT.encode("utf-8-sig"))
    assert open_table(marked, TableForm(encoding="cp1252")).names[0] == "größe"  # the file itself says so
    with pytest.raises(DataError, match="the first line is not text in ASCII, which encoding says"):
        open_table(path, TableForm(encoding="ascii"))


@pytest.mark.parametrize("encoding", ["auto", "utf-16-le"])
def test_the_row_that_cannot_be_decoded_is_named_and_those_before_are_given(tmp_path: Path, encoding: str) -> None:
    known = "utf-8" if encoding == "auto" else encoding
    bad = b"\xff" if encoding == "auto" else b"\x00\xd8\x41\x00"  # half a surrogate
    raw = "a,b\n1,2\n\n3,4\n5,".encode(known) + bad + "\n7,8\n".encode(known)
    reader = open_table(written(tmp_path, "t.csv", raw), TableForm(encoding=encoding))
    found = []
    with pytest.raises(DataError, match=r"row 3 is not text in UTF-"):  # noqa: PT012
        for (piece,) in reader.cells([0]):
            found += piece.to_pylist()
    assert found == ["1", "3"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"header": "yes"}, "header is 'yes'"),
        ({"header": 1}, "header is 1"),
        ({"encoding": "utf-9"}, "encoding is 'utf-9'"),
        ({"encoding": "base64"}, "encoding is 'base64'"),
        ({"separator": ""}, "separator is ''"),
        ({"separator": '"'}, "separator is '\"'"),
        ({"missing_values": "NA"}, "missing_values is 'NA'"),
        ({"ignore": [1]}, r"ignore is \[1\]"),
    ],
)
def test_settings_that_are_none(given, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        TableForm(**given)


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        ("a,b,y", "1,2,0", True),
        ("a,a,y", "1,2,0", True),
        (",a,y", "1,2,0", True),
        ("color,size,class", "red,big,yes", True),
        ("0.5,1,0", "1,2,0", False),
        ("3,3,1", "3,3,1", False),
        ("-1,2.5,0", "1,2,0", False),
        ("0.1,0.2,0.3", "1,2,0", False),
        ("0.5,,0", "1,2,0", False),
        ("0.5,NA,0", "1,2,0", False),
        ("0,1,2", "0.5,0.7,1", None),
        ("0.0,1.0,2.0", "0.5,0.7,1", None),
        ("-1,0,1", "0.5,0.7,1", None),
        (",0,1", "0,0.7,1", None),
        ("5.1,3.5,setosa", "4.9,3.0,setosa", None),
        ("name,2019,2020", "x,1.5,2.5", None),
        ("p,x,x", "e,x,s", None),
        (",,", "1,2,3", None),
    ],
)
def test_a_first_line_that_could_be_both_is_a_question(tmp_path: Path, first: str, second: str, named) -> None:
    assert named_by(first.split(","), [second.split(",")]) is named
    path = written(tmp_path, "t.csv", f"{first}\n{second}\n".encode())
    if named is None:
        with pytest.raises(ConfigError, match=r"header is 'auto', but .* header = true .* or header = false"):
            open_table(path)
    for header in (True, False):
        reader = open_table(path, TableForm(header=header))
        assert reader.names == (first.split(",") if header else ["1", "2", "3"])
        assert reader.whole([0])[0].to_pylist()[-1] == second.split(",")[0]


def test_wavelengths_could_be_a_heading() -> None:
    assert named_by(["400.5", "401.0", "401.5", "402.0", "402.5"], []) is None
    assert named_by(["9.5", "7", "6.5", "2.1", "0.5"], []) is None
    assert named_by(["9.5", "7", "6.5", "2.1", "2.5"], []) is False


@given(st.lists(st.floats(-1e6, 1e6), max_size=3))
def test_numbers_with_decimals_are_a_row(row: list[float]) -> None:
    assert named_by([*map(repr, [0.5, *row])], []) is False


def test_an_index_of_pandas_does_not_count(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": [1.5, 2.5, 3.5], "y": [0, 1, 0]})
    frame[frame.a > 2].to_parquet(tmp_path / "t.parquet")
    reader = open_table(tmp_path / "t.parquet")
    assert [reader.names[i] for i in reader.counted()] == ["a", "y"]
    frame.set_index("a").to_parquet(tmp_path / "named.parquet")
    reader = open_table(tmp_path / "named.parquet")
    assert [reader.names[i] for i in reader.counted()] == ["y"]
    assert reader.whole([reader.find("a")])[0].to_pylist() == [1.5, 2.5, 3.5]
    frame[frame.a > 2].to_csv(tmp_path / "t.csv")
    reader = open_table(tmp_path / "t.csv")
    with pytest.raises(ConfigError, match=r"column 1 is named '', as row numbers are: .*ignore = \[''\]"):
        reader.check_named(reader.counted())
    reader = open_table(tmp_path / "t.csv", TableForm(ignore=("",)))
    reader.check_named(reader.counted())
    assert reader.counted() == [1, 2]


@pytest.mark.parametrize("name", ["Unnamed: 0", "__index_level_0__", ""])
def test_row_numbers_are_never_taken_by_their_place(tmp_path: Path, name: str) -> None:
    reader = open_table(written(tmp_path, "t.csv", f"{name},a,y\n0,1,0\n".encode()))
    with pytest.raises(ConfigError, match="as row numbers are"):
        reader.check_named(reader.counted())
    with pytest.raises(ConfigError, match="no column 'b'"):
        open_table(reader.path, TableForm(ignore=("b",))).counted()


def test_categories_and_large_texts_are_texts(tmp_path: Path) -> None:
    table = pa.table({"c": pa.array(["x", None]).dictionary_encode(), "l": pa.array(["a", "b"], pa.large_string())})
    pq.write_table(table, tmp_path / "t.parquet")
    assert [each.type for each in open_table(tmp_path / "t.parquet").whole([0, 1])] == [pa.string()] * 2


SECRET = "Probe51234"


@pytest.mark.parametrize(
    "raw",
    [
        f"{SECRET},2024-03-31,1,2\n".encode(),
        f"customer,at,a,b\n{SECRET},1\n".encode(),
        f"customer,at,a,b\nx,1,2,3\n{SECRET}\xf6,1\n".encode("latin-1"),
        f'customer,at,a,b\nx,1,2,"{SECRET}\n'.encode(),
        f"customer,at,a,b\nx,1,{SECRET},3\n".encode(),
        f"customer,at,a,b\nx,1,2,{'9' * 400}{SECRET}\n".encode(),
        f"customer,at,a,b\n123{SECRET}.0,,2,3\n".encode(),
        b"customer,at,a,b\n12345123451234512345.0,1,2,3\n",
        b"customer,at,a,b\nNA,1,2,3\n",
    ],
)
def test_a_partys_errors_have_nothing_of_a_row(tmp_path: Path, raw: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    from anabranch.tables.columns import Column
    from anabranch.tables.rows import read_rows

    path = written(tmp_path, "t.csv", raw)
    with pytest.raises((DataError, ConfigError)) as error:  # noqa: PT012
        reader = open_table(path, TableForm(header=True), shown=False)
        places = reader.find_all(["customer", "at", "a", "b"])
        reader.ids(places[0])
        for _ in read_rows(reader, places[1:], [Column("at"), Column("a"), Column("b")]):
            pass
    said = str(error.value) + "".join(capfd.readouterr())
    for secret in (SECRET, "12345123", "99999", "2024", "'NA'"):
        assert secret not in said


def test_a_column_that_is_not_there_is_named_with_the_others_if_the_heading_is_one(tmp_path: Path) -> None:
    path = written(tmp_path, "t.csv", b"who,amount\nx,1\n")
    with pytest.raises(ConfigError, match=r"no column 'amuont'. Did you mean 'amount'\? Its columns: who, amount"):
        open_table(path, shown=False).find("amuont", "who")
    with pytest.raises(ConfigError, match="no column 'amuont' among its 2 columns: is its first line a heading"):
        open_table(path, shown=False).find("amuont")
    with pytest.raises(ConfigError, match="Its columns: who, amount"):
        open_table(path).find("amuont")


def test_a_cell_that_is_shown_is_short_and_harmless(tmp_path: Path) -> None:
    reader = open_table(written(tmp_path, "t.csv", b"a,b\n1,2\n"))
    assert reader.quoted("x" * 100) == "'" + "x" * 40 + "…'"
    assert reader.quoted("\x1b[2J") == r"'\x1b[2J'"
    assert reader.quoted("1e5") == "1e5"
