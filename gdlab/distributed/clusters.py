"""Start engines, or use engines that run: `with cluster(n=4) as four: study.run(1000, feed=feed, on=four)`."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from gdlab.base.blas import THREADS
from gdlab.base.errors import ArgumentError, DistributedUnavailableError, SessionError
from gdlab.base.words import clipped, grid, listed, nbytes, plural
from gdlab.devices.choose import checked_kind
from gdlab.distributed import engine as remote
from gdlab.distributed.engine import Description, hardware_adapters

if TYPE_CHECKING:
    from gdlab.distributed.calibration import Calibration
    from gdlab.distributed.run_record import DistributedRun
    from gdlab.session import Session
    from gdlab.study.study import Study
    from gdlab.train.data import DataLoader

EngineKind = Literal["mpi", "local"]
KINDS = ("mpi", "local")
INSTALL = 'pip install "gdlab[distributed]"'
LOG_LINES = 12  # of the engines' own log, in an error


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine of a cluster: its number, its place, its device and the reason for it. `id`: that of ipyparallel."""

    rank: int
    id: int
    host: str
    pid: int
    device: str
    reason: str
    threads: int
    versions: tuple[tuple[str, str], ...]
    memory: int
    adapter: str = ""

    @property
    def device_words(self) -> str:
        """Return the device as a person reads it."""
        return self.adapter or self.device


class Cluster:
    """Engines that are ready, in the order of their ranks; a context manager, which ends those that it started.

    `view`: ipyparallel's view of all engines, for `%%px` and everything else that it offers. `client`: its client.
    """

    def __init__(self, started: StartedEngines, engines: tuple[Engine, ...], devices: Sequence[str] | None) -> None:
        self._started, self.engines, self._devices = started, engines, devices
        self.restarts = 0
        self.calibration: Calibration | None = None  # of `calibrate`
        self._end = weakref.finalize(self, started.stop)

    # life -------------------------------------------------------------------------------------------------------------
    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the engines that `cluster` started; engines that ran before go on. Idempotent."""
        self._end()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return not self._end.alive

    @property
    def owned(self) -> bool:
        """Whether `cluster` started these engines."""
        return self._started.cluster is not None

    def restart(self) -> None:
        """Start a new set of engines in place of the old one."""
        self.check_open("restart")
        if not self.owned:
            raise SessionError("cluster", "restart", "engines that ran before", "engines that cluster() started")
        old, n = self._started, len(self)
        self._end()
        self._started = _started(n, old.kind, old.timeout)
        self._end = weakref.finalize(self, self._started.stop)
        self.engines = _ready(self._started, self._devices)
        self.restarts += 1

    def check_open(self, where: str) -> None:
        """Raise `SessionError` once the cluster is closed."""
        if self.closed:
            raise SessionError(where, "cluster", "a closed one", "an open one: cluster(…) starts another")

    def check_alive(self, where: str) -> None:
        """Raise `SessionError` once the cluster is closed, or if one of its engines has ended."""
        self.check_open(where)
        if dead := self.died():
            names = listed([str(engine.rank) for engine in dead])
            again = "all alive" + (": its restart() starts them again" if self.owned else "")
            raise SessionError(where, "cluster", f"one whose engines {names} of {len(self)} have ended", again)

    # parts ------------------------------------------------------------------------------------------------------------
    def __len__(self) -> int:
        return len(self.engines)

    @property
    def kind(self) -> EngineKind:
        """Return `mpi` where the engines are ranks of one MPI set, else `local`."""
        return self._started.kind

    @property
    def client(self) -> Any:
        """Return ipyparallel's client."""
        self.check_open("client")
        return self._started.client

    @property
    def view(self) -> Any:
        """Return ipyparallel's view of all engines, in the order of their ranks."""
        return self.client[[engine.id for engine in self.engines]]

    def run(self, study: Study, steps: int, **settings: Any) -> DistributedRun:
        """Run a study on all engines; `study.run(steps, on=cluster)` calls this."""
        from gdlab.distributed.run import run_on

        return run_on(self, study, steps, **settings)

    def train(
        self, session: Session, loader: DataLoader, epochs: range, tell: Callable[[Sequence[float]], None]
    ) -> None:
        """Train a session over epochs of a loader on all engines; `Trainer(session, on=cluster)` calls this."""
        from gdlab.distributed.training import train_on

        train_on(self, session, loader, epochs, tell)

    def died(self) -> list[Engine]:
        """Return the engines that have ended, as far as this machine and the controller can tell."""
        return self._started.died(self.engines)

    def log(self) -> str:
        """Return the last lines that the engines wrote to their log."""
        return self._started.log()

    # telling ----------------------------------------------------------------------------------------------------------
    def __repr__(self) -> str:
        hosts = len({engine.host for engine in self.engines})
        kinds: dict[str, int] = {}
        for engine in self.engines:
            kinds[engine.device_words] = kinds.get(engine.device_words, 0) + 1
        devices = ", ".join(name if count == 1 else f"{name} ×{count}" for name, count in kinds.items())
        dead = 0 if self.closed else len(self.died())
        state = ", closed" if self.closed else f", {dead} of them ended" if dead else ""
        return f"<Cluster: {plural(len(self), 'engine')} on {plural(hosts, 'host')}, {devices}{state}>"

    def rows(self) -> list[tuple[str, ...]]:
        """Return the table of engines: a head, then a row per engine."""
        head = ("engine", "host", "process", "device", "why", "threads", "versions", "memory")
        return [head, *(_row(engine) for engine in self.engines)]

    def __str__(self) -> str:
        head, *rows = self.rows()
        return f"{self!r}\n" + "\n".join(grid(head, rows))

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {"text/plain": str(self), "text/html": html_table(repr(self), self.rows(), right=(0, 2, 5, 7))}


