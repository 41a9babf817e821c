"""The explorer: a local page on which a person moves parameters and watches coverage.

`state` says what can be asked and checks it. `session` computes what the page shows, `samples` what
is behind a number, `exports` what leaves the page. `server` is the only file that speaks HTTP, and
`launch` starts it.
"""

from trustsets_explorer.launch import Explorer, explore, explore_files, explore_task

__all__ = ["Explorer", "explore", "explore_files", "explore_task"]
