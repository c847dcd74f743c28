"""What every room may use: settings, errors, instants, logs, alerts."""
