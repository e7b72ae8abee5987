"""The shapes of requests and responses, for the OpenAPI description."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

Time = str | float


class EventIn(BaseModel):
    """An event. Its time is written as in the log that the model was fitted to: ISO 8601 text, or a
    number. Event features of the model are further fields.
    """

    model_config = ConfigDict(extra="allow")
    id: str | int | None = Field(
        None, description="Unique for every event, so that sending an event again is safe."
    )
    entity: str | int | None = Field(None, description="The entity of the event.")
    time: Time
    mark: str | int | None = Field(None, description="The type of the event.")


class Refusal(BaseModel):
    """An event that was not accepted."""

    index: int = Field(description="Its place in the request, from 0.")
    error: str


class Alarm(BaseModel):
    """An alarm with its evidence."""

    id: int
    time: Time | None
    kind: str = Field(description="burst, silence or drift.")
    of: str = Field(description="What is monitored: entity, type or fleet.")
    name: str | None
    direction: str | None
    size: float = Field(
        description="The ratio of the observed to the modelled rate; for a drift "
        "the Kolmogorov-Smirnov distance."
    )
    statistic: float
    threshold: float
    event: int
    entity: str
    acknowledged: dict[str, Any] | None
    suggestion: str | None = None


class Receipt(BaseModel):
    """What became of the events of a request, after they were stored."""

    accepted: int
    duplicates: int
    late: int = Field(description="Accepted and stored, too late to be scored.")
    refused: list[Refusal]
    alarms: list[Alarm]


class StoredEvent(BaseModel):
    """An event as it is stored."""

    id: str | None
    entity: str
    time: Time | None
    mark: str | None
    late: bool


class Events(BaseModel):
    """Stored events."""

    events: list[StoredEvent]


class Entity(BaseModel):
    """What is known of an entity."""

    id: str
    events: int = Field(description="The number known.")
    rate: float = Field(description="Events per unit of time, now.")
    rates: dict[str, float] = Field(description="The same per mark.")
    last_event: Time | None
    surprise: float = Field(description="How close it is to an alarm; at 1 an alarm is raised.")


class Entities(BaseModel):
    """Some of the entities."""

    total: int
    entities: list[Entity]


class Alarms(BaseModel):
    """Alarms, the latest first."""

    alarms: list[Alarm]


class Count(BaseModel):
    """How many events: mean, quantiles and the probability of any."""

    mean: float
    q05: float
    q50: float
    q95: float
    p_any: float


class NextEvent(BaseModel):
    """When the next event comes, with a 90% interval; null: after all times."""

    median: Time | None
    mean: Time | None
    low: Time | None
    high: Time | None
    never: float
    marks: dict[str, float]


class Bands(BaseModel):
    """The rate on a grid of times: its mean and a 90% band."""

    times: list[Time | None]
    mean: list[float]
    low: list[float]
    high: list[float]


class Forecast(BaseModel):
    """What is expected."""

    entity: str
    at: Time | None
    horizon: float
    unit: str | None
    total: Count
    counts: dict[str, Count]
    next: NextEvent
    bands: Bands
    notes: list[str]


class Effect(BaseModel):
    """What a past event adds to the rate now."""

    time: Time | None
    mark: str
    effect: float
    effects: dict[str, float]


class Explanation(BaseModel):
    """Where the rate now comes from."""

    entity: str
    at: Time | None
    rate: float
    rates: dict[str, float]
    baseline: float
    past_events: int
    events: list[Effect]


class Model(BaseModel):
    """The model that is followed, and what it has scored."""

    changed: bool
    model: str
    fingerprint: str
    events: int
    log_likelihood: float


class Digest(BaseModel):
    """A hash of the state of all entities after a number of events."""

    digest: str
    events: int


class Health(BaseModel):
    """Whether the service works."""

    status: str


class Problem(BaseModel):
    """What is wrong, in three clauses: expected, received, what to do."""

    error: str
