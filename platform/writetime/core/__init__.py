"""Used by every room: settings, errors, times, logs, alerts."""
