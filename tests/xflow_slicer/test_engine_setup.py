"""Which engine, how it is installed, and what the user reads when something is missing.

Real Pythons, a real pip and real servers; what an installation borrows from this environment is named where it does.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import shutil
import ssl
import stat
import subprocess
import sys
import sysconfig
import threading
import time
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from service.phantom_server import Served, serving
from XFlowSlicerLib import engine_setup, managed_environment, pythons
from XFlowSlicerLib.engine_setup import (
    EngineChoice,
    EngineSetupError,
    SetupProgress,
    TorchBuild,
    XFlowSource,
    classify,
    connect,
    from_settings,
    make_environment,
    managed_state,
    reason_of,
    to_settings,
)
from XFlowSlicerLib.reasons import KINDS_OF_REASON

from xflow_core import __version__
from xflow_core.domain.errors import CallError, Cancelled, EngineError, ServiceError
from xflow_core.service.client import Client
from xflow_core.service.local import LocalEngine
from xflow_core.service.protocol import Capabilities, protocol_mismatch

ROOT = Path(__file__).resolve().parents[2]
NOWHERE = "http://127.0.0.1:9/simple"  # nothing listens there
TOKEN = "a-token-of-the-hospital-0123456789"


def ignore(_: object) -> None:
    pass


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This user's data and logs, for a test."""
    for name in ("XDG_DATA_HOME", "XDG_STATE_HOME", "LOCALAPPDATA", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))


