"""Starting is quick: neither the package nor its command line imports torch until a name needs
it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import fourpoint

HEAVY = ("torch", "scipy", "matplotlib", "pyarrow", "pandas")


def modules_after(code: str) -> list[str]:
    """Which of the heavy modules a fresh interpreter has loaded after ``code``."""
    program = (
        f"{code}\nimport sys, json\nprint(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_import_brings_nothing_heavy() -> None:
    assert modules_after("import fourpoint") == []


def test_events_come_without_torch() -> None:
    assert "torch" not in modules_after(
        "import fourpoint as fp; fp.Sequence([1.0], start=0, stop=2)"
    )


def test_embedded_data_comes_without_torch() -> None:
    assert "torch" not in modules_after("import fourpoint as fp; fp.load('nyc_delays')")


def test_a_file_is_read_without_pandas(tmp_path: Path) -> None:
    """pyarrow imports it for some of its functions, in a tenth of a second."""
    rows = [f"u{i % 30},{i},{'abcdefg'[i % 7]}" for i in range(300)]
    file = tmp_path / "log.csv"
    file.write_text("\n".join(["user,time,type", *rows]) + "\n")
    assert "pandas" not in modules_after(f"import fourpoint as fp; fp.read({str(file)!r})")


def test_command_line_starts_without_torch() -> None:
    assert "torch" not in modules_after("from fourpoint.cli.main import app")


def test_help_starts_without_torch() -> None:
    code = (
        "import sys; sys.argv = ['fourpoint', '--help']\n"
        "from fourpoint.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass"
    )
    assert "torch" not in modules_after(code)


@pytest.mark.parametrize("name", fourpoint.__all__)
def test_every_public_name_exists(name: str) -> None:
    assert getattr(fourpoint, name) is not None
    assert name in dir(fourpoint)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Dapp'; its public names are"):
        _ = fourpoint.Dapp


def test_version_is_that_of_the_project() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["version"] == fourpoint.__version__


def test_shapes_are_checked_in_the_test_run() -> None:
    import torch
    from jaxtyping import TypeCheckError

    from fourpoint.ops.quadrature import stratified

    with pytest.raises(TypeCheckError):
        stratified(torch.zeros(2), torch.ones(3), 4, torch.Generator())


def test_former_names_still_work_with_a_warning() -> None:
    import fourpoint

    with pytest.warns(DeprecationWarning, match="fourpoint.PlacedDAPP is now called"):
        assert fourpoint.PlacedDAPP is fourpoint.SpatialDAPP
