"""The JSON documents of the verbs: their types, from which mypy verifies the code and `schema` makes JSON Schemas.

Keys are an interface and only ever added. A module has types alone, and is imported by type checkers and `schema` only.
"""
