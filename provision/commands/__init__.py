"""Pure builders of command lines; nothing here executes."""
