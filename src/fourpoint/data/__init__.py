"""Where events come from: files (readers), embedded sets (datasets) and processes with a known
truth (synthetic).
"""
