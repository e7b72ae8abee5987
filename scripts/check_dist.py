"""Build wheel and sdist, check them with twine, install the wheel into an empty environment, and
run the quick start there.

    python scripts/check_dist.py
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
QUICK_START = """
import fourpoint as fp

data = fp.load("nyc_delays")
train, dev, test = data.split()
model = fp.Hawkes(data.marks)
fp.fit(model, train, dev, progress=False)
print(fp.evaluate(model, test))
"""


def main() -> None:
    """Build and check what is published."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", str(DIST), str(ROOT))
    files = sorted(DIST.iterdir())
    run(sys.executable, "-m", "twine", "check", "--strict", *map(str, files))
    wheel = next(file for file in files if file.suffix == ".whl")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        venv.create(folder / "env", with_pip=True)
        python = folder / "env" / "bin" / "python"
        constraints = str(ROOT / "constraints.txt")
        run(str(python), "-m", "pip", "install", "-q", "-c", constraints, str(wheel), cwd=folder)
        run(str(python), "-c", QUICK_START, cwd=folder)
        command = str(python.with_name("fourpoint"))
        run(command, "simulate", "hawkes", "--sequences", "50", "-o", "events.parquet", cwd=folder)
        run(command, "fit", "events.parquet", "--model", "hawkes", "-o", "model", cwd=folder)
    for file in files:
        print(f"{file.name}: {file.stat().st_size / 1e6:.1f} MB")


def run(*words: str, cwd: Path = ROOT) -> None:
    """Run a command, without the packages of this tree, and stop where it fails."""
    print("+", *words[:6], flush=True)
    subprocess.run(words, cwd=cwd, check=True)


if __name__ == "__main__":
    main()
