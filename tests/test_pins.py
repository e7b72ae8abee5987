"""Every package that an extra can bring is pinned in constraints.txt, directly or not."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

EXTRAS = (
    *("fast", "hub", "tune", "bench", "dev"),
    *("serve", "postgres", "redis", "kafka", "ray", "csep", "docs", "dist", "browser"),
)
OF_TORCH = (
    "nvidia-",
    "cuda-",
)  # torch names one version of each itself, where it is built for CUDA
Packages = dict[str, list[str]]


@pytest.fixture(scope="module")
def pins(root: Path) -> dict[str, str]:
    lines = (
        line.partition("#")[0].strip()
        for line in (root / "constraints.txt").read_text().splitlines()
    )
    found = dict(line.split("==") for line in lines if line)
    return {canonicalize_name(name): version for name, version in found.items()}


@pytest.fixture(scope="module")
def lock(root: Path) -> dict[str, dict[str, object]]:
    """What pip would install for all extras, and what each package requires (`scripts/lock.py`)."""
    return json.loads((root / "tests" / "reference" / "requirements.json").read_text())


def roots(root: Path) -> dict[str, list[str]]:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    return {"core": project["dependencies"], **project["optional-dependencies"]}


def reached(wanted: Iterable[str], packages: Packages) -> dict[str, str]:
    """Every package that these requirements lead to, with what asked for it; of unknown packages
    nothing follows.
    """
    found: dict[str, str] = {}
    left = [(line, "pyproject.toml", ("",)) for line in wanted]
    while left:
        line, by, extras = left.pop()
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in extras):
            continue
        name = canonicalize_name(requirement.name)
        if name not in found:
            found[name] = by
            more = ("", *sorted(requirement.extras))
            left += [(inner, name, more) for inner in packages.get(name, [])]
    return found


@pytest.mark.parametrize("extra", ["core", *EXTRAS])
def test_everything_that_an_extra_brings_is_pinned(
    extra: str, root: Path, pins: dict[str, str], lock: dict[str, dict[str, object]]
) -> None:
    packages = {name: list(about["requires"]) for name, about in lock.items()}
    found = reached(roots(root)[extra], packages)
    assert not {name: by for name, by in found.items() if name not in lock}, "run scripts/lock.py"
    assert not {name: by for name, by in found.items() if name not in pins}, (
        "pin these in constraints.txt"
    )


def test_pins_are_what_was_resolved(
    pins: dict[str, str], lock: dict[str, dict[str, object]]
) -> None:
    assert {name: about["version"] for name, about in lock.items()} == pins


def test_pins_satisfy_what_packages_require(
    pins: dict[str, str], lock: dict[str, dict[str, object]]
) -> None:
    for name, about in lock.items():
        for line in about["requires"]:
            wanted = Requirement(line)
            chosen = pins[canonicalize_name(wanted.name)]
            assert SpecifierSet(str(wanted.specifier)).contains(chosen, prereleases=True), (
                name,
                line,
                chosen,
            )


@pytest.mark.parametrize("extra", ["core", *EXTRAS])
def test_what_is_installed_here_needs_nothing_unpinned(
    extra: str, root: Path, pins: dict[str, str]
) -> None:
    """The same from the packages of this environment, whose markers may differ from those of the
    list.
    """
    packages: Packages = {}
    for distribution in metadata.distributions():
        packages[canonicalize_name(distribution.metadata["Name"])] = distribution.requires or []
    found = reached(roots(root)[extra], packages)
    missing = {
        name: by
        for name, by in found.items()
        if name not in pins and not name.startswith(OF_TORCH) and name != "triton"
    }
    assert not missing
