from __future__ import annotations

import io
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

import anabranch as ab
from anabranch.config import build as runner
from anabranch.config.load import PRESETS, Override, find_source, load, parse_override, preset_text
from anabranch.config.run import KINDS, Config, Scale, Section
from anabranch.core.updates import ActiveDLR
from anabranch.parties.assemble import replay
from small_runs import SMALL_MODEL, write_digits, write_rooms


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_says_all_that_it_sets_and_round_trips(preset: str, tmp_path: Path) -> None:
    config = load(preset)
    (tmp_path / "shown.toml").write_text(preset_text(preset))
    (tmp_path / "written.toml").write_text(config.to_toml())
    assert load(tmp_path / "shown.toml") == config
    assert load(tmp_path / "written.toml") == config
    assert tomllib.loads(preset_text(preset)) == json.loads(json.dumps(config.to_dict()))


def test_the_presets_are_the_papers() -> None:
    imnist = load("imnist")
    assert (imnist.rounds, imnist.learning_rate, imnist.seed) == (200_000, 0.003, 0)
    assert imnist.update.model_dump() == {"name": "DLR", "window": 10, "decay": 0.95, "client_window": True}
    assert imnist.activation.model_dump() == {"name": "Event", "threshold": 0.2}
    for name in ("susy", "higgs"):
        table = load(name)
        assert (table.rounds, table.update.name) == (None, "DLR")
        assert table.activation.model_dump() == {"name": "Event", "threshold": 0.0}


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("rounds=10", ("rounds",), 10),
        ("update.window = 50", ("update", "window"), 50),
        ("update.name=SLR", ("update", "name"), "SLR"),
        ('update.name="SLR"', ("update", "name"), "SLR"),
        ("activation.threshold=-inf", ("activation", "threshold"), float("-inf")),
        ("update.client_window=false", ("update", "client_window"), False),
        ("learning_rate=[0.1, 2]", ("learning_rate",), [0.1, 2]),
        ("stream.path=a=b.csv", ("stream", "path"), "a=b.csv"),
        ("stream.path=/data/my file.csv", ("stream", "path"), "/data/my file.csv"),
        ("stream.label=1\nrounds = 2", ("stream", "label"), "1\nrounds = 2"),
        ("stream.split.hall=['co2']", ("stream", "split", "hall"), ["co2"]),
    ],
)
def test_an_override_is_a_toml_value_or_a_bare_word(text: str, key: tuple[str, ...], value: object) -> None:
    assert parse_override(text) == Override(key, value)


@pytest.mark.parametrize("text", ["update.window", "=3", "update.=3", ".window=3", ""])
def test_an_override_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(ab.ConfigError, match=r"is not of the form section\.key=value"):
        parse_override(text)


def test_changing_the_kind_drops_what_belongs_to_the_other_kinds() -> None:
    assert load("imnist", ["update.name=OGD"]).update.model_dump() == {"name": "OGD"}
    assert load("imnist", ["update.name=SLR"]).update.model_dump() == {"name": "SLR", "window": 10}
    changed = load("imnist", ["activation.p=[0.1, 0.2, 0.3, 0.4]", "activation.name=Random"])
    assert changed.activation.model_dump() == {"name": "Random", "p": (0.1, 0.2, 0.3, 0.4)}
    assert load("imnist", ["drift.every=5"]).drift.every == 5


