"""Run the cells of one page of the documentation, and keep what they print and draw.

    python scripts/site/execute.py cells.json folder

``cells.json`` holds ``{"page": name, "inches": width, "cells": [...]}``, each cell with ``kind``,
``source`` and ``line``. Figures that are wider than the page are drawn with its width. Python cells
share one namespace; shell cells are run by bash in the same working directory. The folder gets
``outputs.json``, a list of outputs for each cell (``text`` or ``image``), and the figures as PNG
files. The first cell that fails ends the run with exit code 1 and its place in the page.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

DPI = 144  # pixels per inch of figures; pages show them at 96


def main() -> None:
    """Run all cells of a page."""
    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    folder = Path(sys.argv[2])
    import matplotlib

    matplotlib.use("Agg")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    outputs = []
    for number, cell in enumerate(given["cells"]):
        place = f"{given['page']}, line {cell['line']}"
        try:
            if cell["kind"] == "python":
                found = run_python(cell["source"], namespace, place)
            else:
                found = run_shell(cell["source"])
            found += save_figures(folder, number, given["inches"])
        except BaseException:
            sys.stderr.write(f"{place}: this cell failed\n\n{cell['source']}\n")
            traceback.print_exc()
            raise SystemExit(1) from None
        outputs.append(found)
    (folder / "outputs.json").write_text(json.dumps(outputs), encoding="utf-8")


def run_python(source: str, namespace: dict[str, Any], place: str) -> list[dict[str, Any]]:
    """Execute one cell; the value of an expression at its end is shown as in a notebook."""
    tree = ast.parse(source, place)
    last = tree.body[-1] if tree.body else None
    shown = last if isinstance(last, ast.Expr) else None
    if shown is not None:
        tree.body.pop()
    printed = io.StringIO()
    value = None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, place, "exec"), namespace)
        if shown is not None:
            value = eval(compile(ast.Expression(shown.value), place, "eval"), namespace)
    found: list[dict[str, Any]] = []
    if printed.getvalue().strip():
        found.append({"kind": "text", "text": printed.getvalue().rstrip()})
    if value is not None and not _is_drawing(value):
        found.append({"kind": "text", "text": str(value).rstrip()})
    return found


def run_shell(source: str) -> list[dict[str, Any]]:
    """Run one cell with bash; what it writes to both streams is shown in its order."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", source],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}\n{done.stdout}")
    text = done.stdout.strip("\n").rstrip()
    return [{"kind": "text", "text": text}] if text else []


def save_figures(folder: Path, number: int, widest: float) -> list[dict[str, Any]]:
    """Save and close the open figures of a cell, at most ``widest`` inches wide: a page
    then shows their text in its own size.
    """
    import matplotlib.pyplot as plt

    found: list[dict[str, Any]] = []
    for index in plt.get_fignums():
        figure = plt.figure(index)
        if figure.get_figwidth() > widest:
            figure.set_size_inches(widest, figure.get_figheight())
        name = f"cell-{number:02d}-{index}.png"
        figure.savefig(folder / name, dpi=DPI)
        width, height = (figure.get_size_inches() * 96).round().astype(int).tolist()
        found.append({"kind": "image", "name": name, "width": width, "height": height})
    plt.close("all")
    return found


def _is_drawing(value: object) -> bool:
    """Whether a value is part of a figure, which is shown as a picture."""
    from matplotlib.artist import Artist

    if isinstance(value, list | tuple):
        return all(isinstance(one, Artist) for one in value)
    return isinstance(value, Artist)


if __name__ == "__main__":
    main()
