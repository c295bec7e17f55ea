"""The extension as CMake makes it: nothing missing, nothing heavy, and it imports by itself."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import sysconfig
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from XFlowSlicerLib import __version__, handshake

import xflow_core
from xflow_core.service.protocol import OLDEST_PROTOCOL, PROTOCOL

ROOT = Path(__file__).resolve().parents[2]
MODULE = ROOT / "XFlowSlicer"
STAND_IN = Path(__file__).parent / "cmake" / "Slicer"
INSTALLED = "lib/Slicer-5.12/qt-scripted-modules"
# What the module may use of xflow_core: docs/architecture.md.
LIGHT = {"xflow_core", "xflow_core.domain", "xflow_core.export", "xflow_core.service"}
LIGHT_SERVICE = {"__init__", "client", "protocol", "local", "child"}
# These have no Qt, Slicer or VTK in them.
PURE = ("image_frame", "question", "steps", "history", "engine_work", "presenter", "engine_setup")


def cmake_list(name: str) -> list[str]:
    text = re.sub(r"#.*", "", (MODULE / "CMakeLists.txt").read_text())
    found = re.search(rf"set\({name}\s+([^)]*)\)", text)
    assert found is not None, f"there is no list {name}"
    return [entry.replace("${MODULE_NAME}", "XFlowSlicer") for entry in found[1].split()]


def tracked(folder: Path, *endings: str) -> set[Path]:
    found = {path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    return {path.relative_to(folder) for path in found if not endings or path.suffix in endings}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of Slicer's modules after ``cmake --install``, with a stand-in for Slicer's own CMake package."""
    cmake = shutil.which("cmake", path=str(Path(sys.executable).parent)) or shutil.which("cmake")
    if cmake is None:
        pytest.skip("cmake is not installed")
    build, prefix = tmp_path_factory.mktemp("build"), tmp_path_factory.mktemp("prefix")
    configure = [cmake, "-S", str(ROOT), "-B", str(build), f"-DSlicer_DIR={STAND_IN}", "-DBUILD_TESTING=ON"]
    for language in ("C", "CXX"):  # nothing is compiled, and a machine without a compiler will do
        configure += [f"-DCMAKE_{language}_COMPILER={sys.executable}", f"-DCMAKE_{language}_COMPILER_ID_RUN=ON"]
        configure += [f"-DCMAKE_{language}_COMPILER_FORCED=ON"]
    for command in (configure, [cmake, "--install", str(build), "--prefix", str(prefix)]):
        ran = subprocess.run(command, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stdout + ran.stderr
    described = (build / "XFlow.txt").read_text()
    assert "CATEGORY Segmentation" in described and "DEPENDS NA" in described
    return prefix / INSTALLED


def bare_python(script: str, *folders: Path) -> str:
    """Run a script in a Python that has this environment's libraries and not its editable install of the project."""
    path = [*map(str, folders), sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]]
    begin = f"""
import sys
sys.path[:0] = {path!r}
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torchvision", "starlette", "uvicorn", "training"):
            raise ImportError(f"{{name}} is not for the module")
sys.meta_path.insert(0, Blocked())
before = list(sys.path)
"""
    # -S: without the .pth files of the environment, one of which leads to the checkout.
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", begin + script], capture_output=True, text=True, cwd="/")
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_every_script_and_resource_is_listed_and_is_there():
    assert set(map(Path, cmake_list("MODULE_PYTHON_SCRIPTS"))) == tracked(MODULE, ".py")
    assert set(map(Path, cmake_list("MODULE_PYTHON_RESOURCES"))) == {
        Path("Resources") / path for path in tracked(MODULE / "Resources")
    }
    for name in ("MODULE_PYTHON_SCRIPTS", "MODULE_PYTHON_RESOURCES", "XFLOW_CORE_PYTHON_SCRIPTS"):
        assert len(set(cmake_list(name))) == len(cmake_list(name)), f"{name} names a file twice"


def test_the_light_half_of_the_core_is_listed_whole_and_nothing_heavy():
    core = ROOT / "xflow_core"
    light = {Path("xflow_core/__init__.py")}
    for room in ("domain", "export"):
        light |= {Path("xflow_core", room) / path for path in tracked(core / room, ".py")}
    light |= {Path("xflow_core/service") / f"{name}.py" for name in LIGHT_SERVICE}
    assert set(map(Path, cmake_list("XFLOW_CORE_PYTHON_SCRIPTS"))) == light


def test_what_is_listed_imports_nothing_of_the_project_that_is_not():
    listed = {entry.removesuffix(".py").replace("/", ".") for entry in cmake_list("XFLOW_CORE_PYTHON_SCRIPTS")}
    listed |= {name.removesuffix(".__init__") for name in listed}
    places = [ROOT / entry for entry in cmake_list("XFLOW_CORE_PYTHON_SCRIPTS")]
    places += [MODULE / entry for entry in cmake_list("MODULE_PYTHON_SCRIPTS")]
    for path in places:
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            for name in names:
                if name.partition(".")[0] in ("xflow_core", "training", "tests"):
                    assert name in listed, f"{path.relative_to(ROOT)} imports {name}"