def plain_pip(**more: str) -> dict[str, str]:
    """Variables under which pip knows no index but the one that is named, and reaches none when none is."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        kept.pop(name, None)
        kept.pop(name.lower(), None)
    return {**kept, "PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": NOWHERE, **more}


# The choice.


@pytest.mark.parametrize(
    "choice",
    [
        EngineChoice.this_computer(),
        EngineChoice.this_computer("/opt/xflow/bin/python"),
        EngineChoice.this_slicer(),
        EngineChoice.server("https://xflow.hospital:8443/engine/", certificate="/etc/hospital.pem"),
    ],
)
def test_a_choice_is_remembered(choice: EngineChoice) -> None:
    values = to_settings(choice)
    assert all(isinstance(value, str) for value in values.values())
    assert from_settings(json.loads(json.dumps(values))) == choice


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"engine": "a toaster"},
        {"engine": "server", "url": "ftp://x"},
        {"engine": 7, "url": None},
        {"engine": "server"},
    ],
)
def test_settings_that_make_no_choice_give_the_default(values: dict[str, object]) -> None:
    assert from_settings(values) == EngineChoice.this_computer()


@pytest.mark.parametrize("keep", [False, True])
def test_the_token_is_in_no_settings_value_and_no_repr(keep: bool) -> None:
    choice = EngineChoice.server("https://xflow.hospital", TOKEN, keep_token=keep)
    assert TOKEN not in json.dumps(to_settings(choice)) and TOKEN not in repr(choice) and TOKEN not in choice.label


def test_a_kept_token_lies_in_a_file_of_the_user_s_own() -> None:
    choice = EngineChoice.server("https://xflow.hospital", f" {TOKEN}\n", keep_token=True)
    path = engine_setup.store_token(choice)
    assert path == engine_setup.token_file("https://xflow.hospital/")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert from_settings(to_settings(choice)) == choice and choice.token == TOKEN
    assert engine_setup.store_token(EngineChoice.server("https://xflow.hospital", TOKEN)) is None
    assert not path.exists(), "a token that is not to be kept is forgotten"
    assert from_settings(to_settings(choice)).token == ""


def test_a_kept_token_that_others_can_read_is_not_used() -> None:
    choice = EngineChoice.server("https://xflow.hospital", TOKEN, keep_token=True)
    path = engine_setup.store_token(choice)
    assert path is not None
    path.chmod(0o644)
    assert from_settings(to_settings(choice)).token == ""


@pytest.mark.parametrize(
    "url",
    [
        "",
        "xflow.hospital",
        "file:///etc/passwd",
        "https://",
        "https://a b",
        "https://h:x",
        "https://me:secret@h",
        "http://h?q=1",
    ],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(CallError) as refused:
        EngineChoice.server(url)
    assert "secret" not in str(refused.value)


def test_an_unencrypted_way_to_another_machine_is_said() -> None:
    assert "unencrypted to xflow.hospital" in str(EngineChoice.server("http://xflow.hospital:80").caution)
    for url in ("https://xflow.hospital", "http://127.0.0.1:4000", "http://localhost:4000", "http://[::1]:4000"):
        assert EngineChoice.server(url).caution is None


# Plain words. The texts are those of pip 23 to 26, venv, torch and Windows.


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("no_space", "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"),
        ("no_space", "OSError: [WinError 112] There is not enough space on the disk"),
        (
            "proxy_password",
            "WARNING: Retrying (Retry(total=0)) after connection broken by 'ProxyError('Cannot connect to proxy.', "
            "OSError('Tunnel connection failed: 407 Proxy Authentication Required'))': /simple/torch/\n"
            "ERROR: No matching distribution found for torch",
        ),
        (
            "proxy",
            "WARNING: Retrying after connection broken by 'ProxyError('Cannot connect to proxy.', NewConnectionError("
            "'<HTTPSConnection>: Failed to establish a new connection: [Errno 111] Connection refused'))': /simple/a/\n"
            "ERROR: No matching distribution found for xflow-core",
        ),
        (
            "certificate",
            "Could not fetch URL https://h/simple/torch/: There was a problem confirming the ssl certificate: "
            "(Caused by SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify "
            "failed: self-signed certificate')))\nERROR: No matching distribution found for torch",
        ),
        ("no_network", "Failed to establish a new connection: [Errno -2] Name or service not known'): /simple/torch/"),
        ("no_network", "[Errno 11001] getaddrinfo failed')\nERROR: No matching distribution found for torch"),
        ("no_network", "HTTPSConnectionPool(host='h', port=443): Read timed out. (read timeout=30)"),
        (
            "no_torch",
            "ERROR: Could not find a version that satisfies the requirement torch>=2.4 (from versions: 2.0.0, 2.2.2)\n"
            "ERROR: No matching distribution found for torch>=2.4",
        ),
        (
            "no_package",
            "ERROR: Could not find a version that satisfies the requirement xflow-core[engine]==0.2.* (from versions: "
            "none)\nERROR: No matching distribution found for xflow-core[engine]==0.2.*",
        ),
        ("no_package", "ERROR: No matching distribution found for python-gdcm>=3.0.24"),
        ("old_python", "ERROR: Package 'xflow-core' requires a different Python: 3.10.1 not in '>=3.11'"),
        ("no_venv", "The virtual environment was not created successfully because ensurepip is not available."),
        ("not_writable", "ERROR: Could not install packages due to an OSError: [Errno 13] Permission denied: 'x'"),
        ("damaged", "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE."),
        ("damaged", "pip._vendor.urllib3.exceptions.IncompleteRead: IncompleteRead(10 bytes read, 20 more expected)"),
        ("long_path", "HINT: .. since this system does not have Windows Long Path support enabled."),
        ("wrong_torch", 'OSError: [WinError 126] The specified module could not be found. Error loading "c10.dll"'),
        ("wrong_torch", "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory"),
        ("wrong_torch", "ModuleNotFoundError: No module named 'torch'"),
    ],
)  # fmt: skip
def test_what_the_tools_write_is_said_in_plain_words(kind: str, text: str) -> None:
    reason = classify(f"Collecting torch\n{text}\n")
    assert reason.kind == kind
    assert reason.sentence.endswith(".") and reason.remedy.endswith(".")
    assert not any(word in str(reason) for word in ("Errno", "Traceback", "Error("))


def test_what_is_not_known_is_told_in_its_own_last_words() -> None:
    reason = classify("Collecting a\nERROR: the moon is in the wrong place\nhint: wait\n")
    assert reason.kind == "failed" and "the moon is in the wrong place" in reason.sentence


def test_every_sign_has_a_kind_of_reason() -> None:
    from XFlowSlicerLib.reasons import _SIGNS

    assert {sign[0] for sign in _SIGNS} <= KINDS_OF_REASON


# The Pythons of this computer.


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def old_python(path: Path) -> Path:
    """It answers as a Python 3.8 does."""
    said = {"version": [3, 8, 10], "prefix": "/x", "bits": 64, "can_make": True, "xflow": None, "torch": None}
    return script(path, f"echo '{json.dumps(said)}'")


def test_the_pythons_of_this_computer_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = tmp_path / "bin"
    places.mkdir()
    script(places / "python3.12", f'exec {sys.executable} "$@"')
    old_python(places / "python3.11")
    script(places / "python3.13", "exit 1")
    monkeypatch.setattr(pythons, "_PLACES", {})
    found = engine_setup.find_pythons(plain_pip(PATH=f"{places}:/bin:/nowhere"))
    assert found[0].path == places / "python3.12"
    assert found[0].version == tuple(sys.version_info[:3]) and found[0].has_engine
    assert f"XFlow {found[0].xflow}" in found[0].sentence
    assert not {"python3.11", "python3.13"} & {python.path.name for python in found if python.path.parent == places}


def test_a_python_that_is_none_is_said(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", script(tmp_path / "no-python", "echo hello")):
        with pytest.raises(EngineSetupError) as refused:
            engine_setup.look_at(path)
        assert refused.value.reason.kind == "no_python" and str(path) in str(refused.value)


def test_slicer_s_own_python_makes_no_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path / "python3", f'exec {sys.executable} "$@"')
    monkeypatch.setattr(pythons, "_PLACES", {"linux": (f"{tmp_path}/PythonSlicer", f"{tmp_path}/python3")})
    os.symlink(tmp_path / "python3", tmp_path / "PythonSlicer")
    found = engine_setup.find_pythons(plain_pip(PATH="/nowhere"))
    assert [python.path.name for python in found] == ["python3"]


def test_a_computer_without_python_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pythons, "_PLACES", {})
    with pytest.raises(EngineSetupError) as refused:
        make_environment(folder=tmp_path / "engine", environment=plain_pip(PATH="/nowhere"))
    assert refused.value.reason.kind == "no_python" and "python.org" in refused.value.reason.remedy
    assert not managed_state(tmp_path / "engine").made and not managed_state(tmp_path / "engine").unfinished


@pytest.mark.parametrize("old", [True, False])
def test_a_python_that_cannot_make_the_environment_is_said(tmp_path: Path, old: bool) -> None:
    python = old_python(tmp_path / "python")
    if not old:
        script(python, f'exec {sys.executable} "$@" | sed s/"can_make\\": true"/"can_make\\": false"/')
    with pytest.raises(EngineSetupError) as refused:
        make_environment(folder=tmp_path / "engine", python=python)
    assert refused.value.reason.kind == ("old_python" if old else "no_venv")


# The managed environment.


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This checkout as a wheel, packed by hand: to build it takes longer than all of these tests do."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = f"xflow_core-{__version__}.dist-info"
    needs = [f"Requires-Dist: {need}" for need in project["dependencies"]]
    needs += ["Provides-Extra: engine"]
    needs += [f'Requires-Dist: {need}; extra == "engine"' for need in project["optional-dependencies"]["engine"]]
    about = "\n".join(["Metadata-Version: 2.1", "Name: xflow-core", f"Version: {__version__}", *needs]) + "\n"
    path = tmp_path_factory.mktemp("wheel") / f"xflow_core-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as packed:
        for file in sorted((ROOT / "xflow_core").rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                packed.write(file, file.relative_to(ROOT))
        packed.writestr(f"{info}/METADATA", about)
        packed.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in [*packed.namelist(), f"{info}/RECORD"]))
    return path


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installation that stopped before torch: a real environment with pip, marked as unfinished. It replaced
    one that was cut off before there was a pip."""
    folder = tmp_path_factory.mktemp("begun") / "engine with a space"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    (folder / "xflow-environment.json").write_text('{"state": "making"}')
    stop = threading.Event()

    def watch(progress: SetupProgress) -> None:
        if progress.step == 3:
            stop.set()

    with pytest.raises(Cancelled):
        make_environment(
            folder=folder, python=sys.executable, environment=plain_pip(), watch=watch, cancelled=stop,
            log=folder.parent / "setup.log",
        )  # fmt: skip
    return folder


