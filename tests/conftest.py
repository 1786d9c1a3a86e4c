"""Shared by tests/oracle (needs mlx and mlx-lm) and tests/cli (needs numpy only)."""
import functools
import pathlib
import shutil
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "support"), str(HERE / "oracle"), str(HERE.parent / "tools")]

import rotq as program  # noqa: E402
import tiny as tiny_models  # noqa: E402


def pytest_sessionstart(session):
    if not program.BINARY.is_file():
        pytest.exit(f"{program.BINARY} does not exist: build first, or set ROTQ_BINARY", returncode=2)


def pytest_addoption(parser):
    parser.addoption("--full", action="store_true", help="also run the tests marked slow")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--full"):
        kept = [i for i in items if "slow" not in i.keywords]
        config.hook.pytest_deselected(items=[i for i in items if "slow" in i.keywords])
        items[:] = kept


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """tiny(preset, seed=0, dtype="F32", shards=1, **overrides) -> directory, made once per session; read-only."""
    root = tmp_path_factory.mktemp("tiny")

    @functools.cache
    def make(preset, **options):
        name = "-".join([preset, *(f"{k}_{v}" for k, v in sorted(options.items()))])
        return tiny_models.make(root / name, preset, **options)

    return make


@pytest.fixture
def own(tiny, tmp_path):
    """own(preset, ...) -> a copy of the tiny model that the test may damage."""
    def copy(preset, **options):
        return pathlib.Path(shutil.copytree(tiny(preset, **options), tmp_path / "src"))
    return copy


@pytest.fixture
def out(tmp_path):
    """Where a conversion should go: a name in a directory of its own, so that leftovers are seen."""
    parent = tmp_path / "out"
    parent.mkdir()
    return parent / "model"
