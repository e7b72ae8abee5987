"""Models of events with places."""