@pytest.fixture
def unfinished(begun: Path, tmp_path: Path) -> Path:
    """A copy, for a test to go on with."""
    shutil.copytree(begun, tmp_path / "engine", symlinks=True)
    return tmp_path / "engine"


@contextlib.contextmanager
def answering(answer: Callable[[Any], None], tls: Path | None = None) -> Iterator[str]:
    """A server on this machine whose every answer is ``answer``'s; its ``host:port``."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        do_CONNECT = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if tls is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def wants_a_password(request: Any) -> None:
    request.send_response(407, "Proxy Authentication Required")
    request.send_header("Proxy-Authenticate", 'Basic realm="hospital"')
    request.send_header("Content-Length", "0")
    request.end_headers()


def has_nothing(request: Any) -> None:
    request.send_error(404)


def running_with(word: str) -> list[str]:
    """The command lines of this machine that name something."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append(path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"))
    return [line for line in found if word in line]


def failing(folder: Path, variables: dict[str, str], **more: Any) -> EngineSetupError:
    """Go on with the installation, which must fail; what was there stays, and does not count as made."""
    with pytest.raises(EngineSetupError) as failed:
        make_environment(folder=folder, environment=variables, **more)
    state = managed_state(folder)
    assert state.unfinished and not state.made and state.python.exists()
    return failed.value


