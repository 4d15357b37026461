"""Errors that a user can cause: one sentence that names the thing, the sizes and the remedy."""


class WeftError(Exception):
    """Anything a user can cause and cure; the command line prints it as one sentence and exits with 2."""


class SpecError(WeftError):
    """A spec with an unknown, missing, ill-typed or contradictory field."""


class ShapeError(WeftError):
    """A tensor whose axes do not fit the part it was given to."""


class LengthError(WeftError):
    """A sequence longer than the positions, the state or the declared length can hold."""