def html_table(caption: str, rows: Sequence[Sequence[str]], right: Collection[int]) -> str:
    """Return a table, whose first row is its head, as HTML; columns in `right` hold numbers, the others text."""
    sides = ["right" if k in right else "left" for k in range(len(rows[0]))]

    def line(row: Sequence[str], tag: str) -> str:
        cells = zip(row, sides, strict=True)
        return "".join(f'<{tag} style="text-align:{side}">{escape(cell)}</{tag}>' for cell, side in cells)

    lines = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows[1:])
    return f"<table><caption>{escape(caption)}</caption><tr>{line(rows[0], 'th')}</tr>{lines}</table>"


def _row(engine: Engine) -> tuple[str, ...]:
    versions = " ".join(f"{name} {version}" for name, version in engine.versions)
    device = f"{engine.device} ({engine.adapter})" if engine.adapter else engine.device
    return (
        str(engine.rank), engine.host, str(engine.pid), device, engine.reason, str(engine.threads), versions,
        nbytes(engine.memory),
    )  # fmt: skip


def cluster(
    n: int | None = None, engines: EngineKind = "mpi", profile: str | None = None, client: Any = None,
    devices: Sequence[str] | None = None, timeout: float = 60,
) -> Cluster:  # fmt: skip
    """Start `n` engines on this host, or use those of a `profile`, or of an ipyparallel `Client` or `Cluster`.

    `n=None`: one per hardware adapter, else one per two cores. `devices`: one per engine, in place of the choice of
    gdlab: engine r of a host takes hardware adapter r modulo their number, else cpu with its share of the cores.
    Without the packages it needs, `DistributedUnavailableError` names the command that installs them.
    """
    _checked(n, engines, devices, timeout)
    parallel()
    if profile is None and client is None:
        started = _started(n or _default_count(), engines, timeout)
    else:
        started = _connected(profile, client, n, timeout)
    try:
        return Cluster(started, _ready(started, devices), devices)
    except BaseException:
        started.stop()
        raise


def parallel() -> Any:
    """Return the module ipyparallel; without it raise the error with the command that installs it."""
    try:
        import ipyparallel
    except ImportError:
        raise DistributedUnavailableError("cluster", "ipyparallel", "not installed", INSTALL) from None
    return ipyparallel


