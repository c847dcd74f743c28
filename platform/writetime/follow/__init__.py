"""A pipeline that never stops: changes land, row events are found and published, views are refreshed."""
