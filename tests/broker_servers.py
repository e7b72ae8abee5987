"""Servers that tests of brokers start by themselves; a test skips with the reason where one is not
installed.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PATIENCE = 600.0  # seconds: longer than any machine takes


def wait_until(is_true: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not is_true():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.02)


def _servers() -> ModuleType:
    """The servers of the benchmarks."""
    name = "benchmark_service_processes"
    if name not in sys.modules:
        file = Path(__file__).parents[1] / "benchmarks" / "service_processes.py"
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@contextmanager
def redis_server(folder: Path) -> Iterator[Any]:
    pytest.importorskip("redis", reason="the package redis is not installed (fourpoint[redis])")
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed (Debian: apt-get install redis-server)")
    server = _servers().Redis(folder)
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def kafka_broker(topic: str) -> Iterator[tuple[Any, str]]:
    """The broker for tests that librdkafka brings, in this process: a producer and its address."""
    kafka = pytest.importorskip(
        "confluent_kafka", reason="confluent-kafka is not installed (fourpoint[kafka])"
    )
    producer = kafka.Producer(
        {"test.mock.num.brokers": 1, "bootstrap.servers": "mock", "log_level": 0}
    )
    about = producer.list_topics(topic, timeout=60)
    yield producer, ",".join(f"{one.host}:{one.port}" for one in about.brokers.values())
    producer.flush(60)


@contextmanager
def postgres_server() -> Iterator[Any]:
    pytest.importorskip("psycopg", reason="psycopg is not installed (fourpoint[postgres])")
    if _servers().postgres_programs() is None:
        pytest.skip("PostgreSQL is not installed (Debian: apt-get install postgresql)")
    server = _servers().Postgres(durable=False)
    try:
        yield server
    finally:
        server.close()
