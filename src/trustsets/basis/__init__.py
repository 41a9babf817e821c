"""Function classes: over what coverage is asked to hold. Imports statistics and below."""

from trustsets.basis.base import Basis, FittedBasis, FittedPartition, Partition, Sum
from trustsets.basis.functions import Custom, Intercept, Polynomial, PrincipalComponents
from trustsets.basis.partitions import Bins, FittedBins, FittedGroups, Groups

__all__ = [
    "Basis",
    "Bins",
    "Custom",
    "FittedBasis",
    "FittedBins",
    "FittedGroups",
    "FittedPartition",
    "Groups",
    "Intercept",
    "Partition",
    "Polynomial",
    "PrincipalComponents",
    "Sum",
]
