"""`cdcflow erase` and `cdcflow decrypt` with keys of persons, and a start without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from tests.support.capture.memory_kit import MemoryKit
from typer.testing import CliRunner, Result

from cdcflow.cli.app import app
from cdcflow.config import load
from cdcflow.config.columns import TableRules
from cdcflow.errors import ConfigurationError
from cdcflow.model.position import Checkpoint, Epoch
from cdcflow.sources.privacy.key_file import KeyFile
from cdcflow.sources.privacy.person_keys import PersonEncryption
from cdcflow.sources.privacy.rules import PolicyRules
from cdcflow.sources.privacy.secret_keys import PolicyKey
from cdcflow.sources.privacy.source import private_source
from cdcflow.testing.sources import LOG_ID
from cdcflow.wiring import executors

SECRETS = {"NOW": "5e8ff9bf55ba3508199d22e984129be6", "OLD": "d1bc8d3ba4afc7e109612cb73acbdddac052c930"}
K1, K2 = PolicyKey("k1", SECRETS["OLD"].encode()), PolicyKey("k2", SECRETS["NOW"].encode())


def by(column: str) -> dict[str, object]:
    return {"encrypt": {"key": "${env:NOW}", "id": "k2", "key_by": column}}


TABLES: dict[str, Any] = {
    "public.users": {"columns": {"email": by("id"), "note": "mask"}},
    "shop.o*": {"columns": {"address": by("user_id"), "shop_note": by("shop")}},
    "public.words": {"columns": {"said": {"encrypt": "${env:NOW}"}}},
}


class Pipeline:
    """A settings file, and the keys of persons."""

    def __init__(self, folder: Path) -> None:
        self.settings = folder / "cdcflow.yaml"
        self.tables = dict(TABLES)
        self.folder = folder
        self.write()
        self.file = KeyFile(folder / "log" / "person-keys")

    def write(self) -> None:
        source = {"kind": "postgres", "url": "postgresql://nowhere.invalid/shop"}
        given = {"source": source, "log": {"path": str(self.folder / "log")}, "tables": self.tables}
        self.settings.write_text(yaml.safe_dump(given))

    def encrypt(self, value: str, person: str, key: PolicyKey = K2) -> str:
        self.file.create()
        found: str = PersonEncryption(key, self.file).convert(pa.array([value]), pa.array([person]))[0].as_py()
        return found

    def run(self, *words: str, given: str = "") -> Result:
        return CliRunner().invoke(app, [*words, "--config", str(self.settings)], input=given)

    def decrypted(self, value: str, *words: str) -> str:
        return self.run("decrypt", value, *words).output.splitlines()[0]


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    for name, secret in SECRETS.items():
        monkeypatch.setenv(name, secret)
    return Pipeline(tmp_path)


def test_erased_person_can_no_longer_be_decrypted_and_others_can(pipeline: Pipeline) -> None:
    mine, other = pipeline.encrypt("ada@x", "17"), pipeline.encrypt("bob@x", "18")
    assert pipeline.decrypted(mine) == "ada@x"
    found = pipeline.run("erase", "public.users", "17", "--yes")
    assert found.exit_code == 0, found.output
    assert "erased 1 person: public.users (email); shop.o* (address, shop_note)" in found.output
    result = pipeline.run("decrypt", mine, other)
    assert result.stdout.splitlines() == ["erased", "bob@x"]
    assert result.exit_code == 1
    assert pipeline.run("erase", "public.users", "17", "--yes").exit_code == 0
    assert "17" not in (pipeline.folder / "log" / "person-keys").read_text().replace(K2.fingerprint, "").split()


def test_nothing_is_erased_without_a_confirmation(pipeline: Pipeline) -> None:
    mine = pipeline.encrypt("ada@x", "17")
    result = pipeline.run("erase", "public.users", "17", given="n\n")
    assert result.exit_code == 1
    assert "Destroy the keys of 1 person?" in result.output
    assert pipeline.decrypted(mine) == "ada@x"


def test_value_without_keys_is_probably_a_mistake_and_can_be_erased_all_the_same(pipeline: Pipeline) -> None:
    """The rows of a person may not have been read yet."""
    pipeline.encrypt("ada@x", "17")
    result = pipeline.run("erase", "public.users", "017", "--yes")
    assert result.exit_code == 1
    assert "1 person had no keys" in result.output
    assert "--unseen" in result.output
    assert pipeline.run("erase", "public.users", "017", "--yes", "--unseen").exit_code == 0
    assert pipeline.encrypt("ada@x", "017") is None
    assert pipeline.encrypt("ada@x", "17") is not None


def test_persons_on_stdin_are_erased_and_in_no_list_of_processes(pipeline: Pipeline) -> None:
    values = [pipeline.encrypt("x", person) for person in ("a b", "c", "d")]
    result = pipeline.run("erase", "public.users", "-", "--yes", given="a b\nd\n")
    assert "erased 2 persons" in result.output
    assert [pipeline.decrypted(value) for value in values] == ["erased", "x", "erased"]


def test_person_in_a_binary_column_is_named_by_its_digits(pipeline: Pipeline) -> None:
    pipeline.file.create()
    PersonEncryption(K2, pipeline.file).convert(pa.array(["x"]), pa.array([b"\x00\xff"]))
    assert pipeline.run("erase", "public.users", "\\x00ff", "--yes").exit_code == 0


def test_table_with_several_columns_of_persons_needs_the_one(pipeline: Pipeline) -> None:
    pipeline.encrypt("x", "17")
    result = pipeline.run("erase", "shop.orders", "17", "--yes")
    assert result.exit_code == 78
    assert "such as --by shop" in result.output
    assert pipeline.run("erase", "shop.orders", "17", "--by", "user_id", "--yes").exit_code == 0


def test_table_without_such_a_policy_is_refused_with_the_nearest_name(pipeline: Pipeline) -> None:
    for table in ("public.user", "public.words"):
        result = pipeline.run("erase", table, "17", "--yes")
        assert f"no policy of {table} has key_by" in result.output
    assert "did you mean public.users?" in pipeline.run("erase", "public.user", "17").output
    assert "there are no keys of persons in" in pipeline.run("erase", "public.users", "17").output


def test_earlier_keys_must_be_named_so_that_no_earlier_value_stays_readable(pipeline: Pipeline) -> None:
    """After a key was replaced, each person has one wrapped by each."""
    old, new = pipeline.encrypt("ada@x", "17", K1), pipeline.encrypt("ada@x", "17")
    earlier = ("--key", "k1=${env:OLD}")
    assert pipeline.decrypted(old, *earlier) == "ada@x"
    result = pipeline.run("erase", "public.users", "17", "--yes")
    assert result.exit_code == 78
    assert f"--lost-key {K1.fingerprint}" in result.output
    assert pipeline.decrypted(new) == "ada@x"
    result = pipeline.run("erase", "public.users", "17", "--yes", *earlier)
    assert result.exit_code == 0, result.output
    assert pipeline.decrypted(old, *earlier) == pipeline.decrypted(new) == "erased"
    pipeline.encrypt("x", "18", K1)
    pipeline.encrypt("x", "18")
    assert pipeline.run("erase", "public.users", "18", "--yes", "--lost-key", K1.fingerprint).exit_code == 0


def test_executors_are_refused(pipeline: Pipeline) -> None:
    with (
        pytest.raises(ConfigurationError, match=r"public\.users in tables has key_by") as refused,
        executors.readers(load(pipeline.settings), "local[1]"),
    ):
        pass
    assert refused.value.remedy == "run the same command without --on"


def test_paths_of_keys_are_relative_to_the_settings_file(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon and an erasure run in different folders."""
    by_file = {"encrypt": {"key": "${file:secret}", "key_by": "id"}}
    pipeline.tables = {"public.users": {"columns": {"email": by_file}}}
    pipeline.write()
    given = pipeline.settings.read_text()
    pipeline.settings.write_text(f"{given}person_keys: keys/persons\n")
    monkeypatch.chdir("/")
    config = load(pipeline.settings)
    assert config.person_keys_file == pipeline.folder / "keys" / "persons"
    rule = config.tables["public.users"].columns["email"]
    assert rule.encrypt is not None
    assert rule.encrypt.key == f"${{file:{pipeline.folder / 'secret'}}}"
    assert rule.kind == "encrypt"


