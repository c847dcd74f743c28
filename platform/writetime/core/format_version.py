"""The version of Writetime's format: folders and Delta properties of the lake, transaction ids, topics and messages."""

FORMAT_VERSION = 1
