"""Events from a topic of Kafka.

Partitions are assigned by the group protocol. A message's value is a JSON object; its key should be
the entity, so that all events of an entity are in one partition. Offsets are kept in the store of
the group, not in Kafka: the consumer seeks to them when a partition is assigned to it. A position
is the offset of the next message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from fourpoint.errors import UserError
from fourpoint.serve.brokers.partition import Messages

AWAY = 30.0  # seconds in which a broker must answer a question
AT_ONCE = 10_000  # messages that are taken at once


def client_module() -> Any:
    """The package confluent_kafka; raises :class:`UserError` without the extra ``kafka``."""
    try:
        import confluent_kafka
    except ImportError:
        raise UserError(
            "the package confluent-kafka for events from Kafka",
            "an installation without it",
            "Install fourpoint[kafka].",
        ) from None
    return confluent_kafka


class KafkaSource:
    """Reads ``topic`` from ``servers`` as a member of ``group``.

    ``latest`` says that a partition without a position is read from its end on, not from its
    begin. ``options`` are those of librdkafka, such as security settings.
    """

    def __init__(
        self,
        servers: str,
        topic: str,
        group: str,
        *,
        latest: bool = False,
        options: Mapping[str, str] | None = None,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.name = f"{servers} {topic}"
        self._kafka = client_module()
        self._topic = topic
        self._latest = latest
        self._tell = tell
        settings: dict[str, Any] = {
            "bootstrap.servers": servers,
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            # A position that the broker no longer has is an error, never a guess.
            "auto.offset.reset": "error",
            "session.timeout.ms": 10_000,
            "partition.assignment.strategy": "range",
            "log_level": 0,
        }
        try:
            self._consumer = self._kafka.Consumer({**settings, **(options or {})})
        except self._kafka.KafkaException as error:
            raise UserError(
                "options that librdkafka knows", f"{error}", "Check --kafka and its options."
            ) from None
        self._open: dict[int, int] = {}  # the next offset of each partition that is read

    def subscribe(
        self,
        assigned: Callable[[list[int]], None],
        revoked: Callable[[list[int]], None],
        lost: Callable[[list[int]], None],
    ) -> None:
        """Take part in the group. ``assigned`` has to open partitions; ``revoked`` may still
        commit what was done with them, ``lost`` may not.
        """

        def on_assign(consumer: object, parts: list[Any]) -> None:
            assigned([one.partition for one in parts])
            self._consumer.assign(
                [self._place(part, self._open[part]) for part in sorted(self._open)]
            )

        def on_revoke(consumer: object, parts: list[Any]) -> None:
            revoked([one.partition for one in parts])
            self._consumer.unassign()

        def on_lost(consumer: object, parts: list[Any]) -> None:
            lost([one.partition for one in parts])
            self._consumer.unassign()

        self._consumer.subscribe(
            [self._topic], on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost
        )

    def open(self, part: int, position: str | None) -> None:
        """Read a partition from ``position`` on; None: from its begin, or its end where
        ``latest``.
        """
        if position is not None:
            self._open[part] = int(position)
        elif self._latest:
            self._open[part] = self._kafka.OFFSET_END
        else:
            self._open[part] = self._kafka.OFFSET_BEGINNING

    def assign(self) -> None:
        """Read all partitions that were opened, without taking part in the group."""
        self._consumer.assign([self._place(part, self._open[part]) for part in sorted(self._open)])

    def parts(self) -> list[int]:
        """The topic's partitions."""
        return sorted(self.ends())

    def close_partition(self, part: int) -> None:
        """Read no more of a partition."""
        self._open.pop(part, None)

    def poll(self, seconds: float) -> list[Messages]:
        """Messages of the partitions that are assigned, after at most so many seconds."""
        found: dict[int, Messages] = {}
        for message in self._consumer.consume(AT_ONCE, timeout=seconds):
            error = message.error()
            if error is not None:
                self._note(error)
                continue
            part = message.partition()
            # Messages that were fetched before partitions changed hands come again.
            if part not in self._open or message.offset() < self._open[part]:
                continue
            self._open[part] = message.offset() + 1
            one = found.setdefault(part, Messages(part, [], []))
            one.positions.append(str(message.offset() + 1))
            one.contents.append(message.value() or b"")
        return list(found.values())

    def _note(self, error: Any) -> None:
        """Errors of single brokers pass; what cannot be mended by waiting is raised."""
        codes = self._kafka.KafkaError
        if error.code() == codes._AUTO_OFFSET_RESET:
            raise UserError(
                "messages at the committed position of every partition",
                f"{error}",
                "They were deleted before they were read: keep them for longer, and start a new "
                "--group.",
            )
        if error.code() in (codes.UNKNOWN_TOPIC_OR_PART, codes._UNKNOWN_TOPIC):
            raise UserError(f"a topic {self._topic!r}", f"{error}", "Make it, or check --topic.")
        if error.fatal():
            raise OSError(f"{error} (Kafka)")
        if error.code() != codes._PARTITION_EOF:
            self._tell(f"Kafka: {error}")

    def ends(self) -> dict[int, str | None]:
        """The end of each partition at present; None where there is no message."""
        try:
            about = self._consumer.list_topics(self._topic, timeout=AWAY)
            found: dict[int, str | None] = {}
            for part in about.topics[self._topic].partitions:
                place = self._place(part, 0)
                low, high = self._consumer.get_watermark_offsets(place, timeout=AWAY)
                found[part] = None if high <= low else str(high)
        except self._kafka.KafkaException as error:
            raise OSError(f"{error} (Kafka)") from None
        return found

    def is_done(self, position: str | None, end: str | None) -> bool:
        """Whether ``position`` is at or after ``end``."""
        return end is None or (position is not None and int(position) >= int(end))

    def committed(self, positions: Mapping[int, str]) -> None:
        """Show in Kafka how far partitions are done, for its tools; nothing is read from it."""
        places = [self._place(part, int(position)) for part, position in positions.items()]
        with suppress(self._kafka.KafkaException):
            self._consumer.commit(offsets=places, asynchronous=True)

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()

    def _place(self, part: int, offset: int) -> Any:
        return self._kafka.TopicPartition(self._topic, part, offset)
