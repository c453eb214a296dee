"""`anabranch check` shows what a party or a run would read, refuses what a start would, and changes nothing."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from anabranch.cli import app
from anabranch.storage.event_ids import write_key

CUSTOMERS = ["x", "y", "z"]
AT = 1_767_225_600  # 2026-01-01
BANK = """
[features]
source = "csv"
path = "bank.csv"
entity_key = "entity.key"
entity = "who"
time = "at"
{}
columns = ["age", {{name = "income", missing = "mean"}}, {{name = "sector", kind = "category", values = ["farms"]}}]
"""
SHOP = """
[features]
source = "sql"
url = "sqlite:///shop.db"
table = "customers"
entity_key = "entity.key"
entity = "who"
time = "at"
id = "id"
lag = 3600.0
columns = ["orders"]
"""
LABELS = """
[labels]
source = "csv"
path = "labels.csv"
entity_key = "entity.key"
entity = "who"
time = "known"
event_time = "at"
label = "unpaid"
late = "fresh"
speed = 2.0
"""
CLIENT = 'clients = 2\n{}\n[model]\nname = "mlp"\nembedding = 2\n[activation]\nname = "OnEvent"\n'
SERVER = '{}\n[model]\nname = "mlp"\nclasses = 2\n' + "".join(
    f'[[clients]]\nname = "{name}"\nembedding = 2\n' for name in ("bank", "shop")
)


def rows(n: int) -> list[tuple[str, int]]:
    return [(CUSTOMERS[i % 3], AT + 3600 * i) for i in range(n)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two clients and a server; each label is of an event of the bank's, and the shop knows customers x and y."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    write_key(tmp_path / "entity.key")
    for i, name in enumerate(("server", "bank", "shop")):
        text = f'federation = "f"\nparty = "{name}"\nindex = {i}\nurl = "nats://127.0.0.1:1"\n'
        (tmp_path / f"{name}.connection.toml").write_text(text + ('clients = ["bank", "shop"]\n' if not i else ""))
        body = (SERVER.format(LABELS), CLIENT.format(BANK.format("")), CLIENT.format(SHOP))[i]
        (tmp_path / f"{name}.toml").write_text(f'connection = "{name}.connection.toml"\nfolder = "state"\n{body}')
    bank(tmp_path, 30)
    lines = "".join(f"{who},{at},{at + 86_400},{i % 2}\n" for i, (who, at) in enumerate(rows(30)[:24]))
    (tmp_path / "labels.csv").write_text("who,at,known,unpaid\n" + lines)
    database = sqlite3.connect(tmp_path / "shop.db")
    database.execute("CREATE TABLE customers (id INTEGER PRIMARY KEY, who TEXT, at REAL, orders INTEGER)")
    database.execute(f"INSERT INTO customers VALUES (1, 'x', {AT - 5.123456789}, 7), (2, 'y', {AT - 5}, 8)")
    database.commit()
    database.close()
    return tmp_path


def bank(folder: Path, n: int, more: str = "") -> None:
    lines = [
        f"{who},{at},{20 + i},{'NA' if i % 2 else 1.5},{'farms' if i % 3 else '[b]'},,\n"
        for i, (who, at) in enumerate(rows(n))
    ]
    (folder / "bank.csv").write_text("who,at,age,income,sector,nothing,also\n" + "".join(lines) + more)


def checked(*files: str) -> Result:
    return CliRunner().invoke(app, ["check", *files])


def found(*files: str) -> dict[str, Any]:
    result = checked(*files, "--json")
    assert result.stdout, result.output
    told: dict[str, Any] = json.loads(result.stdout)
    assert result.exit_code == (2 if told["errors"] else 0)
    return told


def test_the_findings_are_those_of_the_data(folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    told = found("server.toml", "bank.toml", "shop.toml")
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    server, client, shop = told["files"]
    assert (server["rows"], server["entities"], server["classes"]) == (24, 3, {"0": 12, "1": 12})
    assert server["label_delay"] == [86_400, 86_400]
    assert (client["party"], client["rows"], client["events"], client["entities"]) == ("client 1, bank", 30, 30, 3)
    assert (client["first"], client["last"]) == ("2026-01-01 00:00:00 UTC", "2026-01-02 05:00:00 UTC")
    columns = {each["name"]: each for each in client["columns"]}
    assert (columns["age"]["kind"], columns["age"]["low"], columns["age"]["high"]) == ("whole number", "20", "49")
    assert (columns["income"]["missing"], columns["nothing"]["missing"], columns["also"]["use"]) == (
        0.5,
        1.0,
        "not used",
    )
    assert columns["sector"]["values"] == {"farms": 20, "[b]": 10}
    assert columns["income"]["use"] == "a number; if missing, the mean so far"
    assert [columns[name]["use"] for name in ("who", "at")] == ["the entity", "the time"]
    assert client["features"] == ["age", "income", "sector=farms", "sector=?"]
    assert len(client["samples"]) == 20
    assert client["samples"][1] == {
        "time": "2026-01-01 01:00:00 UTC", "entity": "y", "features": [21, 1.5, 1, 0], "problem": "",
    }  # fmt: skip
    assert [(each["name"], each["kind"]) for each in shop["columns"]] == [("orders", "whole number")]
    keys = ("labels", "same_event", "looked_up", "found", "entities")
    shared = [[each[key] for key in keys] for each in told["shared"]]
    assert shared == [[24, 24, 24, 24, 3], [24, 0, 24, 16, 2]]


def test_a_person_reads_it_at_eighty_columns(folder: Path) -> None:
    (folder / "wide.csv").write_text(
        "who,at," + ",".join(f"c{i}" for i in range(2000)) + f"\nx,{AT}" + ",1.23456789" * 2000 + "\n"
    )
    names = ", ".join(f'"c{i}"' for i in range(2000))
    text = (folder / "bank.toml").read_text()
    (folder / "wide.toml").write_text(
        text.replace("bank.csv", "wide.csv").replace(
            text[text.index('["age"') : text.index("\n[model]")], f"[{names}]\n"
        )
    )
    result = checked("bank.toml", "wide.toml")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) < 250
    assert "2026-01-01 00:00:00 x 20 1.5 0 1" in " ".join(result.stdout.split())
    assert "and 1,972 more" in result.stdout
    assert "1,996 more" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("bank.toml", '"age"', '"aeg"'),
        ("bank.toml", 'time = "at"', 'time = "at"\ntime_unit = "ms"'),
        ("bank.toml", "clients = 2", "clients = 0"),
        ("server.toml", 'name = "shop"', 'name = "mop"'),
        ("server.toml", "speed = 2.0", 'origin = ["2026-01-01", "now"]'),
        ("server.toml", "speed = 2.0", 'origin = ["2026-01-01", "2026-01-01"]'),
        ("bank.csv", "farms,,\n", "farms,,,,\n"),
        ("bank.csv", "x,1767225600", "x,"),
        ("labels.csv", ",0\n", ",7\n"),
        ("shop.toml", 'table = "customers"', 'table = "clients"'),
        ("shop.connection.toml", "index = 2", "index = 0"),
    ],
)
def test_a_start_would_complain_in_the_same_words(folder: Path, file: str, old: str, new: str) -> None:
    text = (folder / file).read_text()
    changed = text.replace(old, new, 1)
    (folder / file).write_text(changed)
    party = {"labels": "server"}.get(file.partition(".")[0], file.partition(".")[0])
    result = checked(f"{party}.toml")
    started = CliRunner().invoke(app, ["server" if party == "server" else "client", f"{party}.toml"])
    assert text != changed
    assert (result.exit_code, started.exit_code) == (2, 2)
    assert result.stderr == started.stderr != ""


def test_what_is_right_is_shown_beside_what_is_wrong(folder: Path) -> None:
    told = found("server.toml", "bank.toml", "nothing.toml")
    assert (len(told["files"]), len(told["shared"]), len(told["errors"])) == (2, 1, 1)


def test_parties_of_other_keys_or_grains_share_nothing(folder: Path) -> None:
    (folder / "bank.toml").write_text(
        (folder / "bank.toml").read_text().replace('time = "at"', 'time = "at"\ngrain = 60.0')
    )
    write_key(folder / "other.key")
    (folder / "shop.toml").write_text((folder / "shop.toml").read_text().replace("entity.key", "other.key"))
    shared = found("server.toml", "bank.toml", "shop.toml")["shared"]
    assert [(each["found"], each["problem"]) for each in shared] == [
        (0, "they have another grain: all parties need the same"),
        (0, "they have another entity key: all parties need the same"),
    ]


def test_one_row_is_enough_and_none_is_refused(folder: Path) -> None:
    bank(folder, 1)
    assert len(found("bank.toml")["files"][0]["samples"]) == 1
    bank(folder, 0)
    assert found("bank.toml")["errors"] == [f"{folder}/bank.csv: the file has no rows"]


def test_sensors_have_no_entities_and_labels_may_be_lacking(folder: Path) -> None:
    for name in ("server", "bank"):
        text = (
            (folder / f"{name}.toml")
            .read_text()
            .replace('entity = "who"\n', "")
            .replace('time = "at"', 'time = "at"\ngrain = 3600.0')
        )
        (folder / f"{name}.toml").write_text(text)
    (folder / "labels.csv").write_text((folder / "labels.csv").read_text().replace(",1\n", ",NA\n"))
    told = found("server.toml", "bank.toml")
    assert told["files"][0]["classes"] == {"0": 12, "without a label": 12}
    assert [each["entities"] for each in (*told["files"], *told["shared"])] == [None, None, None]
    assert told["shared"][0]["same_event"] == 24


def test_plain_tables_share_names_of_events(folder: Path) -> None:
    for name, which, columns in (("server", "labels", 'label = "unpaid"'), ("bank", "features", 'columns = ["age"]')):
        text = f'[{which}]\npath = "{name}.csv"\nevent = "event"\n{columns}\n'
        body = SERVER.format(text) if name == "server" else CLIENT.format(text).replace("OnEvent", "Full")
        (folder / f"{name}.toml").write_text(f'connection = "{name}.connection.toml"\nfolder = "state"\n{body}')
    (folder / "server.csv").write_text("event,unpaid\na,0\nb,1\n")
    (folder / "bank.csv").write_text("event,age\nb,7\nc,8\nd,9\n")
    told = found("server.toml", "bank.toml")
    assert told["files"][0]["classes"] == {"0": 1, "1": 1}
    assert told["files"][1]["samples"][0] == {"time": "", "entity": "b", "features": [7], "problem": ""}
    assert (told["shared"][0]["same_event"], told["shared"][0]["found"]) == (1, 1)


def test_a_run_has_classes_columns_and_rows(folder: Path) -> None:
    lines = "".join(f"{i},{i % 5},{'yes' if i % 3 else 'no'}\n" for i in range(60))
    (folder / "t.csv").write_text("a,b,y\n" + lines)
    (folder / "run.toml").write_text(
        '[model]\nname = "mlp"\n[stream]\nname = "table"\npath = "t.csv"\nlabel = "y"\nsplit = [["a"], ["b"]]\n'
    )
    (only,) = found("run.toml")["files"]
    assert (only["party"], only["rows"], only["classes"]) == ("a run of 2 clients", 60, {"no": 20, "yes": 40})
    assert only["features"] == ["1: a", "2: b"]
    assert [each["use"].partition(",")[0] for each in only["columns"]] == [
        "client 1: a number",
        "client 2: a number",
        "the label",
    ]
    assert len(only["samples"]) == 20
    (folder / "party.toml").write_text('connection = "bank.connection.toml"\nfolder = "state"\nrun = "run.toml"\n')
    assert found("party.toml")["files"][0]["rows"] == 60
    assert checked("run.toml").exit_code == 0