def _checked(n: int | None, engines: str, devices: Sequence[str] | None, timeout: float) -> None:
    if n is not None and (not isinstance(n, int) or isinstance(n, bool) or n < 1):
        raise ArgumentError("cluster", "n", repr(n), "an int ≥ 1, or None")
    if engines not in KINDS:
        raise ArgumentError("cluster", "engines", repr(engines), '"mpi" or "local"; others by profile=')
    if not isinstance(timeout, (int, float)) or not timeout > 0:
        raise ArgumentError("cluster", "timeout", repr(timeout), "seconds > 0")
    for device in devices or ():
        checked_kind(device)
    if devices is not None and n is not None and len(devices) != n:
        raise ArgumentError("cluster", "devices", plural(len(devices), "device"), f"one for each of {n} engines")


def _default_count() -> int:
    return len(hardware_adapters()) or max(1, (os.cpu_count() or 1) // 2)


# starting -------------------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class StartedEngines:
    """A controller and the engines that were started here (`cluster`), or only a connection to others (None). `lent`:
    the client is the caller's."""

    kind: EngineKind
    client: Any
    cluster: Any
    timeout: float
    guard: Any = None
    lent: bool = False

    def stop(self) -> None:
        """End the engines that were started here, and the connection."""
        if not self.lent:
            with contextlib.suppress(Exception):
                self.client.close()
        if self.cluster is not None:
            _stopped(self.cluster)
        if self.guard is not None:
            self.guard.kill()
            self.guard.wait()
            with contextlib.suppress(OSError):
                self.guard.stdin.close()

    def died(self, engines: Sequence[Engine]) -> list[Engine]:
        """Return the engines whose processes have ended, or that the controller has given up."""
        known, here = set(self.client.ids), remote.host_name()
        return [e for e in engines if e.id not in known or (e.host == here and not remote.alive(e.pid))]

    def log(self) -> str:
        """Return the end of the engines' log, of engines that were started here."""
        return "" if self.cluster is None else _log_of(self.cluster)


def _started(n: int, engines: EngineKind, timeout: float) -> StartedEngines:
    """Start a controller and engines on this host, and wait for them."""
    ipyparallel = parallel()
    extra: dict[str, Any] = {"environment": _environment(n)}
    if engines == "mpi":
        extra |= {"mpi_cmd": [_mpiexec()], "mpi_args": _mpi_arguments(n)}
    made = ipyparallel.Cluster(n=n, engines=engines, log_level=50, shutdown_atexit=False)
    made.delay, client = 0.0, None
    try:
        with _one_session():
            made.start_controller_sync()
            guard = _guard(made.controller.pid, made.cluster_file)
            made.start_engines_sync(n, **extra)
        launcher = next(iter(made.engines.values()))
        for pid in _processes(launcher):
            _watch(guard, pid)
        client = made.connect_client_sync()
        client.wait_for_engines(n, timeout=timeout)
    except BaseException as error:
        log = _log_of(made)
        StartedEngines(engines, client, made, timeout, locals().get("guard")).stop()
        if isinstance(error, Exception):
            given = f"{type(error).__name__} after at most {timeout:g} s; their log ends with\n{log}"
            raise SessionError(
                "cluster", plural(n, "engine"), given, "engines that start; timeout= waits longer"
            ) from error
        raise
    return StartedEngines(engines, client, made, timeout, guard)


@contextlib.contextmanager
def _one_session() -> Iterator[None]:
    """Let ipyparallel start processes in this session inside the block, each in a process group of its own, so that no
    Ctrl-C is meant for them. It gives each a session, and Linux shares the cores out by sessions first (autogroup): on
    two busy cores Linux 6.18 gave engines everything and the notebook that wanted to end their run nothing for 13 s.
    """
    if os.name == "nt":
        yield
        return
    from ipyparallel.cluster import launcher

    kept = launcher.Popen

    def start(*command: Any, **settings: Any) -> Any:
        return kept(*command, **{**settings, "start_new_session": False, "process_group": 0})

    launcher.Popen = start
    try:
        yield
    finally:
        launcher.Popen = kept


def _connected(profile: str | None, given: Any, n: int | None, timeout: float) -> StartedEngines:
    """Connect to engines that are running."""
    ipyparallel = parallel()
    if isinstance(given, ipyparallel.Cluster):
        client = given.connect_client_sync()
    elif isinstance(given, ipyparallel.Client):
        client = given
    elif given is None:
        try:
            client = ipyparallel.Client(profile=profile, timeout=timeout)
        except (OSError, ipyparallel.error.TimeoutError) as error:
            wanted = f"a running one: ipcluster start --profile={profile}"
            raise SessionError("cluster", f"profile {profile}", " ".join(str(error).split()), wanted) from error
    else:
        raise ArgumentError("cluster", "client", type(given).__name__, "an ipyparallel Client or Cluster")
    started = StartedEngines("local", client, None, timeout, lent=client is given)
    try:
        client.wait_for_engines(n or 1, timeout=timeout)
        ranks = call(client[:], remote.mpi_rank)
    except BaseException as error:
        running = plural(len(client.ids), "engine")
        started.stop()
        if isinstance(error, ipyparallel.error.TimeoutError):
            wanted = f"{n or 1}: start more, or timeout= waits longer"
            raise SessionError("cluster", "n", f"{running} after {timeout:g} s", wanted) from error
        raise
    started.kind = "mpi" if all(size == len(ranks) > 0 for _, size in ranks) else "local"
    return started


def _mpiexec() -> str:
    """Return the `mpiexec` beside this Python, which pip installs, else the one on the PATH."""
    beside = os.path.dirname(sys.executable)
    found = shutil.which("mpiexec", path=beside) or shutil.which("mpiexec")
    if found is None:
        raise DistributedUnavailableError("cluster", "mpiexec", "none on the path", f"{INSTALL} openmpi")
    try:
        import mpi4py  # noqa: F401
    except ImportError:
        raise DistributedUnavailableError("cluster", "mpi4py", "not installed", INSTALL) from None
    return found


def _mpi_arguments(n: int) -> list[str]:
    """Return the arguments that Open MPI needs for more engines than cores; BLAS threads are not bound to one core."""
    if "Open MPI" not in _mpi_version():
        return []
    return ["--bind-to", "none", *(["--map-by", ":OVERSUBSCRIBE"] if n > _cores() else [])]


def _mpi_version() -> str:
    done = subprocess.run([_mpiexec(), "--version"], capture_output=True, text=True, timeout=60, env=_as_root({}))
    return done.stdout + done.stderr


def _cores() -> int:
    return os.cpu_count() or 1


def _as_root(more: dict[str, str]) -> dict[str, str]:
    """Return this environment with `more`, and with the variables that let Open MPI start as root if this process is
    root."""
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {**os.environ, **(root if hasattr(os, "getuid") and os.getuid() == 0 else {}), **more}


def _environment(n: int) -> dict[str, str]:
    """Return the environment of engines: each gets its share of the cores, and MPI uses shared memory alone on one
    host."""
    share = str(max(1, _cores() // n))
    more = {name: os.environ.get(name, share) for name in THREADS}
    more |= {"OMPI_MCA_btl": os.environ.get("OMPI_MCA_btl", "self,sm")}
    if n >= _cores():  # a rank that waits would take the core from one that works
        more["OMPI_MCA_mpi_yield_when_idle"] = "1"
    return _as_root(more | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)})


# ending ---------------------------------------------------------------------------------------------------------------
def _guard(pid: int, file: str) -> Any:
    """Start the process that ends the others when this one has ended, for whatever reason."""
    command = [sys.executable, "-m", "gdlab.distributed.guard", str(os.getpid()), file]
    guard = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True,
        env=_environment(1), start_new_session=True,
    )  # fmt: skip
    _watch(guard, pid)
    return guard


