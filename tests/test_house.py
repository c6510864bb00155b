"""The house keeps its own rules: what is packed, what is exported, what is imported when, what no page says."""

import ast
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import pgqueue
from pgqueue import embedded
from pgqueue.__main__ import command
from pgqueue.errors import EmbeddedError

ROOT = Path(__file__).resolve().parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
HOMES = {"pgqueue": "pgqueue", "cli": "pgqueue.cli", "alembic": "pgqueue.migrations"}
LOCKS = ["runtime.lock", "dev.lock"]


def run(*arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def sources() -> list[Path]:
    """List what is or will be tracked; in a checkout without git, what a packed checkout holds."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode == 0:
        found = {ROOT / name for name in os.fsdecode(listed.stdout).split("\0") if name}
    else:
        made = re.compile(
            r"(^|/)(\.git|\.venv[^/]*|build|dist|__pycache__|\.\w+_cache|\.hypothesis|[^/]*\.egg-info)(/|$)"
        )
        found = {path for path in ROOT.rglob("*") if not made.search(path.relative_to(ROOT).as_posix())}
    return sorted(path for path in found if path.is_file())


def folders() -> dict[str, str]:
    """Name the package of every folder that holds modules, as the wheel must map it."""
    return {
        ".".join([package, *folder.relative_to(ROOT / home).parts]): folder.relative_to(ROOT).as_posix()
        for home, package in HOMES.items()
        for folder in [ROOT / home, *(ROOT / home).rglob("*")]
        if folder.is_dir() and any(folder.glob("*.py"))
    }


# -- packaging


def test_every_folder_of_modules_is_packed() -> None:
    assert sorted(PROJECT["tool"]["setuptools"]["packages"]) == sorted(folders())


def test_every_mapped_folder_is_where_the_map_says() -> None:
    mapped = PROJECT["tool"]["setuptools"]["package-dir"]

    def folder(package: str) -> str:
        if package in mapped:
            return str(mapped[package])
        parent, _, name = package.rpartition(".")
        return f"{folder(parent)}/{name}"

    assert {package: folder(package) for package in folders()} == folders()


def test_alembic_folder_has_no_init() -> None:
    """With one, `python -m alembic` and `python -m pytest` at the root import the folder instead of Alembic."""
    assert list((ROOT / "alembic").rglob("__init__.py")) == []


def test_alembic_at_the_root_is_the_real_one() -> None:
    done = run("-c", "import alembic, alembic.command; print(alembic.__file__)")

    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).parent != ROOT / "alembic"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("wheel")
    tree = made / "tree"
    for path in sources():  # a copy: building in place leaves build/ behind, and what was deleted comes back from it
        copy = tree / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    built = run("-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(made), ".", cwd=tree)
    assert built.returncode == 0, built.stdout + built.stderr
    [found] = made.glob("*.whl")
    return found


@pytest.mark.heavy
def test_wheel_has_one_root_and_carries_everything(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    names = {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}

    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"pgqueue"}
    expected = {
        f"{package.replace('.', '/')}/{module.name}"
        for package, folder in folders().items()
        for module in (ROOT / folder).glob("*.py")
    }
    assert expected <= names
    assert {"pgqueue/py.typed", "pgqueue/migrations/script.py.mako"} <= names
    assert any(re.fullmatch(r"pgqueue/migrations/versions/\w+\.py", name) for name in names)
    assert "pgqueue/migrations/__init__.py" not in names

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    helped = run("-m", "pgqueue", "--help", cwd=elsewhere, PYTHONPATH=str(site))
    assert helped.returncode == 0, helped.stderr
    where = "import pgqueue, pgqueue.__main__ as m; print(pgqueue.__file__, m.command().callback.__module__)"
    assert run("-c", where, cwd=elsewhere, PYTHONPATH=str(site)).stdout.split() == [
        str(site / "pgqueue" / "__init__.py"),
        "pgqueue.cli",
    ]


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A folder that the server's user can pass through, when root asks for the embedded server."""
    with tempfile.TemporaryDirectory(prefix="pgqueue-wheel-", dir="/tmp") as room:
        Path(room).chmod(0o711)
        yield Path(room)
        with contextlib.suppress(EmbeddedError):
            embedded.stop(Path(room) / "home", force=True)


@pytest.mark.heavy
def test_wheel_in_an_empty_environment_runs_the_demo(wheel: Path, elsewhere: Path) -> None:
    venv, tree = elsewhere / "venv", elsewhere / "tree"
    made = run("-m", "venv", "--without-pip", str(venv))
    assert made.returncode == 0, made.stderr
    python = venv / "bin" / "python"
    put = run("-m", "pip", "--python", str(python), "install", "-q", "--no-deps", "--no-index", str(wheel))
    assert put.returncode == 0, put.stderr
    # What it depends on, without downloading it again. Nothing of the checkout: its own .pth is not read from here.
    [site] = venv.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text("".join(f"{sysconfig.get_path(kind)}\n" for kind in ("purelib", "platlib")))
    (tree / "folder").mkdir(parents=True)
    for name in ("a", "folder/b", "folder/c"):
        (tree / name).write_text(name)
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    env["PGQUEUE_HOME"] = str(elsewhere / "home")
    if chosen := os.environ.get("PGQUEUE_TEST_PG_BINDIR"):
        env["PGQUEUE_PG_BINDIR"] = chosen

    def ran(*words: str) -> str:
        done = subprocess.run(words, cwd=elsewhere, env=env, capture_output=True, text=True, timeout=100, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    program = str(venv / "bin" / "pgqueue")
    home = ran(str(python), "-c", "import pgqueue.cli; print(pgqueue.cli.__file__)")
    assert Path(home.strip()) == site / "pgqueue" / "cli" / "__init__.py"
    found = json.loads(ran(program, "demo", str(tree), "--json"))
    assert (found["matches"], found["files"], found["folders"]) == (True, 3, 2)
    assert [line.split()[0] for line in found["commands"]] == [program] * 6
    database = ["--database-url", "embedded"]
    revision = ran(program, "db", "current", *database)
    assert ran(program, "db", "upgrade", *database) == revision
    assert json.loads(ran(program, "db", "check", "--json", *database))["fits"] is True
    assert "create table pgqueue.tasks" in ran(program, "db", "sql").lower()


# -- the face


def test_face_exports_what_it_lists() -> None:
    exported = {
        name for name in dir(pgqueue) if not name.startswith("_") and not isinstance(getattr(pgqueue, name), ModuleType)
    }

    assert exported == {name for name in pgqueue.__all__ if not name.startswith("_")}
    assert len(pgqueue.__all__) == len(set(pgqueue.__all__))
    assert [name for name in pgqueue.__all__ if not hasattr(pgqueue, name)] == []


def test_face_shows_the_type_checker_the_same_names() -> None:
    """A lazy face says its names twice, under TYPE_CHECKING and at run time: they must not part."""
    tree = ast.parse((ROOT / "pgqueue" / "__init__.py").read_text())
    typed = {
        alias.asname or alias.name
        for block in tree.body
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for line in block.body
        if isinstance(line, ast.ImportFrom)
        for alias in line.names
    }

    assert typed == {name for name in pgqueue.__all__ if not name.startswith("_")}


HEAVY = ["alembic", "asyncio", "psycopg", "rich", "sqlalchemy"]


@pytest.mark.parametrize("words", ["--help", "worker --help", "db --help"])
def test_help_imports_no_machinery(words: str) -> None:
    code = (
        "import json, runpy, sys\n"
        f"sys.argv = ['pgqueue', *{words.split()!r}]\n"
        "try:\n    runpy.run_module('pgqueue', run_name='__main__')\n"
        "except SystemExit as exit:\n    code = exit.code\n"
        f"print(json.dumps([code, [name for name in {HEAVY!r} if name in sys.modules]]))\n"
    )
    done = run("-c", code)

    assert done.returncode == 0, done.stderr
    *page, last = done.stdout.splitlines()
    assert json.loads(last) == [0, []]
    assert page[0].startswith(f"Usage: pgqueue {words.removesuffix('--help')}")


def test_importing_the_library_imports_no_machinery() -> None:
    done = run("-c", f"import json, sys, pgqueue; print(json.dumps([n for n in {HEAVY!r} if n in sys.modules]))")

    assert json.loads(done.stdout) == [], done.stderr


def test_every_command_can_be_imported_and_has_help() -> None:
    group = command()
    table: dict[str, Any] = group.table  # type: ignore[attr-defined]
    paths = [[name] for name in table]
    paths += [[name, inner] for name, entry in table.items() for inner in getattr(entry, "commands", {})]

    assert paths
    for path in paths:
        done = run("-m", "pgqueue", *path, "--help")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"Usage: pgqueue {' '.join(path)} ")


def test_unknown_command_is_a_usage_error_with_a_suggestion() -> None:
    done = run("-m", "pgqueue", "wrker")

    assert (done.returncode, done.stdout) == (2, "")
    assert "'wrker'" in done.stderr
    assert "Did you mean worker?" in done.stderr


# -- what no page says

# pip and its kin, any options, then the name that is somebody else's (with or without an extra or a version)
FOREIGN = re.compile(r"\b(?:pip[x3]?|uv|poetry|pdm)\s+(?:install|add)\b[^\n&;|`#]*?(?<![\w./-])pgqueue(?![\w-])")


@pytest.mark.parametrize(
    "line",
    ["pip install X", "pip3 install -U 'X[embedded]'", "uv pip install X==0.1", "pipx install X", "uv add foo X"],
)
def test_pattern_finds_the_foreign_name(line: str) -> None:
    assert FOREIGN.search(line.replace("X", "pgqueue"))


@pytest.mark.parametrize(
    "line",
    [
        "pip install pgqueue-tasks",
        "pip install 'pgqueue-tasks[embedded]'  # brings the command pgqueue",
        "pip install pgqueue-tasks && pgqueue demo",
        "pip install ./pgqueue",
    ],
)
def test_pattern_leaves_our_name_alone(line: str) -> None:
    assert not FOREIGN.search(line)


def texts() -> Iterator[tuple[str, str]]:
    for path in sources():
        try:
            yield path.relative_to(ROOT).as_posix(), path.read_text()
        except UnicodeDecodeError:
            continue  # a picture


def test_no_page_installs_a_foreign_package() -> None:
    """On PyPI the name `pgqueue` is somebody else's; neither pages nor error texts may send anybody there."""
    found = [
        (name, match[0]) for name, text in texts() if name != "tests/test_house.py" for match in FOREIGN.finditer(text)
    ]

    assert found == []


# Put together here, or this file would hold them.
PRIVATE = re.compile("|".join(f"/{name}/" for name in ("work", "root")))


def test_no_file_names_a_place_on_the_authors_machine() -> None:
    found = [(name, line) for name, text in texts() for line in text.splitlines() if PRIVATE.search(line)]

    assert found == []


# -- locks


def pins(lock: str) -> dict[str, list[str]]:
    """Read a lock: `name==version` -> its hashes."""
    found: dict[str, list[str]] = {}
    for entry in re.split(r"\n(?=\S)", (ROOT / "requirements" / lock).read_text().strip()):
        pin, *rest = entry.split()
        found[pin] = [word for word in rest if word.startswith("--hash=sha256:")]
    return found


@pytest.mark.parametrize("lock", LOCKS)
def test_every_locked_requirement_has_hashes(lock: str) -> None:
    locked = pins(lock)

    assert len(locked) > 15
    assert [pin for pin, hashes in locked.items() if not re.fullmatch(r"[\w.-]+==[\w.+]+", pin) or not hashes] == []


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_names_no_host_and_no_path(lock: str) -> None:
    text = (ROOT / "requirements" / lock).read_text()

    assert re.findall(r"\S*(?:://|index-url|find-links|trusted-host|file:)\S*", text) == []
    assert re.findall(r"(?m)(?:^|\s)/\S+|\S+ @ \S+", text) == []


def test_locks_agree_and_cover_the_project() -> None:
    runtime, dev = pins("runtime.lock"), pins("dev.lock")
    wanted = [
        *PROJECT["project"]["dependencies"],
        *PROJECT["project"]["optional-dependencies"]["embedded"],
        *PROJECT["dependency-groups"]["editable"],
    ]
    development = [name for group in ("build", "lint", "test") for name in PROJECT["dependency-groups"][group]]

    def missing(requirements: list[str], locked: dict[str, list[str]]) -> set[str]:
        names = {re.split(r"[\[<>=;\s]", requirement)[0] for requirement in requirements}
        return names - {pin.partition("==")[0] for pin in locked}

    assert [pin for pin, hashes in runtime.items() if dev.get(pin) != hashes] == []
    assert missing(wanted, runtime) == set()
    assert missing(wanted + development, dev) == set()