def test_a_whole_installation(unfinished: Path, wheel: Path) -> None:
    """A real environment, pip and wheel; torch and the other libraries are borrowed from the tests' environment by
    PYTHONPATH, so that nothing is downloaded. It goes on where an earlier one stopped."""
    variables = plain_pip(PIP_NO_INDEX="1", PYTHONPATH=sysconfig.get_paths()["purelib"])
    heard: list[SetupProgress] = []
    source = XFlowSource.local(wheel)
    state = make_environment(folder=unfinished, source=source, environment=variables, watch=heard.append)
    assert state.made and not state.unfinished and state == managed_state(unfinished)
    assert state.xflow == __version__ and state.torch and "cpu" in state.devices
    assert [progress.step for progress in heard if not progress.line] == [1, 2, 3, 4, 5]
    assert heard[-1].steps == 5 and heard[-1].doing == "Checking the engine"
    assert any(wheel.name in progress.line for progress in heard)
    # It is the environment's own XFlow, not the borrowed one.
    where = "import xflow_core; print(xflow_core.__file__)"
    said = subprocess.run([state.python, "-I", "-c", where], capture_output=True, text=True, cwd="/")
    assert said.stdout.startswith(str(unfinished / "venv"))
    engine_setup.remove_environment(unfinished)
    assert not managed_state(unfinished).made and not (unfinished / "venv").exists()


def test_a_stopped_installation_is_gone_on_with(begun: Path) -> None:
    state = managed_state(begun)
    assert state.unfinished and not state.made and state.python.exists()
    assert subprocess.run([state.python, "-m", "pip", "--version"], capture_output=True).returncode == 0
    assert "goes on from there" in state.sentence


def test_without_a_network(begun: Path) -> None:
    error = failing(begun, plain_pip())
    assert error.reason.kind == "no_network" and "folder or wheel" in error.reason.remedy


def test_behind_a_proxy_that_asks_for_a_password(begun: Path) -> None:
    with answering(wants_a_password) as proxy:
        variables = plain_pip(PIP_INDEX_URL="https://index.invalid/simple", HTTPS_PROXY=f"http://me:secret@{proxy}")
        error = failing(begun, variables)
    assert error.reason.kind == "proxy_password" and "HTTPS_PROXY" in error.reason.remedy
    assert "secret" not in engine_setup.setup_log().read_text() + str(error)


