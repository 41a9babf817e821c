"""The paper itself: its datasets, models, experiments and tables. Needs ``trustsets[paper]``."""
