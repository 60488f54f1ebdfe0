"""A fleet's register in a bucket: members on several machines, without a shared folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.servers.objects import ObjectServer
from tests.support.fleet.simulated import report

from cdcflow.config import Fleet, FleetRegister
from cdcflow.daemon.fleet_process import look_once
from cdcflow.errors import CdcflowError
from cdcflow.fleet.registers import ReportBucket, ReportRegister, object_name
from cdcflow.fleet.report import REPORT_BYTES_MAX
from cdcflow.wiring.fleets import fleet_register


def settings(server: ObjectServer, bucket: str, **other: str) -> FleetRegister:
    given = server.objects(bucket, "fleet").model_dump(mode="json")
    objects = {name: given[name] for name in ("endpoint", "region", "access_key", "secret_key")}
    return FleetRegister.model_validate({"at": given["url"], "objects": {**objects, **other}})


def publish(register: ReportRegister, name: str) -> str:
    one = report(name)
    key = object_name(name, one.kind, one.place)
    register.publish(key, one.to_bytes())
    return key


def test_members_of_a_bucket_are_shown_and_changes_are_read(
    object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what has changed is fetched: 200 members publish four times a minute, and requests cost money."""
    place = settings(object_server, "fleet-members")
    register = fleet_register(place)
    assert isinstance(register, ReportBucket)
    keys = [publish(register, name) for name in ("a", "b", "c")]
    register.publish("large.capture.0.json", b"x" * (REPORT_BYTES_MAX + 1))
    register.publish("below/d.capture.0.json", b"{}")
    fetched: list[str] = []
    get = register._bucket.get

    def counting(name: str) -> bytes:
        fetched.append(name)
        return get(name)

    monkeypatch.setattr(register._bucket, "get", counting)
    first = register.read()
    assert sorted(first) == sorted([*keys, "large.capture.0.json"])
    assert first["large.capture.0.json"] is None
    assert sorted(fetched) == sorted(keys)
    fetched.clear()
    publish(register, "b")
    register.remove(keys[0])
    register.remove(keys[0])
    assert len(register.read()) == 3
    assert fetched == [keys[1]]
    found, outages = look_once(Fleet(registers=(place,)))
    assert (outages, [(one.name, one.state) for one in found]) == (
        [],
        [("large", "unknown"), ("b", "capturing"), ("c", "capturing")],
    )


def test_bucket_that_cannot_be_read_is_an_outage(object_server: ObjectServer, tmp_path: Path) -> None:
    """A wrong key is not an empty fleet; the text names the setting and shows no key."""
    wrong = tmp_path / "key"
    wrong.write_text("c4n4ry-key")
    wrong.chmod(0o600)
    place = settings(object_server, "fleet-refused", secret_key=f"${{file:{wrong}}}")
    found, outages = look_once(Fleet(registers=(place,)))
    assert found == []
    assert len(outages) == 1
    assert "c4n4ry" not in outages[0].reason
    with pytest.raises(CdcflowError):
        fleet_register(place).publish("a.capture.0.json", b"1")