def test_with_a_certificate_that_is_not_trusted(begun: Path, tmp_path: Path) -> None:
    made = tmp_path / "pair.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout key.pem -out crt.pem"
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    made.write_bytes((tmp_path / "key.pem").read_bytes() + (tmp_path / "crt.pem").read_bytes())
    with answering(has_nothing, made) as host:
        assert failing(begun, plain_pip(PIP_INDEX_URL=f"https://{host}/simple")).reason.kind == "certificate"
        choice = EngineChoice.server(f"https://{host}", TOKEN)
        with pytest.raises(EngineSetupError) as refused:
            engine_setup.test_server(choice)
    assert refused.value.reason.kind == "certificate"


def test_with_an_index_that_has_no_torch(begun: Path) -> None:
    with answering(has_nothing) as host:
        error = failing(begun, plain_pip(), torch=TorchBuild("cpu", f"http://{host}/whl"))
    assert error.reason.kind == "no_torch"


def test_with_a_full_disk(tmp_path: Path) -> None:
    """A limit on the size of a file stands for the end of the disk; what was begun is removed."""
    program = f"""
from XFlowSlicerLib.engine_setup import EngineSetupError, make_environment
try:
    make_environment(folder={str(tmp_path / "engine")!r}, python={sys.executable!r})
except EngineSetupError as problem:
    print(problem.reason.kind, problem.reason.remedy)
"""
    variables = plain_pip(PYTHONPATH=os.pathsep.join((str(ROOT / "XFlowSlicer"), str(ROOT))))
    command = ["sh", "-c", f'ulimit -f 200; exec "{sys.executable}" -c "$0"', program]
    said = subprocess.run(command, env=variables, capture_output=True, text=True)
    assert said.stdout.startswith("no_space ") and "Make room" in said.stdout, said.stderr
    assert managed_state(tmp_path / "engine").unfinished
    assert not (tmp_path / "engine" / "venv").exists()