def test_a_section_that_a_file_lacks_begins_with_its_default(tmp_path: Path) -> None:
    file = write_rooms(tmp_path)
    file.write_text(file.read_text().split("[update]")[0])
    assert load(file).update.model_dump() == {"name": "DLR", "window": 10, "decay": 0.95, "client_window": True}
    assert load(file).activation.name == "Full"
    assert load(file, ["update.window=5"]).update.model_dump()["window"] == 5


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["update.widnow=5"], "update.widnow: DLR has no such setting. Did you mean 'window'?"),
        (["window=5"], "there is no setting or section 'window'. Did you mean 'update.window'?"),
        (["updates.window=5"], "there is no setting or section 'updates'. Did you mean 'update'?"),
        (["round=5"], "there is no setting or section 'round'. Did you mean 'rounds'?"),
        (["xyz=5"], "there is no setting or section 'xyz'. There are rounds, seed, "),
        (["drift.evry=5"], "drift.evry: drift has no such setting. Did you mean 'every'?"),
        (
            ["update.name=DRL"],
            'update.name is "DRL", but it must be one of "OGD", "DLR", "ActiveDLR", "Momentum" or "SLR", or '
            "the place of your own, such as \"package.module:Class\". Did you mean 'DLR'?",
        ),
        (["update.name=slr"], "Did you mean 'SLR'?"),
        (["update.name=[1]"], 'update.name is [1], but it must be one of "OGD", "DLR", "ActiveDLR"'),
        (["update.name=3"], 'update.name is 3, but it must be one of "OGD", "DLR", "ActiveDLR"'),
        (
            ["update.name=OGD", "update.window=5"],
            "update.window: OGD has no such setting; it belongs to DLR and ActiveDLR and SLR.",
        ),
        (["activation.name=Full", "activation.threshold=1"], "Full has no such setting; it belongs to Event."),
        (["activation.name=Random"], "activation.p is missing: Random needs a probability from 0 to 1"),
        (["stream.name=table"], "stream.path is missing: table needs a CSV or Parquet file"),
        (["update=50"], "update is 50, but it is a section of settings, such as update.name="),
        (["drift=50"], "drift is 50, but it is a section of settings, such as drift.every=50"),
        (["update.window=0"], "update.window is 0, but it must be a whole number of rounds from 1 to 10,000,000"),
        (["update.nme=OGD"], "update.nme: DLR has no such setting. Did you mean 'name'?"),
        (["update.window=1.5"], "update.window is 1.5, but it must be"),
        (["update.window=many"], 'update.window is "many", but it must be'),
        (["update.window=true"], "update.window is true, but it must be"),
        (["update.window.x=1"], "update.window is {x = 1}, but it must be"),
        (["update.decay=1"], "update.decay is 1, but it must be a number between 0 and 1, both excluded"),
        (["activation.threshold=nan"], "activation.threshold is nan, but it must be a number"),
        (["activation.name=Random", "activation.p=[0.5, 1.5]"], "activation.p is [0.5, 1.5], but it must be a prob"),
        (["activation.name=Fixed", "activation.k=-1"], "activation.k is -1, but it must be a whole number of clients"),
        (["learning_rate=-0.1"], "learning_rate is -0.1, but it must be a number of 0 or more"),
        (["learning_rate=inf"], "learning_rate is inf, but it must be a number of 0 or more"),
        (["learning_rate_power=-1"], "learning_rate_power is -1, but it must be a number of 0 or more"),
        (["measure_regret=1"], "measure_regret is 1, but it must be true or false"),
        (["rounds=0"], "rounds is 0, but it must be a whole number from 1"),
        (["seed=-1"], "seed is -1, but it must be a whole number from 0"),
        (["wire_dtype=float8"], 'wire_dtype is "float8", but it must be one of "float32"'),
        (["model.clients=785"], "model.clients is 785, but it must be a whole number of clients from 1 to 784"),
        (["stream.pool=3"], "stream.pool is 3, but it must be one of 1, 2, 4, 7, 14 and 28"),
        (["stream.pool=true"], "stream.pool is true, but it must be one of 1, 2, 4, 7, 14 and 28"),
        (["stream.pool=2.0"], "stream.pool is 2.0, but it must be one of 1, 2, 4, 7, 14 and 28"),
        (["activation.threshold=[1]"], "activation.threshold is [1], but it must be a number"),
        (["activation.threshold={a = 1}"], "activation.threshold is {a = 1}, but it must be a number"),
        (["stream.data_dir="], 'stream.data_dir is "", but it must be a folder'),
        (["stream.name=susy", "stream.path=a", "stream.data_dir=b"], "are both given; give one of them"),
        (["stream.name=susy", "stream.split=[]"], "stream.split is [], but it must be a number of clients, a list"),
        (["stream.name=susy", "stream.standardise={mean=[1]}"], "stream.standardise is {mean = [1]}, but it must be"),
    ],
)
def test_what_is_wrong_is_named(overrides: list[str], message: str) -> None:
    with pytest.raises(ab.ConfigError) as error:
        load("imnist", overrides)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("record", [Config, Scale, *(kind for kinds in KINDS.values() for kind in kinds)])
