"""An example for every command: the end of its help, and its page in the documentation.

The examples are run in this order, in one folder, by `tests/test_examples.py`.
"""

from __future__ import annotations

EXAMPLES: dict[str, tuple[str, ...]] = {
    "demo": ("fourpoint demo -o demo",),
    "simulate": ("fourpoint simulate hawkes --sequences 100 --seed 1 -o events.parquet",),
    "data summary": ("fourpoint data summary events.parquet",),
    "data convert": ("fourpoint data convert events.parquet events.jsonl --to easytpp",),
    "data inspect": ("fourpoint data inspect events.parquet",),
    "data partition": (
        "mkdir parts",
        "fourpoint simulate hawkes --sequences 50 --seed 3 -o parts/first.parquet",
        "fourpoint data partition parts -o regrouped",
    ),
    "compare": ("fourpoint compare events.parquet --models poisson,hawkes",),
    "fit": ("fourpoint fit events.parquet --model hawkes -o model",),
    "tune": ("fourpoint tune events.parquet --budget 5s -o tuned",),
    "evaluate": ("fourpoint evaluate model events.parquet --plot qq.png",),
    "difference": (
        "fourpoint fit events.parquet --model poisson -o constant",
        "fourpoint difference model constant events.parquet",
    ),
    "calibrate": (
        "fourpoint simulate hawkes --sequences 50 --seed 2 -o later.parquet",
        "fourpoint calibrate model later.parquet --split all",
    ),
    "uncertainty": ("fourpoint uncertainty model events.parquet",),
    "forecast": (
        "fourpoint forecast model events.parquet --sequence 3 --at 0.5 --horizon 0.5",
        "fourpoint forecast model events.parquet --all --at 0.5 --horizon 0.5 -o forecasts.csv",
    ),
    "predict": ("fourpoint predict model events.parquet --score mae --at 0.5 -o next.csv",),
    "explain": ("fourpoint explain model events.parquet --sequence 3 --at 0.5 --plot why.png",),
    "influence": ("fourpoint influence model events.parquet",),
    "anomalies": ("fourpoint anomalies model events.parquet -o ranking.csv",),
    "stream": (
        """printf '{"time": 0.1}\\n{"time": 0.3}\\n' > feed.jsonl""",
        "fourpoint stream model feed.jsonl -o scores.jsonl",
    ),
    "token": ("fourpoint token tokens --name me --scope read,write",),
    "serve": ("fourpoint serve model --store sqlite:///events.db --token-file tokens --port 8000",),
    "refit": ("fourpoint refit model --store sqlite:///events.db -o refitted",),
    "reproduce": ("fourpoint reproduce table1 --quick --only hawkes/hawkes --jobs 0 -o results",),
}


def example_text(command: str) -> str:
    """The example of a command as the last lines of its help.

    >>> example_text("demo")
    'Example: fourpoint demo -o demo'
    """
    lines = EXAMPLES.get(command, ())
    if not lines:
        return ""
    return "\n\n".join(["Example: " + lines[0], *lines[1:]])
