"""The HTTP ingress of events and of work items."""