def test_true_is_a_number_nowhere(record: type[Section]) -> None:
    for name in record.settings():
        for value in (True, (True,), (True, True), ((True,),), {"a": (True,)}):
            try:
                held = record.__pydantic_validator__.validate_assignment(record.model_construct(), name, value)
            except ValidationError:
                continue
            assert value is True, held
            assert name in ("client_window", "header", "measure_regret", "server_softmax"), held


def test_every_wrong_setting_has_a_line_that_begins_with_where_it_stands(tmp_path: Path) -> None:
    file = write_rooms(tmp_path)
    file.write_text(file.read_text().replace("window = 3", "widnow = 3").replace("hidden = []", "hidden = [0]"))
    with pytest.raises(ab.ConfigError) as error:
        load(file, [Override(("rounds",), 0, "--rounds")])
    lines = str(error.value).splitlines()
    assert lines[0].startswith("--rounds: rounds is 0, but")
    assert lines[1].startswith(f"{file}: model.hidden is [0], but")
    assert lines[2].startswith(f"{file}: update.widnow: DLR has no such setting. Did you mean 'window'?")
    assert len(lines) == 3


def test_a_source_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ab.ConfigError, match=r"'imnits' is neither a preset nor a file\. Did you mean 'imnist'\?"):
        find_source("imnits")
    with pytest.raises(ab.ConfigError, match=r"is a folder without a result\.json"):
        find_source(tmp_path)
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    with pytest.raises(ab.ConfigError, match=r"bad\.toml: not valid TOML: .*line 1"):
        find_source(tmp_path / "bad.toml")
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ab.ConfigError, match=r"bad\.toml: cannot be read"):
        find_source(tmp_path / "bad.toml")
    for beyond in (f"rounds = {'[' * 5000}{']' * 5000}", f"rounds = {'1' * 5000}"):
        (tmp_path / "bad.toml").write_text(beyond)
        with pytest.raises(ab.ConfigError, match=r"bad\.toml: not valid TOML"):
            find_source(tmp_path / "bad.toml")
        with pytest.raises(ab.ConfigError, match=r"^--set: rounds is \"[\[1]"):
            load("imnist", [parse_override(beyond.replace(" ", ""), "--set")])
        (tmp_path / "bad.json").write_text(beyond.removeprefix("rounds = "))
        with pytest.raises(ab.ConfigError, match=r"bad\.json: not valid JSON"):
            find_source(tmp_path / "bad.json")
    with pytest.raises(ab.ConfigError, match=r"x{300}"):
        find_source("x" * 300)
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ab.ConfigError, match=r"bad\.json: not valid JSON"):
        find_source(tmp_path / "bad.json")
    (tmp_path / "bad.json").write_text("[1]")
    with pytest.raises(ab.ConfigError, match=r"bad\.json: not a result of 'anabranch run'"):
        find_source(tmp_path / "bad.json")
    (tmp_path / "empty.toml").write_text("")
    with pytest.raises(ab.ConfigError, match=r"the section \[model\] is missing; its name is one of \"imnist\""):
        load(tmp_path / "empty.toml")


def test_paths_are_relative_to_the_file_and_in_overrides_to_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_rooms(tmp_path / "own")
    monkeypatch.chdir(tmp_path)
    assert load(Path("own") / "rooms.toml").stream.path == str((tmp_path / "own" / "rooms.csv").resolve())
    assert load(file, ["stream.path=rooms.csv"]).stream.path == str((tmp_path / "rooms.csv").resolve())
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load("imnist", ["stream.data_dir=~/d"]).stream.data_dir == str((tmp_path / "d").resolve())


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("~nobody-of-that-name/x.csv", "x.csv: no such file"),
        ('"a\\u0000b"', "no such file"),
        ("x" * 300, "x" * 300),
    ],
)
@pytest.mark.parametrize("section", ["stream", "activation"])
def test_a_path_that_cannot_be_is_one_error(path: str, message: str, section: str, tmp_path: Path) -> None:
    file = write_rooms(tmp_path)
    config = load(file, [f"{section}.path={path}", *(["activation.name=Recorded"] if section == "activation" else [])])
    with pytest.raises(ab.DataError, match=message if section == "stream" else "cannot be read"):
        runner.build(config)


