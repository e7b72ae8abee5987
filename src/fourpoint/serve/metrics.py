"""Statistics of the service in the text format of Prometheus."""

from __future__ import annotations

import resource
import sys
import time as clocks
from collections.abc import Mapping
from pathlib import Path

from fourpoint.serve.guard import EDGES, Statistics
from fourpoint.serve.service import Service

PAGE = resource.getpagesize()
MEMORY = Path("/proc/self/statm")


def metrics_text(service: Service, statistics: Statistics) -> str:
    """All metrics, one per line."""
    engine = service.engine
    counters = engine.counters
    totals = {
        "events": ("Events stored.", counters.events),
        "duplicates": ("Events whose id was known.", counters.duplicates),
        "late": ("Events stored that came too late to be scored.", counters.late),
        "unscored": ("Events stored that the model could not score.", engine.live.totals.unscored),
        "refused": ("Events refused.", counters.refused),
        "alarms": ("Alarms raised.", counters.alarms),
    }
    present: dict[str, tuple[str, float]] = {
        "entities": ("Entities followed.", len(engine.live)),
        "queued_events": ("Events that wait for the engine.", service.queued),
        "waiting_events": ("Events that wait for the watermark.", len(engine.watermark)),
        "live_clients": ("Clients of /live.", len(service.live)),
        "ready": ("Whether events are accepted.", int(service.is_ready)),
        "uptime_seconds": ("Seconds since the start.", clocks.time() - service.started),
        "resident_bytes": ("Memory of the process.", resident_bytes()),
        "store_bytes": ("Size of the store.", service.store.size),
        "log_likelihood": ("Of all scored events.", engine.live.totals.log_likelihood),
    }
    lines: list[str] = []
    for name, (help, count) in totals.items():
        lines += _metric(f"{name}_total", "counter", help, {"": count})
    for name, (help, value) in present.items():
        lines += _metric(name, "gauge", help, {"": value})
    requests: dict[str, float] = {}
    for (method, path, status), count in sorted(statistics.requests.items()):
        labels = f'{{method="{method}",path="{path}",status="{status}"}}'
        requests[labels] = count
    lines += _metric("requests_total", "counter", "Requests.", requests)
    lines += _durations(statistics)
    return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, help: str, values: Mapping[str, float]) -> list[str]:
    """A metric with its values by labels."""
    full = f"fourpoint_{name}"
    lines = [f"# HELP {full} {help}", f"# TYPE {full} {kind}"]
    for labels, value in values.items():
        lines.append(f"{full}{labels} {value:.17g}")
    return lines


def _durations(statistics: Statistics) -> list[str]:
    """The histogram of how long requests took."""
    name = "fourpoint_request_seconds"
    lines = [f"# HELP {name} How long requests took.", f"# TYPE {name} histogram"]
    edges = (*EDGES, "+Inf")
    total = 0
    for edge, count in zip(edges, statistics.buckets, strict=True):
        total += count
        lines.append(f'{name}_bucket{{le="{edge}"}} {total}')
    lines.append(f"{name}_sum {statistics.seconds:.17g}")
    lines.append(f"{name}_count {total}")
    return lines


def resident_bytes() -> int:
    """Memory that this process has in use; its peak where the system does not say."""
    try:
        return int(MEMORY.read_text().split()[1]) * PAGE
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
