"""The modules that all packages use: settings, errors, times, logs, alerts."""