def test_a_stored_result_gives_its_configuration_back(tmp_path: Path) -> None:
    config = load("imnist", ["activation.threshold=-inf", "learning_rate=[0.1, 0.2, 0.3, 0.4, 0.5]"])
    stored = {**json.loads(json.dumps(config.to_dict()))}
    stored["activation"]["threshold"] = "-inf"
    (tmp_path / "result.json").write_text(json.dumps({"name": "mine", "config": stored}))
    assert load(tmp_path) == load(tmp_path / "result.json") == config
    assert find_source(tmp_path).name == "mine"


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("my run, α = 0.5", "my run, α = 0.5"),
        ("../../evil", "evil"),
        ("/evil", "evil"),
        ("e\0v\ni\ud800l", "evil"),
        ("..", "result"),
        ("", "result"),
        ("/", "result"),
        (None, "None"),
    ],
)
def test_the_name_of_a_stored_result_leads_nowhere_else(name: Any, taken: str, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps({"name": name, "config": load("imnist").to_dict()}))
    assert find_source(tmp_path).name == taken


def test_what_show_writes_reads_back_whatever_is_in_it(tmp_path: Path) -> None:
    config = load(
        "susy",
        [
            """stream.path='a "quote", a \\ and an é.csv'""",
            "stream.split={'two words' = ['x'], b = ['y', 'z']}",
            "stream.standardise={mean = [0, 1e-300, 1e22], std = [0.1, 1, 1]}",
            "activation.threshold=inf",
            "learning_rate=[0.1, 1, 1e-5]",
            "update.client_window=false",
        ],
    )
    (tmp_path / "written.toml").write_text(config.to_toml(), encoding="utf-8")
    assert load(tmp_path / "written.toml") == config


def test_one_seed_feeds_everything(tmp_path: Path) -> None:
    digits = write_digits(tmp_path)
    given = ["seed=7", "drift.every=5", "learning_rate_power=0.5", "measure_regret=true"]
    plan = runner.build(load("imnist", [SMALL_MODEL, f"stream.data_dir={digits}", *given]))
    assert (plan.options["learning_rate_power"], plan.options["measure_regret"]) == (0.5, True)
    described = plan.stream.describe()
    assert (described["seed"], described["stream"]["seed"], plan.options["seed"]) == (7, 7, 7)
    assert plan.stream.widths == (196,) * 4
    expected = ab.models.mlp((196,) * 4, 10, hidden=(), embedding=3, server=(), seed=7).to_arrays()
    assert all(np.array_equal(expected[name], array) for name, array in plan.model.to_arrays().items())
    assert plan.data["stream"]["name"] == "idx digits"
    assert (plan.data["stream"]["count"], len(plan.data["stream"]["sha256"])) == (20, 64)


def test_pooled_digits_need_a_model_that_fits_itself(tmp_path: Path) -> None:
    given = [f"stream.data_dir={write_digits(tmp_path)}", "stream.pool=4"]
    plan = runner.build(load("imnist", ["model.name=linear", *given]))
    assert plan.stream.widths == (13, 12, 12, 12)
    assert plan.model.to_arrays()["client1.weight"].shape == (13, 10)
    with pytest.raises(ab.ModelError, match=r"stream\.pool is 4, which leaves 49 features, .* \(model\.name\)"):
        runner.build(load("imnist", given))


@pytest.mark.parametrize(
    ("overrides", "update", "activation"),
    [
        (["update.name=OGD", "activation.name=Full"], ab.OGD(), ab.Full()),
        (["update.name=SLR", "activation.name=Random", "activation.p=0.5"], ab.SLR(3), ab.Random(0.5)),
        (["update.client_window=false"], ab.DLR(3, 0.95, client_window=False), ab.Event(0.0)),
        (["update.name=ActiveDLR", "activation.name=Full"], ActiveDLR(3, 0.95), ab.Full()),
        (["activation.name=Fixed", "activation.k=1"], ab.DLR(3, 0.95), ab.Fixed(1)),
        (["activation.name=Random", "activation.p=[0.5, 0]"], ab.DLR(3, 0.95), ab.Random((0.5, 0.0))),
    ],
)
def test_each_kind_is_built(overrides: list[str], update: ab.Update, activation: ab.Activation, tmp_path: Path) -> None:
    plan = runner.build(load(write_rooms(tmp_path), overrides))
    assert repr(plan.options["update"]) == repr(update)
    assert plan.options["activation"] == activation
    assert plan.stream.widths == (2, 2)
    assert plan.model.to_arrays()["client1.layers.0.weight"].shape == (2, 3)


