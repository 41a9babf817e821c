"""Exact nearest-neighbour distances to a query's own class and to the nearest other class.

- `inputs`: checks of features and labels;
- `points`: the reference points, grouped by class, and what a search returns;
- `search`: which of the searches serves;
- `sketch`: lower bounds by projection, with the proof of their rounding;
- `kernels`, `exact`: the search on the CPU (numba);
- `partial`: the same search where the points lie in several places;
- `torch_search`: the same search in torch, on a GPU or not;
- `ratio`: what every trust score makes of these distances;
- `approximate`: faster searches that may miss the nearest class.

Nothing is imported here: each file needs other libraries, which are loaded only where it is used.
"""
