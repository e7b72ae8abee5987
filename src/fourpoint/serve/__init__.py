"""A live service around the stream engine: events in, rates and alarms out, nothing lost.

`service` owns the streams in one thread and commits each batch of events to a `store` before it is
acknowledged; `app` is the HTTP interface. The package needs the extra ``serve``; PostgreSQL needs
the extra ``postgres``. Nothing of it is imported by ``import fourpoint``.
"""
