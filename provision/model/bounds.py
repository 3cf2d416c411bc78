"""Limits of texts and numbers from nodes: lengths and patterns that msgspec verifies when it decodes a document."""

from typing import Annotated

from msgspec import Meta

Text = Annotated[str, Meta(max_length=262_144)]
"""The output of a program, or a reason that contains it."""
Line = Annotated[str, Meta(max_length=8192, pattern=r"^[^\x00-\x1f\x7f]*\Z")]
ShortText = Annotated[str, Meta(max_length=512, pattern=r"^[^\x00-\x1f\x7f]*\Z")]
JobName = Annotated[str, Meta(max_length=63, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?\Z")]
NodeName = Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[^\x00-\x20\x7f/]+\Z")]
Identifier = Annotated[str, Meta(max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*\Z")]
Uuid = Annotated[str, Meta(max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9/_.:-]*\Z")]
Container = Annotated[str, Meta(max_length=128, pattern=r"^([A-Za-z0-9][A-Za-z0-9_.-]*)?\Z")]
Address = Annotated[str, Meta(max_length=255, pattern=r"^([A-Za-z0-9:\[][A-Za-z0-9_.:\[\]%-]*)?\Z")]
Digest = Annotated[str, Meta(max_length=512, pattern=r"^([A-Za-z0-9][A-Za-z0-9._:/@+-]*)?\Z")]
Url = Annotated[str, Meta(max_length=300, pattern=r"^(http://[A-Za-z0-9.:\[\]%-]+:[0-9]{1,5})?\Z")]
Time = Annotated[float, Meta(ge=0, le=1e11)]
"""Seconds since the epoch."""
