"""The command ``fourpoint stream``: lines in, scores out, each exactly once whatever stops it.

`feed` puts it together and ends it, `loop` takes, scores, writes and saves, `lines` reads a file, a
growing file or a pipe, `events` turns a line into a scored event, `state` is what survives a crash.
"""
