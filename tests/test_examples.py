"""Every public name and every command has an entry in the reference, with an example that runs."""

from __future__ import annotations

import ast
import doctest
import itertools
import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fourpoint as fp
from fourpoint.cli.examples import EXAMPLES
from fourpoint.cli.main import app

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts" / "site"))

from cells import BrokenCell, run_page, with_outputs  # noqa: E402
from reference_pages import commands, grouped_names  # noqa: E402

# Examples that take long, or need a service that runs.
RUN_ELSEWHERE = {
    "demo": "tests/test_demo.py",
    "serve": "tests/test_serve_http.py",
    "refit": "tests/test_serve_http.py",
}


# Files of the values among the public names, whose docstrings stand below their assignments.
VALUES = {
    "MODELS": "models/__init__.py",
    "PROCESSES": "data/synthetic.py",
    "__version__": "__init__.py",
}


@pytest.fixture(scope="module")
def documented() -> dict[str, str]:
    """The docstring of every public name."""
    texts = {name: getattr(fp, name).__doc__ or "" for name in fp.__all__}
    return texts | {name: docstring_below(name, file) for name, file in VALUES.items()}


def docstring_below(name: str, file: str) -> str:
    body = ast.parse((ROOT / "src" / "fourpoint" / file).read_text(encoding="utf-8")).body
    for node, below in itertools.pairwise(body):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(one, ast.Name) and one.id == name for one in targets):
            return ast.literal_eval(below.value) if isinstance(below, ast.Expr) else ""
    return ""


def test_every_public_name_has_an_entry_in_one_group() -> None:
    entries = [name for names in grouped_names().values() for name in names]
    assert sorted(entries) == sorted(fp.__all__)


def test_every_public_name_has_a_runnable_example(documented: dict[str, str]) -> None:
    without = [name for name, text in documented.items() if ">>> " not in text]
    assert not without, f"no example in the docstrings of {without}"


def test_examples_of_values_run(documented: dict[str, str]) -> None:
    """Those of functions and classes are run by pytest as doctests."""
    for name in VALUES:
        text = documented[name]
        test = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
        assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed == 0, name


def test_every_command_has_an_example() -> None:
    assert {" ".join(words) for words, _ in commands()} == set(EXAMPLES)


def test_the_examples_of_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for command, lines in EXAMPLES.items():
        if command in RUN_ELSEWHERE:
            continue
        for line in lines:
            run_line(line)


def run_line(line: str) -> None:
    """Run one line of an example: our command, mkdir, or a printf into a file."""
    program, *words = shlex.split(line)
    if program == "printf":
        text, arrow, target = words
        assert arrow == ">"
        Path(target).write_text(text.replace("\\n", "\n"))
        return
    if program == "mkdir":
        Path(words[0]).mkdir()
        return
    assert program == "fourpoint"
    found = CliRunner().invoke(app, words)
    assert found.exit_code == 0, f"{line}\n{found.output}"


def test_examples_that_are_not_run_here_are_run_elsewhere() -> None:
    assert all((ROOT / test).is_file() for test in RUN_ELSEWHERE.values())


def test_help_ends_with_the_example() -> None:
    shown = CliRunner().invoke(app, ["explain", "--help"])
    assert "Example: fourpoint explain model" in " ".join(shown.output.split())


def test_a_broken_cell_stops_the_build(tmp_path: Path) -> None:
    with pytest.raises(BrokenCell, match=r"docs/page\.md, line 4: this cell failed"):
        run_page("page.md", "Text.\n\n```python\n1 / 0\n```\n", tmp_path)


def test_outputs_stand_below_their_cells(tmp_path: Path) -> None:
    page = "```python\nprint(2 + 3)\n```\n\n<!-- hidden -->\n```python\nx = 1\n```\n"
    shown = with_outputs(page, run_page("page.md", page, tmp_path), "drawn")
    assert '<pre class="output" tabindex="0"><code>5</code></pre>' in shown
    assert "x = 1" not in shown


def test_sentences_of_an_output_may_be_wrapped_and_tables_not(tmp_path: Path) -> None:
    sentence = "The calendar explains more than a constant rate does."
    row = "calendar      poisson      4.0061      0.4272"
    page = f"```python\nprint({sentence!r})\nprint({row!r})\n```\n"
    shown = with_outputs(page, run_page("page.md", page, tmp_path), "drawn")
    assert f'<span class="sentence">{sentence}</span>\n{row}</code>' in shown


def test_figures_are_as_wide_as_the_text_of_their_page(tmp_path: Path) -> None:
    cell = "```python\nimport matplotlib.pyplot as plt\nplt.subplots(figsize=(12, 3))\n```\n"
    narrow = with_outputs(cell, run_page("page.md", cell, tmp_path / "narrow"), "drawn")
    page = f"---\nhide:\n  - toc\n---\n{cell}"
    wide = with_outputs(page, run_page("page.md", page, tmp_path / "wide"), "drawn")
    assert 'width="691" height="288"' in narrow
    assert 'width="960" height="288"' in wide
