"""Engines that run already: a profile or a client in place of a start; and who may speak to engines at all."""

from __future__ import annotations

import ast
import ipaddress
import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from engines import batches, regression
from places import REPO

from gdlab.base.errors import ArgumentError, SessionError
from gdlab.distributed import Cluster, cluster

BATCHES = batches(8)


def connection_file(two: Cluster) -> Path:
    """The file by which a client of these engines finds and convinces them."""
    started = two._started.cluster
    return Path(started.profile_dir, "security", f"ipcontroller-{started.cluster_id}-client.json")


@pytest.fixture
def laboratory(two: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The connection file of a profile `laboratory`, whose engines are those of `two`."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    file = tmp_path / "profile_laboratory" / "security" / "ipcontroller-client.json"
    file.parent.mkdir(parents=True)
    file.write_bytes(connection_file(two).read_bytes())
    return file


def check_given(made: Cluster, two: Cluster) -> None:
    """A run, a restart that is refused, and the end of the connection alone."""
    assert not made.owned and made.kind == "mpi" and repr(made) == repr(two)
    assert [engine.pid for engine in made.engines] == [engine.pid for engine in two.engines]
    study = regression()
    assert study.run(4, feed=BATCHES, init=0, sgd=0.05, on=made).state == "done" and study.session.step_count == 4
    with pytest.raises(ArgumentError, match=r"^run: resume: given 1 on engines that ran before, wanted"):
        study.run(4, feed=BATCHES, on=made, resume=1)
    with pytest.raises(SessionError, match=r"^cluster: restart: given engines that ran before"):
        made.restart()
    made.close()
    assert made.closed and "closed>" in repr(made)
    assert two.died() == [] and two.view.apply_sync(int, 7) == [7, 7]  # they go on living
    study.close()


def test_the_engines_of_a_profile_are_used(two: Cluster, laboratory: Path) -> None:
    with cluster(profile="laboratory", n=2, devices=["cpu", "cpu"]) as made:
        assert {engine.reason for engine in made.engines} == {"asked for by devices="}
        check_given(made, two)
    with pytest.raises(SessionError, match=r"^cluster: n: given 2 engines after 0\.5 s, wanted 3: start more"):
        cluster(profile="laboratory", n=3, timeout=0.5)
    with pytest.raises(SessionError, match=r"^cluster: profile nobody: .*: ipcluster start --profile=nobody"):
        cluster(profile="nobody", timeout=1)


def test_the_engines_of_a_client_or_a_cluster_are_used(two: Cluster) -> None:
    """The client stays open: it is the caller's."""
    for given in (two.client, two._started.cluster):
        check_given(cluster(client=given), two)
    with pytest.raises(ArgumentError, match=r"^cluster: client: given str, wanted an ipyparallel Client or Cluster"):
        cluster(client="127.0.0.1")


# security -------------------------------------------------------------------------------------------------------------
def listening(process: psutil.Process) -> set[tuple[str, int]]:
    """Return the addresses and ports on which a process listens."""
    return {tuple(c.laddr) for c in process.net_connections(kind="inet") if c.status == psutil.CONN_LISTEN}


def test_messages_are_signed_and_another_key_is_nobody(two: Cluster, laboratory: Path) -> None:
    known = json.loads(laboratory.read_text())
    assert known["signature_scheme"] == "hmac-sha256" and len(known["key"]) >= 32
    if os.name == "posix":
        assert stat.S_IMODE(connection_file(two).stat().st_mode) == 0o600  # for nobody else to read
    laboratory.write_text(json.dumps({**known, "key": "0" * len(known["key"])}))
    with pytest.raises(SessionError, match=r"^cluster: profile laboratory: given .*, wanted a running one"):
        cluster(profile="laboratory", timeout=1)
    assert two.view.apply_sync(int, 7) == [7, 7]


def test_engines_listen_on_the_loopback_address_alone(two: Cluster) -> None:
    """But for Open MPI's own launcher, which cannot be told; and this process, in which gdlab runs, opens no port."""
    here, open_before = psutil.Process(), listening(psutil.Process())
    regression().run(2, feed=BATCHES, init=0, sgd=0.05, on=two)
    assert listening(here) == open_before
    far = {process.name() for process in here.children(recursive=True) for ip, _ in listening(process)
           if not ipaddress.ip_address(ip).is_loopback}  # fmt: skip
    assert all(listening(psutil.Process(engine.pid)) for engine in two.engines) and far <= {"prterun"}


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Every call in gdlab that may read a pickle or open a port, among others, with its module."""
    for path in sorted((REPO / "gdlab").rglob("*.py")):
        text = path.read_text("utf-8")
        if not re.search(r"pickle|socket|zmq|asyncio", text):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call):
                yield path.relative_to(REPO).as_posix(), node


def test_what_is_unpickled_comes_in_a_signed_message() -> None:
    """Files (checkpoints, losses, points of a sweep, arrays of a loader) hold numbers and no pickles. One module reads
    pickles, which its functions get as arguments from ipyparallel; nothing binds a socket."""
    read, bound = set(), set()
    for where, call in calls():
        name = ast.unparse(call.func)
        assert not any(keyword.arg == "allow_pickle" for keyword in call.keywords), where
        if name.rpartition(".")[2] in ("load", "loads", "Unpickler") and "pickle" in name:
            read.add(where)
        if name in ("socket.socket", "socket.create_server", "zmq.Context", "asyncio.start_server"):
            bound.add(where)
    assert read == {"gdlab/distributed/engine_points.py"} and bound == set()
