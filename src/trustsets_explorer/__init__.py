"""The explorer: a local page on which a person moves parameters and watches coverage.

`state` says what can be asked and checks it. `session` keeps the data and what was computed;
`answers` and `details` make what the page shows, `exports` what leaves it. `server` is the only
file that speaks HTTP, and `launch` starts it.
"""

from trustsets_explorer.launch import Explorer, explore

__all__ = ["Explorer", "explore"]
