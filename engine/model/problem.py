"""The one exception for a model that can't be had or used: fetching, opening, reading, unknown kinds."""


class ModelProblem(Exception):
    """The message is for people: what is wrong with which file, and what to do about it."""
