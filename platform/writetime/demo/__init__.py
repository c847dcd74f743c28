"""The demo's data: real flights as events."""
