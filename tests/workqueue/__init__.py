"""The work queue: a model of its protocol, simulated workers, real ones on real servers, and faults."""
