"""A party's own file: what it may say, what is refused, and that it does what a run of the joined table does."""

from __future__ import annotations

import asyncio
import csv
import itertools
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import anabranch as ab
from anabranch.broker.credentials import Credentials
from anabranch.config import build as runner
from anabranch.config import party as partyfile
from anabranch.config.load import load
from anabranch.config.party import ClientFile, PartyFile, ServerFile
from anabranch.federation import tables
from anabranch.federation.replay import ReplayFeatures, ReplaySamples, name_of
from anabranch.parties import build_party as own
from anabranch.protocol.memory import InMemory
from anabranch.protocol.messages import Welcome
from anabranch.simulation.chunks import Chunk
from anabranch.sources.features import Features, schema_digest
from anabranch.tables import Column, TableForm
from anabranch.tables.columns import Classes

ROUNDS = 120
COLUMNS = {"bank": ["amount", "age"], "shop": ["items"]}
MEAN, STD = {"bank": [0.5, -1.0], "shop": [0.25]}, {"bank": [2.0, 0.3], "shop": [1.7]}
RNG = np.random.default_rng(3)
X = RNG.normal(size=(ROUNDS, 3))
Y = (X[:, 0] * X[:, 2] > 0).astype(int)
NAMES = [f"order {i}" for i in range(ROUNDS - 1)] + ["a name that is longer than the 32 bytes of the wire"]

SERVER = """
connection = "connection.toml"
folder = "state"
learning_rate = 0.1
{more}
[labels]
path = "labels.csv"
event = "order"
label = "fraud"
[model]
{model}
classes = 2
[update]
{update}
[[clients]]
name = "bank"
embedding = {embedding}
[[clients]]
name = "shop"
embedding = {embedding}
{activation}
"""
CLIENT = """
connection = "connection.toml"
folder = "state"
learning_rate = 0.1
clients = 2
seed = 5
[features]
path = "{name}.csv"
event = "id"
columns = {columns}
mean = {mean}
std = {std}
[model]
{model}
[update]
{update}
[activation]
{activation}
"""
RUN = """
learning_rate = 0.1
seed = 5
[stream]
name = "table"
path = "joined.csv"
label = "fraud"
split = [["amount", "age"], ["items"]]
standardise = {{mean = [0.5, -1.0, 0.25], std = [2.0, 0.3, 1.7]}}
[model]
{model}
[update]
{update}
[activation]
{activation}
"""


