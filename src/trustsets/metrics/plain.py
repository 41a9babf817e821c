"""Moved to `trustsets._common`; goes when the last import of it is gone."""

from trustsets._common.plain import PlainData, from_plain, to_plain

__all__ = ["PlainData", "from_plain", "to_plain"]
