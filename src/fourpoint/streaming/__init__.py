"""Live events: one stream, many of them, and alarms where the model no longer fits.

`stream` scores one feed event by event, `bank` many entities as one batch, `monitoring` watches the
rescaled gaps. The rest serves them: `steppers`, `kept`, `rows` and `model_queries` evaluate a
model, `state` packs what is remembered, `entity_table` and `store` hold entities.
"""

from fourpoint.streaming.bank import StreamBank
from fourpoint.streaming.monitoring import Alarm, Monitor
from fourpoint.streaming.stream import Attended, Observation, Stream

__all__ = ["Alarm", "Attended", "Monitor", "Observation", "Stream", "StreamBank"]
