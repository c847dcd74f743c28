"""The whole platform with a running ScyllaDB: `make test-scylla SCYLLA=host:port`.

    pytest tests/scylla --scylla 127.0.0.1:9042 --scylla-tablets on

Without `--scylla` these tests are skipped. With it, the tests of ingest, of the work queue and of replay use that
database, too. Each run makes keyspaces of its own, with tablets or with vnodes, and drops them at its end.
`GENERATOR_SEED` makes other tables and writes.
"""