def write(path: Path, header: list[str], rows: list[list[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The parties' files of data, each in an order of its own, and the joined table."""
    parts = {"bank": X[:, :2], "shop": X[:, 2:]}
    for name, part in parts.items():
        rows = [[f" {NAMES[i]} ", *part[i], "other"] for i in RNG.permutation(ROUNDS)]
        write(tmp_path / f"{name}.csv", ["id", *COLUMNS[name], "unused"], rows)
    write(tmp_path / "labels.csv", ["fraud", "order"], [[Y[i], NAMES[i]] for i in range(ROUNDS)])
    write(tmp_path / "joined.csv", ["amount", "age", "items", "fraud"], [[*X[i], Y[i]] for i in range(ROUNDS)])
    return tmp_path


def credentials(index: int) -> Credentials:
    names = ("bank", "shop")
    return Credentials(
        ("nats://127.0.0.1:1",), "demo", ("server", *names)[index], index, clients=() if index else names
    )


def server_text(**changes: str) -> str:
    values = {
        "more": "seed = 5", "model": 'name = "mlp"\nhidden = [4]', "update": 'name = "DLR"', "embedding": "3",
        "activation": "",
    }  # fmt: skip
    return SERVER.format(**(values | changes))


def client_text(name: str, **changes: str) -> str:
    values = {"model": 'name = "mlp"\nhidden = [5]\nembedding = 3', "update": 'name = "DLR"',
              "activation": 'name = "Full"', "name": name, "columns": str(COLUMNS[name]), "mean": str(MEAN[name]),
              "std": str(STD[name])}  # fmt: skip
    return CLIENT.format(**(values | changes))


def check(folder: Path, text: str) -> partyfile.AnyFile:
    return partyfile.check(tomllib.loads(text), folder / "party.toml")


def parties(folder: Path, server: str, *clients: str) -> tuple[Any, list[Any]]:
    held = check(folder, server)
    assert isinstance(held, ServerFile)
    others = [check(folder, text) for text in clients]
    made = []
    for m, each in enumerate(others, 1):
        assert isinstance(each, ClientFile)
        made.append(own.client_party(each, credentials(m), folder / f"state {m}"))
    return own.server_party(held, credentials(0), folder / "state 0"), made


def play(server: Any, clients: list[Any]) -> InMemory:
    """The whole federation in memory."""
    samples = server._samples
    taken = itertools.chain.from_iterable(iter(lambda: samples.take(1), []))
    choose = server._choose or (lambda first, n: None)
    memory = InMemory(
        server.conversation,
        [client.conversation for client in clients],
        taken,
        played=server.ledger.add,
        choose=choose,
    )
    memory.run()
    return memory


SETTINGS = {
    "mlp, DLR, random": ('name = "DLR"\nwindow = 4', 'name = "Random"\np = 0.6'),
    "mlp, OGD, fixed": ('name = "OGD"', 'name = "Fixed"\nk = 1'),
    "linear, SLR, event": ('name = "SLR"\nwindow = 3', 'name = "Event"\nthreshold = -0.1'),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_parties_of_their_own_files_give_the_bits_of_the_joined_run(setting: str, folder: Path) -> None:
    update, activation = SETTINGS[setting]
    if setting.startswith("mlp"):
        whole = 'name = "mlp"\nhidden = [5]\nembedding = 3\nserver = [4]'
        top, bottom, embedding = 'name = "mlp"\nhidden = [4]', 'name = "mlp"\nhidden = [5]\nembedding = 3', "3"
    else:
        whole = top = 'name = "linear"'
        bottom, embedding = 'name = "linear"\nclasses = 2', "2"
    (folder / "run.toml").write_text(RUN.format(model=whole, update=update, activation=activation))
    result = runner.run(load(folder / "run.toml"))
    fixed = "Fixed" in activation
    server, clients = parties(
        folder,
        server_text(
            model=top, update=update, embedding=embedding, activation=f"[activation]\n{activation}" if fixed else ""
        ),
        *(
            client_text(name, model=bottom, update=update, activation='name = "Full"' if fixed else activation)
            for name in COLUMNS
        ),
    )
    memory = play(server, clients)
    assert memory.stopped[0].reason == "the stream has ended"
    assert server.ledger.error_rate == result.error_rate
    np.testing.assert_array_equal(server.ledger.activations / ROUNDS, result.activation_rate)
    arrays = {name: array for party in (server, *clients) for name, array in own.own_arrays(party).items()}
    theirs = result.model.to_arrays()
    assert arrays.keys() == theirs.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)


def test_a_client_that_lacks_an_event_is_replaced_as_its_policy_says(folder: Path) -> None:
    lines = (folder / "shop.csv").read_text().splitlines(keepends=True)
    (folder / "shop.csv").write_text("".join(line for line in lines if "order 17 " not in line))
    text = server_text().replace('name = "shop"', 'name = "shop"\nmissing = "mean"')
    server, clients = parties(folder, text, *map(client_text, COLUMNS))
    memory = play(server, clients)
    assert server.ledger.missing[0]["answered"] == ROUNDS
    assert server.ledger.missing[1] == {"answered": ROUNDS - 1, "last": 0, "zero": 0, "mean": 1, "skip": 0}
    assert [note.text for note in memory.notes if note.what == "unknown"] == [
        "client 2: it has no features for this event"
    ]


def test_the_schema_that_the_server_demands(folder: Path) -> None:
    digests = [schema_digest(COLUMNS[name], MEAN[name], STD[name]) for name in COLUMNS]
    text = server_text().replace('name = "bank"', f'name = "bank"\nschema = "{digests[1]}"')
    server, (bank, shop) = parties(folder, text, *map(client_text, COLUMNS))
    assert [bank.conversation.schema, shop.conversation.schema] == digests
    (hello,) = bank.conversation.hello()
    refused = server.conversation.receive(1, hello.message, 0.0)[0].message
    assert refused.reason == f"feature schema is {digests[1]} here and {digests[0]} there"
    (hello,) = shop.conversation.hello()
    assert isinstance(server.conversation.receive(2, hello.message, 0.0)[0].message, Welcome)


def test_a_digest_knows_names_order_and_scaling(folder: Path) -> None:
    one = schema_digest(["a", "b"], [0.0, 1.0], [1.0, 1.0])
    assert len(one) == 16
    others = [
        schema_digest(["b", "a"], [0.0, 1.0], [1.0, 1.0]),
        schema_digest(["a", "b"], [0.0, 1.0], [1.0, 2.0]),
        schema_digest(["a", "b"], None, None),
        schema_digest(["ab"], None, None),
    ]
    assert len({one, *others}) == 5


WRONG_SERVER = [
    ("folder = ", "foldr = ", "there is no setting 'foldr'. Did you mean 'folder'?"),
    ('folder = "state"', "", "folder is missing; it must be a folder of this party's own"),
    ("learning_rate = 0.1", "learning_rate = -1", "learning_rate is -1, but it must be a number of 0 or more"),
    ('label = "fraud"', 'labl = "fraud"', "labels: there is no setting 'labl'. Did you mean 'label'?"),
    ('label = "fraud"', "", "labels.label is missing; it must be the name of the column with the labels"),
    ('name = "mlp"', 'name = "mpl"', """model.name is "mpl", but it must be "mlp" or "linear". Did you mean 'mlp'?"""),
    ('name = "mlp"\n', "", 'model.name is missing; it must be "mlp" or "linear"'),
    ("hidden = [4]", "hidden = [0]", "model.hidden[1] is 0, but it must be"),
    ("classes = 2", "clases = 2", "model: there is no setting 'clases'. Did you mean 'classes'?"),
    ('name = "DLR"', 'name = "DLR"\nwindow = 0', "update.window is 0, but it must be a whole number of rounds from 1"),
    ("embedding = 3", "embeding = 3", "clients[1]: there is no setting 'embeding'. Did you mean 'embedding'?"),
    ("embedding = 3", "embedding = 0", "clients[2].embedding is 0, but it must be a whole number of 1 or more"),
    ('name = "bank"', 'name = "bank"\nmissing = "men"', "clients[1].missing: missing is 'men', but it is wait, last N"),
    ("seed = 5", 'seed = "5"', 'seed is "5", but it must be a whole number from 0'),
    ("seed = 5", "metrics = 70000", "metrics is 70000, but it must be a port"),
    ("seed = 5", "deadline = 0", "deadline is 0, but it must be a number of seconds above 0"),
]
WRONG_CLIENT = [
    ("clients = 2", "", "clients is missing; it must be how many clients the federation has"),
    ("clients = 2", "clients = 70000", "clients is 70000, but it must be how many clients the federation has, at most"),
    ("columns = ['amount', 'age']", "columns = []", "features.columns is [], but it must be a list of columns' names"),
    ("mean = [0.5, -1.0]", "", "features.mean and features.std belong together: give both or none"),
    ("mean = [0.5, -1.0]", "mean = [0.5]", "features.mean has 1 number for 2 columns"),
    ("std = [2.0, 0.3]", "std = [2.0, 0.0]", "features.std has a number that is not above 0 and finite"),
    ("'age'", "'amount'", "features.columns names a column twice"),
    ('name = "Full"', 'name = "Fixed"\nk = 1', 'activation.name is "Fixed", but it must be "Full" or "Random" or'),
    ('name = "Full"', 'name = "Random"\np = 1.5', "activation.p is 1.5, but it must be a probability from 0 to 1"),
    ("[features]", "deadline = 3\n[features]", "there is no setting 'deadline'."),
]


@pytest.mark.parametrize(("old", "new", "message"), WRONG_SERVER + WRONG_CLIENT)
def test_what_is_wrong_is_named(old: str, new: str, message: str, folder: Path) -> None:
    text = server_text() if (old, new, message) in WRONG_SERVER else client_text("bank")
    assert old in text
    with pytest.raises(ab.ConfigError) as caught:
        check(folder, text.replace(old, new))
    assert message in str(caught.value)
    assert all(line.startswith(f"{folder / 'party.toml'}: ") for line in str(caught.value).splitlines())


def test_all_that_is_wrong_is_said_at_once(folder: Path) -> None:
    with pytest.raises(ab.ConfigError) as caught:
        check(folder, server_text(more="seed = -1\nrate = 3").replace("classes = 2", "classes = 1"))
    assert len(str(caught.value).splitlines()) == 3


def test_clients_that_are_all_wrong_are_not_said_to_be_none(folder: Path) -> None:
    text = server_text().replace("[[clients]]", '[[clients]]\nmissing = "wiat"')
    with pytest.raises(ab.ConfigError) as caught:
        check(folder, text)
    places = [line.removeprefix(f"{folder / 'party.toml'}: ").split()[0] for line in str(caught.value).splitlines()]
    assert places == ["clients[1].missing:", "clients[2].missing:"]


def test_a_file_that_is_of_no_party(folder: Path) -> None:
    with pytest.raises(ab.ConfigError, match=r"has neither \[labels\] nor \[features\]"):
        check(folder, 'connection = "c.toml"\nfolder = "s"')
    with pytest.raises(ab.ConfigError, match="has both labels and features"):
        check(folder, server_text() + "[features]\n")
    with pytest.raises(ab.ConfigError, match=r"nothing\.toml: cannot be read"):
        partyfile.load(folder / "nothing.toml")
    (folder / "broken.toml").write_text("a = ")
    with pytest.raises(ab.ConfigError, match=r"broken\.toml: is not TOML"):
        partyfile.load(folder / "broken.toml")


def test_paths_are_relative_to_the_file_and_text_is_read_back(folder: Path) -> None:
    (folder / "party.toml").write_text(server_text(activation='[activation]\nname = "Fixed"\nk = 1'))
    party = partyfile.load(folder / "party.toml")
    assert isinstance(party, ServerFile)
    assert party.labels.path == str(folder / "labels.csv")
    assert party.folder == str(folder / "state")
    assert check(Path("/"), partyfile.text(party)) == party
    replay = check(folder, 'connection = "c"\nfolder = "s"\nrun = "run.toml"\nmissing = ["wait", "last 3"]')
    assert isinstance(replay, PartyFile)
    assert [str(each) for each in replay.pace.missing] == ["wait", "last 3"]
    assert check(Path("/"), partyfile.text(replay)) == replay


def test_sections_that_do_not_fit_the_connection(folder: Path) -> None:
    def of(text: str, index: int = 0) -> None:
        held = check(folder, text)
        if isinstance(held, ServerFile):
            own.server_party(held, credentials(index), folder / "state")
        elif isinstance(held, ClientFile):
            own.client_party(held, credentials(index), folder / "state")

    with pytest.raises(ab.ConfigError, match="clients are bank, shopp here, but bank, shop in the connection"):
        of(server_text().replace('"shop"', '"shopp"'))
    with pytest.raises(ab.ConfigError, match=r"two sections \[\[clients\]\] have the same name"):
        of(server_text().replace('"shop"', '"bank"'))
    with pytest.raises(ab.ConfigError, match="the embedding of bank is 3, but a linear model adds"):
        of(server_text(model='name = "linear"'))
    with pytest.raises(ab.ConfigError, match="clients is 1, but shop is client 2"):
        of(client_text("shop").replace("clients = 2", "clients = 1"), 2)
    with pytest.raises(ab.ConfigError, match="k is 3, but there are only 2 clients"):
        of(server_text(activation='[activation]\nname = "Fixed"\nk = 3'))


# -- the files of data ------------------------------------------------------------------------------------------------


def labels(path: Path, **options: Any) -> tables.TableLabels:
    return tables.TableLabels(path, "order", "fraud", 2, **options)


def features(path: Path, columns: tuple[str, ...] = ("a", "b")) -> tables.TableFeatures:
    return tables.TableFeatures(path, "order", columns)


WRONG_DATA = [
    ("order,fraud\n", "the file has no rows"),
    (
        "order,fraud\nx,0\ny,2\n",
        "row 2, column 'fraud': a text is no label from 0 to 1: is the number of classes right?",
    ),
    ("order,fraud\nx,0\ny,0.5\n", "row 2, column 'fraud': a text is no whole number from 0 on"),
    ("order,fraud\nx,0\ny,\n", "row 2, column 'fraud': the cell is empty"),
    ("order,fraud\nx,0\n ,1\n", "row 2, column 'order': the id is empty"),
    ("order,fraud\nx,0\ny,1\nx,1\n", "row 3, column 'order': this event is in row 1 too, but each has one row"),
    ("order,fraud\nx,0\ny,yes\n", "row 2, column 'fraud': a text is not a number: name labels that are texts"),
    ("order,fraude\nx,0\n", "has no column 'fraud'. Did you mean 'fraude'?"),
    ("order,fraud\nx,0,1\n", "row 1 has 3 cells, expected 2"),
]


@pytest.mark.parametrize(("text", "message"), WRONG_DATA)
def test_wrong_labels_are_named(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text(text)
    with pytest.raises(ab.AnabranchError) as caught:
        labels(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_wrong_features_are_named(tmp_path: Path) -> None:
    path = tmp_path / "bank.csv"
    for text, message in (
        ("order,a,b\nx,1,2\ny,1,many\n", "row 2, column 'b': a text is not a number"),
        ("order,a,b\nx,1,1e300\n", "row 1, column 'b': the number is larger than float32 holds"),
        ("order,a\nx,1\n", "has no column 'b'"),
        ("order,a,b\n", "the file has no rows"),
    ):
        path.write_text(text)
        with pytest.raises(ab.AnabranchError, match=message.replace("+", r"\+")):
            features(path)
    with pytest.raises(ab.DataError, match=r"nowhere\.csv: no such file"):
        features(tmp_path / "nowhere.csv")


def test_a_plain_tables_columns_have_rules(tmp_path: Path) -> None:
    """What was seen so far is that of the rows before, also when the file has grown."""
    path = tmp_path / "bank.csv"
    path.write_text("order;a;w\nx;1,5;N\n".replace(",", ".") + "y;?;S\n", encoding="utf-16")
    columns = [Column("a", missing="mean"), Column("w", "category", values=("N",))]
    found = tables.TableFeatures(path, "order", columns, form=TableForm(separator=";"))
    assert found.width == 3
    assert [found.look(each).tolist() for each in (b"x", b"y")] == [[1.5, 1, 0], [1.5, 0, 1]]  # type: ignore[union-attr]
    assert found.schema == Features(columns).schema
    assert (
        found.schema
        != tables.TableFeatures(path, "order", columns, form=TableForm(separator=";", missing_values=("?",))).schema
    )


def test_labels_that_are_texts_are_named(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("order,fraud\n1.0,yes\n2.0,no\n123456789012.0,yes\n")
    held = tables.TableLabels(path, "order", "fraud", Classes.named(["no", "yes"]))
    assert held.take(9) == [(b"1", 1), (b"2", 0), (b"123456789012", 1)]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ('classes = ["no", "maybe", "yes"]', "labels.classes names 3 labels, but model.classes is 2"),
        ('classes = ["no", "no"]', "names a label twice"),
        ('encoding = "utf-9"', "encoding is 'utf-9'"),
        ('separator = ";;"', "separator is ';;'"),
    ],
)
def test_what_a_servers_file_says_of_its_labels_is_checked(folder: Path, more: str, said: str) -> None:
    path = folder / "server.toml"
    path.write_text(server_text().replace('label = "fraud"', f'label = "fraud"\n{more}'))
    with pytest.raises(ab.ConfigError, match=said):
        own.server_party(partyfile.load(path), credentials(0), folder / "state")  # type: ignore[arg-type]


def test_parquet_says_the_same_as_csv(tmp_path: Path) -> None:
    table = pa.table({"order": [17, 4], "a": [1.5, 2.5], "b": [1, 2], "fraud": [1, 0]})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_text("order,a,b,fraud\n17,1.5,1,1\n4,2.5,2,0\n")
    for path in (tmp_path / "t.parquet", tmp_path / "t.csv"):
        assert labels(path).take(5) == [(b"17", 1), (b"4", 0)]
        found = features(path).look(b"4")
        assert found is not None
        assert found.tolist() == [2.5, 2.0]
        assert found.dtype == np.float32


def test_labels_are_given_in_order_and_go_on(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("order,fraud\nx,0\ny,1\nz,1\n")
    held = labels(path)
    assert (held.take(2), held.over) == ([(b"x", 0), (b"y", 1)], False)
    assert (held.take(9), held.over) == ([(b"z", 1)], True)
    again = labels(path, rounds=2)
    again.go_on(1)
    assert (again.take(9), again.over) == ([(b"y", 1)], True)
    with pytest.raises(ab.DataError, match="has 3 rows, but 4 rounds were played of it"):
        labels(path).go_on(4)


def test_no_round_begins_with_what_clients_tell_of_the_servers_own_events(tmp_path: Path) -> None:
    """Else one that was played, or that is still to come, would be played twice; and no stream is read to its end."""
    path = tmp_path / "labels.csv"
    path.write_text("order,fraud\nx,0\ny,1\nz,1\n")
    held = labels(path)
    read = []

    def chunks() -> Iterator[Chunk]:
        for first in range(0, 1000, 2):
            read.append(first)
            yield Chunk(np.zeros((2, 3), np.float32), np.array([0, 1], np.int32), 2)

    replayed = ReplaySamples(chunks, 1000)
    assert [label for _, label in held.take(2)] == [label for _, label in replayed.take(2)] == [0, 1]
    assert [held.label(event) for event in (b"x", b"y", b"z", b"no")] == [None] * 4
    told = [name_of(0), name_of(1), name_of(2), name_of(999), b"\xff" * 8, b"no"]
    assert [replayed.label(event) for event in told] == [None] * 6
    assert read == [0]


def test_a_stream_is_read_to_its_end_once_for_events_that_it_does_not_have() -> None:
    read = []

    def chunks() -> Iterator[Chunk]:
        for first in range(0, 10, 2):
            read.append(first)
            yield Chunk(np.full((2, 3), first, np.float32), np.zeros(2, np.int32), 2)

    whole, part = ReplayFeatures(chunks, slice(1), None), ReplayFeatures(chunks, slice(1), 4)
    for _ in range(3):
        assert whole.look(b"\xff" * 8) is None
    assert read == [0, 2, 4, 6, 8]
    assert whole.look(name_of(9)) == 8
    assert part.look(name_of(4)) is None
    assert part.look(name_of(3)) == 2
    assert read[5:] == [0, 2]


def test_labels_that_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that come later are events too, once they are whole; rows that were there must stay."""
    monkeypatch.setattr(tables, "LOOK_AGAIN", 0.001)
    path = tmp_path / "labels.csv"
    path.write_text("order,fraud\nx,0\ny,1")

    async def main() -> None:
        held = labels(path, follow=True)
        assert (held.take(9), held.over) == ([(b"x", 0)], False)
        with path.open("a") as file:
            file.write("\nz,1\n")
        await asyncio.wait_for(held.more(), 30)
        assert held.take(9) == [(b"y", 1), (b"z", 1)]
        waiting = asyncio.ensure_future(held.more())
        path.write_text("order,fraud\nx,0\nyy,1\nz,1\nu,0\n")
        with pytest.raises(ab.DataError, match="rows that were there are others now"):
            await asyncio.wait_for(waiting, 30)

    asyncio.run(main())


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "utf-16-be"])
def test_a_line_that_is_being_written_is_left_whatever_the_file_is_called(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "labels.txt"
    mark = "" if encoding == "utf-8" else "\ufeff"
    for end, expected in (("", [(b"x", 0)]), ("\n", [(b"x", 0), (b"y", 1)])):
        path.write_bytes((mark + "order,fraud\nx,0\ny,1" + end).encode(encoding))
        assert labels(path, follow=True).take(9) == expected


def test_a_file_of_labels_may_be_away_while_it_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tables, "LOOK_AGAIN", 0.001)
    path = tmp_path / "labels.csv"
    path.write_text("order,fraud\nx,0\n")

    async def warned(text: str) -> None:
        while text not in caplog.text:
            await asyncio.sleep(0.001)

    async def main() -> None:
        held = labels(path, follow=True)
        assert held.take(9) == [(b"x", 0)]
        waiting = asyncio.ensure_future(held.more())
        path.unlink()
        await asyncio.wait_for(warned("no such file; going on when the file has changed again"), 30)
        path.write_text("order,fr\nx,0\n")
        await asyncio.wait_for(warned("has no column 'fraud'"), 30)
        path.unlink()
        (tmp_path / "new").write_text("order,fraud\nx,0\ny,1\n")
        (tmp_path / "new").rename(path)
        await asyncio.wait_for(waiting, 30)
        assert held.take(9) == [(b"y", 1)]

    asyncio.run(main())
    assert caplog.text.count("has no column 'fraud'") == 1


def test_features_are_read_again_now_and_then_however_many_events_are_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tables, "LOOK_AGAIN", 3600.0)
    path = tmp_path / "bank.csv"
    path.write_text("order,a,b\n0,1,2\n")
    read = tables.TableFeatures._read
    reads = []

    def counted(held: tables.TableFeatures, **how: bool) -> None:
        reads.append(how)
        read(held, **how)

    monkeypatch.setattr(tables.TableFeatures, "_read", counted)
    held = features(path)
    for i in range(1, 6):  # a row more each time; the first is there at once
        with path.open("a") as file:
            file.write(f"{i},1,2\n")
        assert (held.look(b"%d" % i) is not None) == (i == 1)
    assert reads == [{}, {"growing": True}]
    monkeypatch.setattr(held, "_again", 0.0)
    assert held.look(b"5") is not None
    monkeypatch.setattr(held, "_again", 0.0)
    path.unlink()
    for _ in range(5):
        assert held.look(b"6") is None
    assert caplog.text.count("no such file; going on with what it had before") == 1
    assert held.look(b"5") is not None


def test_features_that_come_later_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tables, "LOOK_AGAIN", 0.0)
    path = tmp_path / "bank.csv"
    path.write_text("order,a,b\nx,1,2\n")
    held = features(path)
    assert held.look(b"y") is None
    path.write_text("order,a,b\nx,1,2\ny,3,4\nz,5,6")  # someone is still writing the last one
    found = held.look(b"y")
    assert found is not None
    assert found.tolist() == [3.0, 4.0]
    assert held.look(b"z") is None
    path.write_text("order,a,b\nx,1,2\ny,3,four\n")
    assert held.look(b"z") is None
    assert "row 2, column 'b': a text is not a number: " in caplog.text
    assert "; going on with what it had before" in caplog.text
    assert "four" not in caplog.text
    assert held.look(b"x") is not None
