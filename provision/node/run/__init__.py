"""Programs for `provision run`; those for containers are sent as the text of one module."""
