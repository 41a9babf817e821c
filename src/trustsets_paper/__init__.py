"""The paper itself: its datasets, networks, protocol, tables and baselines.

Needs ``pip install 'trustsets[paper]'``; `trustsets paper --help` lists the commands. This package
uses `trustsets` through its public names only.
"""
