"""Iceberg metadata over the Parquet files and deletion vectors of the lake's Delta tables. No data file is written.

pyiceberg (0.12) has the models of schemas, the Avro schemas of manifests, the bytes of bounds, and the catalogs. It
writes neither manifests, manifest lists and metadata of format version 3, nor deletion vectors, so these are made here.
"""
