"""Sets from scikit-learn classifiers, and from models that speak its language."""

from trustsets.classifier.set_classifier import TrustSetClassifier
from trustsets.classifier.set_scorer import SetScorer

__all__ = ["SetScorer", "TrustSetClassifier"]
