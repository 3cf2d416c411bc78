"""Parse every document that a node, a recorded job or a container sends: typed, bounded and strict.

Nothing else in this program reads raw JSON from a node. Each module beside this one defines the documents of one
conversation (jobs, facts, locks, ...) as `msgspec.Struct` types or dataclasses. `decode` is the only parser.
"""

from provision.documents.decoding import DEPTH_LIMIT, SIZE_LIMIT, convert, decode, decode_last_line
from provision.documents.text import PrintableLine, PrintableText, printable_line, printable_text, printable_values