def test_momentum_is_a_window_that_never_ends(tmp_path: Path) -> None:
    """Weights that fall by the same factor round by round add up to 1, as those of a very long window do."""
    names = ("Momentum", "ActiveDLR")
    more = [["update.decay=0.8"], ["update.decay=0.8", "update.window=300"]]
    activation = ["activation.name=Random", "activation.p=0.5", "learning_rate=0.05"]
    first, second = (
        runner.run(load(write_rooms(tmp_path), [f"update.name={name}", *each, *activation])).model.to_arrays()
        for name, each in zip(names, more, strict=True)
    )
    for name, array in first.items():
        np.testing.assert_allclose(array, second[name], atol=1e-5, err_msg=name)


def test_momentum_takes_one_learning_rate(tmp_path: Path) -> None:
    config = load(write_rooms(tmp_path), ["update.name=Momentum", "learning_rate=[0.1, 0.2, 0.3]"])
    with pytest.raises(ab.ConfigError, match=r"learning_rate = \[0\.1, 0\.2, 0\.3\] is a list, .*: give one number"):
        runner.build(config)


def test_recorded_activations_come_from_a_file(tmp_path: Path) -> None:
    file = write_rooms(tmp_path)
    mask = np.random.default_rng(0).random((300, 2)) < 0.5
    np.savetxt(tmp_path / "who.csv", mask, fmt="%d", delimiter=",")
    np.save(tmp_path / "who.npy", mask)
    file.write_text(file.read_text().split("[activation]")[0] + '[activation]\nname = "Recorded"\npath = "who.csv"\n')
    for overrides in ([], [f"activation.path={tmp_path / 'who.npy'}"]):
        plan = runner.build(load(file, overrides))
        assert np.array_equal(plan.options["activation"].activated, mask)
        assert plan.data["activation"]["name"].startswith("who.")