def test_the_installed_module_imports_by_itself(installed):
    """In the layout of a built extension, without the checkout and without torch."""
    said = bare_python(
        f"""
import importlib, json
import XFlowSlicerLib
for name in {PURE!r}:
    importlib.import_module(f"XFlowSlicerLib.{{name}}")
strangers = [name for name in ("qt", "ctk", "slicer", "vtk", "torch", "highdicom") if name in sys.modules]
for entry in {cmake_list("XFLOW_CORE_PYTHON_SCRIPTS")!r}:
    importlib.import_module(entry.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
import XFlowSlicerLib.terminology
try:
    import xflow_core.cli
    heavy = True
except ImportError:
    heavy = False
import xflow_core
print(json.dumps([xflow_core.__file__, strangers, heavy, sys.path == before, XFlowSlicerLib.__version__,
    str(XFlowSlicerLib.resource("UI/XFlowSlicer.ui"))]))
""",
        installed,
    )
    core, strangers, heavy, path_kept, version, ui = json.loads(said)
    assert Path(core) == installed / "XFlowSlicerLib" / "light" / "xflow_core" / "__init__.py"
    assert strangers == [] and not heavy and path_kept
    assert version == xflow_core.__version__
    assert Path(ui) == installed / "Resources" / "UI" / "XFlowSlicer.ui" and Path(ui).is_file()


def test_slicer_s_own_python_does_not_see_the_light_half(installed):
    """It has the modules' folder on its path; a whole xflow_core that is installed there must be the one it finds."""
    assert not (installed / "xflow_core").exists()


def test_a_checkout_on_the_module_path_works_and_brings_in_nothing_else(tmp_path):
    said = bare_python(
        """
import json
import XFlowSlicerLib, xflow_core, xflow_core.domain.trace
import importlib.util
print(json.dumps([xflow_core.__file__, sys.path == before, importlib.util.find_spec("benchmarks") is not None]))
""",
        MODULE,
    )
    assert json.loads(said) == [str(ROOT / "xflow_core" / "__init__.py"), True, False]


def test_another_core_that_was_loaded_first_is_said(installed):
    said = bare_python(
        """
import types
sys.modules["xflow_core"] = types.SimpleNamespace(__version__="0.0.1")
try:
    import XFlowSlicerLib
except ImportError as problem:
    print(problem)
""",
        installed,
    )
    assert "0.0.1" in said and xflow_core.__version__ in said and "restart Slicer" in said


def test_an_extension_without_its_core_says_so(installed, tmp_path):
    shutil.copytree(installed / "XFlowSlicerLib", tmp_path / "a" / "b" / "XFlowSlicerLib")
    shutil.rmtree(tmp_path / "a" / "b" / "XFlowSlicerLib" / "light")
    said = bare_python(
        """
try:
    import XFlowSlicerLib
except ImportError as problem:
    print(problem)
""",
        tmp_path / "a" / "b",
    )
    assert "Install the extension again" in said


@pytest.mark.parametrize(
    ("engine", "protocols", "ok", "words"),
    [
        (__version__, (OLDEST_PROTOCOL, PROTOCOL), True, None),
        (re.sub(r"\d+$", "99", __version__), (OLDEST_PROTOCOL, PROTOCOL), True, None),
        ("99.0.0", (OLDEST_PROTOCOL, PROTOCOL), True, "the older is the module: update the XFlow extension"),
        ("0.0.9", (OLDEST_PROTOCOL, PROTOCOL), True, "the older is the engine: update xflow-core"),
        ("99.0.0", (PROTOCOL + 1, PROTOCOL + 2), False, "The module is too old"),
        ("0.0.9", (PROTOCOL - 1, PROTOCOL - 1), False, "The engine is too old"),
        ("of somebody's own making", (OLDEST_PROTOCOL, PROTOCOL), True, None),
    ],
)
def test_the_handshake_says_which_side_to_update(engine, protocols, ok, words):
    found = handshake(engine, protocols)
    assert found.ok is ok
    assert (found.sentence is None) if words is None else (words in found.sentence and engine in found.sentence)


def test_the_index_entry_agrees_with_cmake():
    entry = json.loads((ROOT / "docs" / "extensions-index" / "XFlow.json").read_text())
    root = (ROOT / "CMakeLists.txt").read_text()
    said = dict(re.findall(r'set\(EXTENSION_(\w+) "([^"]*)"\)', root))
    assert re.search(r"^project\(XFlow\)$", root, re.MULTILINE)
    # Slicer's schema for entries, version 1.0.2: these are required, and no others than the named may be there.
    assert {"$schema", "category", "scm_url"} <= set(entry)
    assert set(entry) <= {
        "$schema", "category", "scm_url", "scm_revision", "scm_type", "build_dependencies", "dicom_support_rule",
        "build_subdirectory", "enabled", "tier",
    }  # fmt: skip
    assert entry["category"] == said["CATEGORY"]
    assert (entry["build_dependencies"] or ["NA"]) == said["DEPENDS"].split()
    assert "Not for clinical use" in said["DESCRIPTION"] and said["CONTRIBUTORS"]


def test_no_address_is_made_up():
    """An address is left empty until there is a real one."""
    entry = json.loads((ROOT / "docs" / "extensions-index" / "XFlow.json").read_text())
    said = dict(re.findall(r'set\(EXTENSION_(\w+) "([^"]*)"\)', (ROOT / "CMakeLists.txt").read_text()))
    for address in (entry["scm_url"], said["HOMEPAGE"], said["ICONURL"], *said["SCREENSHOTURLS"].split()):
        assert address == "" or (address.startswith("https://") and "example" not in address)


def test_the_icon_is_what_the_index_and_slicer_want():
    icons = MODULE / "Resources" / "Icons"
    with Image.open(icons / "XFlowSlicer.png") as icon:
        assert icon.size == (128, 128) and icon.mode == "RGBA"
        assert np.ptp(np.asarray(icon)) == 255
    assert ET.parse(icons / "XFlowSlicer.svg").getroot().tag.endswith("svg")


def test_the_licence_lies_where_the_index_looks_for_it():
    assert (ROOT / "LICENSE.txt").is_file()
