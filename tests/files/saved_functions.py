"""Functions at the top of a module, which files can name."""


def complement(probabilities):
    return 1.0 - probabilities


def is_sure(outputs):
    return outputs.confidence > 0.6


class Holder:
    @staticmethod
    def column(outputs):
        return outputs.confidence[:, None]