def npy(array: object) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("who.csv", None, r"cannot be read \(No such file"),
        ("who.csv", b"", "holds no rows"),
        ("who.csv", b"# only a comment\n", "holds no rows"),
        ("who.csv", b"0,1\n0,x\n", "not a table of zeros and ones"),
        ("who.csv", b"0,1\n0\n", "not a table of zeros and ones"),
        ("who.csv", b"\xff\xfe", "not a table of zeros and ones"),
        ("who.csv", b"0,2\n", "a table .* of true and false is needed"),
        ("who.csv", b"0,1,1\n" * 300, "it has 3 columns, but there are 2 clients"),
        ("who.csv", b"0,1\n" * 10, "it has 10 rounds, but the run asks for 300"),
        ("who.npy", b"", "not a table of zeros and ones"),
        ("who.npy", npy(np.zeros((300, 2)))[:200], "not a table of zeros and ones"),
        ("who.npy", npy(np.array([{}])), "not a table of zeros and ones"),
        ("who.npy", npy(np.zeros((0, 2))), "holds no rows"),
        ("who.npy", npy(np.zeros(300)), r"a table .* is needed, not float64 values of shape \(300,\)"),
    ],
)
def test_what_is_wrong_with_recorded_activations_names_their_file(
    name: str, content: bytes | None, message: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    recorded = f"activation={{name='Recorded', path='{tmp_path / name}'}}"
    with pytest.raises((ab.DataError, ab.ConfigError), match=rf"{re.escape(str(tmp_path / name))}: .*{message}"):
        runner.build(load(write_rooms(tmp_path), [recorded]))


def test_clients_are_split_evenly_where_no_split_is_given(tmp_path: Path) -> None:
    file = write_rooms(tmp_path)
    text = file.read_text()
    file.write_text("\n".join(line for line in text.splitlines() if not line.startswith("split")))
    with pytest.raises(ab.ConfigError, match=r"stream\.split is missing"):
        runner.build(load(file))
    assert runner.build(load(file, ["model.clients=2"])).stream.widths == (2, 2)
    file.write_text(text)
    for name in ("mlp", "linear"):
        with pytest.raises(ab.ConfigError, match=r"model\.clients is 3, but stream\.split .* among 2"):
            runner.build(load(file, [f"model.name={name}", "model.clients=3"]))
    assert list(runner.build(load(file, ["model.name=linear"])).model.to_arrays()) == [
        "client1.weight", "client2.weight", "server.bias",
    ]  # fmt: skip


def test_other_data_than_a_stored_runs_is_refused(tmp_path: Path) -> None:
    plan = runner.build(load("imnist", [SMALL_MODEL, f"stream.data_dir={write_digits(tmp_path)}"]))
    runner.check_same_data(plan, plan.data, "result.json")
    other = {"stream": {"name": "MNIST train", "count": 60_000, "sha256": "ab" * 32}}
    with pytest.raises(ab.DataError) as error:
        runner.check_same_data(plan, other, "result.json")
    assert "trained on MNIST train (60,000 digits, SHA-256 abababababab…)" in str(error.value)
    assert "here the stream has idx digits (20 digits, SHA-256 " in str(error.value)


BIKES = """
[model]
name = "linear"
[stream]
name = "table"
path = "bikes.csv"
split = {town = ["wind"], river = ["level"]}
separator = ";"
encoding = "latin-1"
missing_values = ["-200"]
ignore = [""]
classes = ["many", "few"]
columns = [
    { name = "wind", kind = "category", values = ["N", "S"] },
    { name = "level", missing = "mean" },
]
"""


def test_a_tables_rules_are_settings(tmp_path: Path) -> None:
    (tmp_path / "bikes.toml").write_text(BIKES)
    (tmp_path / "bikes.csv").write_bytes(";wind;level;bikes\n0;N;1.5;few\n1;Süd;-200.0;many\n".encode("latin-1"))
    config = load(tmp_path / "bikes.toml", ["stream.standardise=none"])
    stream = runner.build(config).stream
    block = next(stream.blocks())
    assert (stream.widths, stream.classes) == ((3, 1), 2)
    assert block.x.tolist() == [[1, 0, 0, 1.5], [0, 0, 1, 1.5]]
    assert block.y.tolist() == [1, 0]
    (tmp_path / "again.toml").write_text(config.to_toml())
    assert load(tmp_path / "again.toml") == config


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("values =", "vlaues =", r"stream\.columns is .*vlaues.*, but it must be a list of columns and their rules"),
        ('"category"', '"word"', r"stream\.columns is .*, but it must be a list of columns and their rules"),
        ('["many", "few"]', '["many"]', r"stream\.classes is \[\"many\"\], but it must be a whole number of classes"),
        ('";"', '";;"', "separator is ';;'"),
        ('"latin-1"', '"latin-11"', "encoding is 'latin-11'"),
    ],
)
def test_wrong_rules_are_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    (tmp_path / "bikes.toml").write_text(BIKES.replace(old, new))
    (tmp_path / "bikes.csv").write_text("x")
    with pytest.raises(ab.ConfigError, match=said):
        runner.build(load(tmp_path / "bikes.toml"))


def test_a_party_that_replays_a_run_shows_no_cell(tmp_path: Path) -> None:
    (tmp_path / "bikes.toml").write_text(BIKES.replace('["many", "few"]', "2"))
    (tmp_path / "bikes.csv").write_text(";wind;level;bikes\n0;N;1.5;s3cr3t\n")
    config = load(tmp_path / "bikes.toml")
    for shown in (True, False):
        with pytest.raises(ab.DataError, match=r"row 1, column 'bikes': .* is not a number") as error:
            next(runner.build(config, shown=shown).stream.blocks())
        assert ("s3cr3t" in str(error.value)) is shown
    with pytest.raises(ab.DataError) as error:
        next(replay(config).chunks())
    assert "s3cr3t" not in str(error.value)
