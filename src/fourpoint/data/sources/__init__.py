"""The paper's four real sources, as converters from the files that their owners hand out.

    mimic         MIMIC-III's ADMISSIONS.csv: patients with at least three visits
    memetracker   SNAP's quotes_*.txt.gz and phrase clusters: memes and the posts that mention them
    lobster       LOBSTER's message files: trades, or all messages, of a stock and day
    trades        plain files of trades: time and side
    congestion    road authorities' files of congestion: time, site and level, one sequence per day

Each takes a path and options by keyword, and returns the events and notes for the user: what was
left out, put in order or inferred. No data comes with Fourpoint; docs/sources says
where each comes from and under which terms.
"""

from __future__ import annotations

from collections.abc import Callable

from fourpoint.data.sample import Matches
from fourpoint.data.sources import congestion, memetracker, mimic, transactions
from fourpoint.events import Dataset

Source = Callable[..., tuple[Dataset, list[str]]]

SOURCES: dict[str, Source] = {
    "mimic": mimic.read,
    "memetracker": memetracker.read,
    "lobster": transactions.read_lobster,
    "trades": transactions.read_trades,
    "congestion": congestion.read,
}
# Sources that are recognised by their files.
RECOGNISED: dict[str, Matches] = {
    "mimic": mimic.matches,
    "lobster": transactions.matches_lobster,
    "memetracker": memetracker.matches,
}
