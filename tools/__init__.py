"""What developers run, and no part of the platform."""