# ── a start ─────────────────────────────────────────────────────────────────────────────────────────────────


def begun(kit: MemoryKit, file: KeyFile, checkpoint: Checkpoint, id_: str = "k2") -> Checkpoint:
    given = {"columns": {"name": {"encrypt": {"key": "${env:NOW}", "id": id_, "key_by": "id"}}}}
    rules = PolicyRules({"public.items": TableRules.model_validate(given)}, file)
    source = private_source(kit.open_source(), rules)
    try:
        prepared = source.prepare(checkpoint, LOG_ID)
        assert (kit.table in prepared.reread.tables) == (checkpoint.position is not None and id_ != "k2")
        return prepared.checkpoint
    finally:
        source.close()


def test_start_without_the_keys_of_the_last_one_stops_until_they_are_back_or_abandoned(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    """With new keys it would read erased persons again."""
    kit, path = MemoryKit(), tmp_path / "keys"
    first = begun(kit, KeyFile(path), Checkpoint(epoch=Epoch(1)))
    content = path.read_bytes()
    assert begun(kit, KeyFile(path), first).position == first.position
    path.unlink()
    with pytest.raises(ConfigurationError, match="those are missing") as stopped:
        begun(kit, KeyFile(path), first)
    assert "give each policy with key_by a new id" in str(stopped.value.remedy)
    assert not path.exists()
    KeyFile(path).create()
    with pytest.raises(ConfigurationError, match="the file has others"):
        begun(kit, KeyFile(path), first)
    path.write_bytes(content)
    begun(kit, KeyFile(path), first)
    path.unlink()
    begun(kit, KeyFile(path), first, "k3")
    assert path.read_bytes() != content