def _watch(guard: Any, pid: int) -> None:
    guard.stdin.write(f"{pid}\n")
    guard.stdin.flush()


def _processes(launcher: Any) -> list[int]:
    """Return the processes that a launcher started: `mpiexec`, or all engines."""
    each = getattr(launcher, "launchers", None)
    return [one.pid for one in each.values()] if each else [launcher.pid]


def _stopped(made: Any) -> None:
    """End engines and controller in any state."""
    from gdlab.distributed.guard import end

    pids = [pid for launcher in made.engines.values() for pid in _processes(launcher) if pid]
    pids += [made.controller.pid] if made.controller is not None else []
    end(pids)
    for stop in (made.stop_engines_sync, made.stop_controller_sync, made.remove_cluster_file):
        with contextlib.suppress(Exception):
            stop()


def _log_of(made: Any) -> str:
    """Return the end of the engines' log. When they have ended, ipyparallel removes the file and keeps its text."""
    lines: list[str] = []
    for launcher in made.engines.values():
        for one in (getattr(launcher, "launchers", None) or {0: launcher}).values():
            try:
                with open(one.output_file, encoding="utf-8", errors="replace") as file:
                    text = file.read()
            except OSError:
                text = one.get_output()
            lines += text.splitlines()[-LOG_LINES:]
    return clipped("\n".join(lines[-2 * LOG_LINES :]), 2000, 24) or "(empty)"


