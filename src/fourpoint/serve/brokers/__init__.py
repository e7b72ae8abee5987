"""Events from brokers, and alarms to them: Redis Streams, Kafka and webhooks.

`redis_source` and `kafka_source` read messages of partitions from given positions on; `group` is a
worker that shares partitions with others through a common store (`group_store`), which holds states
and positions together, so that each event counts once; `partition` scores; `sinks` and `webhook`
send alarms. The clients are extras (``redis``, ``kafka``), imported when they are used.
"""

from fourpoint.serve.brokers.webhook import sign, verify

__all__ = ["sign", "verify"]
