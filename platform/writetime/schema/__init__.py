"""The meaning of the bytes: CQL types, table schemas and their history, and how each type maps to Arrow, Spark and
Avro.
"""