# engines --------------------------------------------------------------------------------------------------------------
def _ready(started: StartedEngines, devices: Sequence[str] | None) -> tuple[Engine, ...]:
    """Return the engines in order, each with its device; raise if their versions differ from those here."""
    client = started.client
    ids = list(client.ids)
    told: list[Description] = call(client[ids], remote.describe, started.kind == "mpi")
    pairs = sorted(zip(ids, told, strict=True), key=lambda pair: (pair[1].rank, pair[0]))
    described = [replace(each, rank=rank) for rank, (_, each) in enumerate(pairs)]
    check_versions(described)
    if devices is not None and len(devices) != len(described):
        raise ArgumentError(
            "cluster", "devices", plural(len(devices), "device"), f"one for each of {len(described)} engines"
        )
    placed = place(described, devices)
    found = tuple(
        Engine(d.rank, id, d.host, d.pid, device, reason, d.threads, d.versions, d.memory, adapter)
        for (id, _), d, (device, reason, adapter) in zip(pairs, described, placed, strict=True)
    )
    for engine in found:
        call(client[engine.id], remote.take_device, engine.device)
    return found


def call(view: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function on the engines of a view and return what it returns there. Ctrl-C is raised; `apply_sync` would
    return an unfinished result in its place."""
    return view.apply_async(function, *arguments).get()


def check_versions(engines: Sequence[Description]) -> None:
    """Raise `SessionError` unless every engine has the versions of this process."""
    here = remote.versions()
    for engine in engines:
        if engine.versions != here:
            given, wanted = (", ".join(f"{name} {v}" for name, v in each) for each in (engine.versions, here))
            where = f"engine {engine.rank} on {engine.host}"
            raise SessionError("cluster", where, given, f"{wanted}, as here: install the same there")


def place(engines: Sequence[Description], devices: Sequence[str] | None = None) -> list[tuple[str, str, str]]:
    """Return (device, reason, name of the adapter) of each engine: engine r of a host takes hardware adapter r modulo
    their number, else cpu."""
    seen: dict[str, int] = {}
    found: list[tuple[str, str, str]] = []
    for engine in engines:
        local = seen[engine.host] = seen.get(engine.host, -1) + 1
        hardware = engine.adapters
        if devices is not None:
            found.append((devices[engine.rank], "asked for by devices=", ""))
        elif hardware:
            index, name = hardware[local % len(hardware)]
            reason = f"engine {local} of its host, {plural(len(hardware), 'hardware adapter')}"
            found.append((f"wgpu:{index}", reason, name))
        else:
            words = plural(engine.threads, "BLAS thread")
            found.append(("cpu", f"no hardware adapter answers; {words}", ""))
    return found