def test_too_little_room_is_said_before_the_download(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(managed_environment, "_ROOM", {"cpu": 10**18, "cuda": 10**18})
    with pytest.raises(EngineSetupError) as failed:
        make_environment(folder=tmp_path / "engine", python=sys.executable)
    assert failed.value.reason.kind == "no_space" and "GB left" in failed.value.reason.sentence
    assert not (tmp_path / "engine" / "venv").exists()


def test_an_installation_stops_within_a_second(unfinished: Path) -> None:
    """pip waits for an index that never answers; it is ended, too."""
    asked, stop = threading.Event(), threading.Event()

    def never(request: Any) -> None:
        asked.set()
        stop.wait(60)

    stopped: list[float] = []

    def install(host: str) -> None:
        with pytest.raises(Cancelled, match="goes on from there"):
            make_environment(
                folder=unfinished, environment=plain_pip(PIP_INDEX_URL=f"http://{host}/simple"), cancelled=stop
            )
        stopped.append(time.monotonic())

    with answering(never) as host:
        thread = threading.Thread(target=install, args=(host,))
        thread.start()
        assert asked.wait(60)
        began = time.monotonic()
        stop.set()
        thread.join(60)
    assert stopped and stopped[0] - began < 3  # a second, on a machine with nothing else to do
    assert not running_with(str(unfinished))
    assert managed_state(unfinished).unfinished


def test_two_installations_do_not_meet_in_one_folder(tmp_path: Path) -> None:
    folder = tmp_path / "engine"
    with managed_environment._alone(folder), pytest.raises(EngineSetupError) as refused:
        make_environment(folder=folder, python=sys.executable)
    assert refused.value.reason.kind == "busy"


def test_a_folder_of_someone_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("all of it")
    with pytest.raises(EngineSetupError) as refused:
        make_environment(folder=tmp_path, python=sys.executable)
    assert "not XFlow's" in str(refused.value)
    engine_setup.remove_environment(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "all of it"


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineSetupError) as refused:
        make_environment(folder=tmp_path / "file" / "engine", python=sys.executable)
    assert str(refused.value)


@pytest.mark.parametrize(
    ("devices", "bundles", "kind"),
    [
        ([], [], "wrong_torch"),
        (["cpu"], [{"problem": "compact: survey.safetensors is damaged."}], "damaged"),
    ],
)
def test_an_engine_that_is_not_ready_is_not_made(devices: list[str], bundles: list[dict[str, Any]], kind: str) -> None:
    with pytest.raises(EngineSetupError) as refused:
        managed_environment._check_report({"devices": devices, "bundles": bundles, "ready": False})
    assert refused.value.reason.kind == kind


def test_a_gpu_that_is_not_seen_is_said(tmp_path: Path) -> None:
    python = managed_state(tmp_path).python
    python.parent.mkdir(parents=True)
    python.touch()
    mark = {"state": "made", "xflow": "0.2.0", "torch": "2.13.0", "devices": ["cpu"], "build": {"kind": "cuda"}}
    (tmp_path / "xflow-environment.json").write_text(json.dumps(mark))
    assert managed_state(tmp_path).made and "No GPU is seen" in managed_state(tmp_path).sentence


def test_what_is_read_on_the_screen() -> None:
    read = managed_environment._for_reading
    assert read("Progress 12000000 of 180000000") == "12 of 180 MB"
    assert read("Looking in indexes: https://me:secret@host/simple") == "Looking in indexes: https://****@host/simple"
    assert read("\x1b[31mred\x1b[0m ") == "red"


def test_the_source_is_of_this_module_s_version_or_of_the_user_s_own(tmp_path: Path) -> None:
    major, minor = __version__.split(".")[:2]
    assert XFlowSource.index().requirement == f"xflow-core[engine]=={major}.{minor}.*"
    assert XFlowSource.local(ROOT).requirement == f"xflow-core[engine] @ {ROOT.as_uri()}"
    with pytest.raises(CallError, match="no wheel file"):
        XFlowSource.local(tmp_path)


def test_a_torch_that_cannot_be_is_refused() -> None:
    with pytest.raises(CallError):
        TorchBuild("rocm")
    with pytest.raises(CallError):
        TorchBuild("cpu", "download.somewhere/whl")


# Slicer's own Python.


def test_nothing_is_installed_in_slicer_but_in_its_main_thread(mrml: Any) -> None:
    import slicer

    raised: list[BaseException] = []

    def install() -> None:
        try:
            engine_setup.install_in_slicer()
        except CallError as problem:
            raised.append(problem)

    before = list(slicer.packaging.calls)
    thread = threading.Thread(target=install)
    thread.start()
    thread.join()
    assert "main thread" in str(raised[0]) and slicer.packaging.calls == before


def test_slicer_s_python_is_asked_for_torch_and_this_version(mrml: Any) -> None:
    import slicer

    slicer.packaging.calls.clear()
    engine_setup.install_in_slicer(torch=TorchBuild("cpu", "https://builds.of/torch"))
    assert slicer.packaging.calls == [
        ("torch>=2.4", "--index-url", "https://builds.of/torch"),
        ("torch>=2.4", XFlowSource.index().requirement),
    ]


def test_an_installation_in_slicer_that_is_declined_is_said(mrml: Any) -> None:
    import slicer

    slicer.packaging.refuse = "User declined package installation"
    try:
        with pytest.raises(EngineSetupError) as declined:
            engine_setup.install_in_slicer()
    finally:
        slicer.packaging.refuse = None
    assert declined.value.reason.kind == "declined"


# The engine.


@pytest.fixture
def served() -> Iterator[Served]:
    with serving() as server:
        yield server


def test_a_server_is_tested_and_described(served: Served) -> None:
    info = engine_setup.test_server(EngineChoice.server(served.url, served.token))
    assert info.version == __version__ and info.sentence is None
    assert info.lines[0] == f"XFlow {__version__}, not for clinical use"
    assert any(line.startswith("Models: phantom") for line in info.lines)
    assert "effusion" in info.findings and info.device


def test_connecting_to_a_server_gives_a_client(served: Served) -> None:
    heard: list[str] = []
    engine = connect(EngineChoice.server(served.url, served.token), lambda progress: heard.append(progress.stage))
    with engine:
        assert isinstance(engine, Client) and engine.capabilities().bundles
    assert heard[-1] == "ready"


def test_a_wrong_token_is_said(served: Served) -> None:
    for token in ("not-the-token-of-this-server", ""):
        with pytest.raises(EngineSetupError) as refused:
            connect(EngineChoice.server(served.url, token), ignore)
        assert refused.value.reason.kind == "token" and "token file" in refused.value.reason.remedy


def test_a_server_that_is_not_there_is_said() -> None:
    with pytest.raises(EngineSetupError) as refused:
        connect(EngineChoice.server("http://127.0.0.1:9", TOKEN), ignore)
    assert refused.value.reason.kind == "unreachable"


def test_something_else_at_that_address_is_said() -> None:
    with answering(has_nothing) as host, pytest.raises(EngineSetupError) as refused:
        connect(EngineChoice.server(f"http://{host}", TOKEN), ignore)
    assert "not as an XFlow server does" in str(refused.value)


def test_the_watcher_ends_a_wait(served: Served) -> None:
    class Enough(Exception):
        pass

    def watch(_: object) -> None:
        raise Enough

    with pytest.raises(Enough):
        connect(EngineChoice.server(served.url, served.token), watch)


def test_the_environment_that_is_not_made_yet_is_said() -> None:
    with pytest.raises(EngineSetupError) as refused:
        connect(EngineChoice.this_computer(), ignore)
    assert refused.value.reason.kind == "not_installed" and "Install" in refused.value.reason.remedy


def test_an_engine_of_this_computer_is_not_started_before_it_is_needed() -> None:
    engine = connect(EngineChoice.this_computer(sys.executable), ignore, bundles=("compact",))
    assert isinstance(engine, LocalEngine) and not engine.running and engine.python == sys.executable
    engine = connect(EngineChoice.this_slicer(), ignore)
    assert isinstance(engine, LocalEngine) and engine.python == sys.executable


def test_a_python_without_xflow_is_said(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    for python, kind in ((bare / "bin" / "python", "not_installed"), (tmp_path / "none", "no_python")):
        engine = connect(EngineChoice.this_computer(python), ignore, environment=plain_pip())
        with pytest.raises(CallError) as refused:
            engine.start()  # type: ignore[union-attr]
        reason = reason_of(refused.value)
        assert reason.kind == kind and str(python) in str(reason)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ServiceError(protocol_mismatch(1, (2, 2)) or "", "protocol"), "xflow_new"),
        (ServiceError(protocol_mismatch(2, (1, 1)) or "", "protocol"), "xflow_old"),
        (EngineError(protocol_mismatch(1, (2, 3)) or ""), "xflow_new"),
        (ServiceError("Too many runs wait.", "busy"), "busy"),
        (EngineError("The engine ended with status 1: [Errno 28] No space left on device. Its log is x."), "no_space"),
        (EngineError("The engine was killed (signal -9). Its log is x."), "failed"),
        (OSError(28, "No space left on device"), "no_space"),
        (PermissionError(13, "Permission denied"), "not_writable"),
    ],
)  # fmt: skip
def test_whatever_was_raised_has_a_reason(error: Exception, kind: str) -> None:
    reason = reason_of(error)
    assert reason.kind == kind and reason.sentence


def test_an_engine_of_another_version_says_what_to_update() -> None:
    info = engine_setup.describe(Capabilities("99.0.0", (), "cuda:0", 16 * 2**30))
    assert info.device == "GPU (cuda:0)" and info.memory == "16 GiB" and info.bundle == "none"
    assert info.sentence is not None and "update the XFlow extension" in info.sentence and info.sentence in info.lines
