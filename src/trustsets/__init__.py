"""Prediction sets that keep their coverage where the classifier is overconfident."""
