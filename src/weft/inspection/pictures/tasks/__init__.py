"""Pictures of tasks: how an input is shown to a run of each task, and the picture that shows it best."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
