"""Pictures: what `weft look` draws.

- look.py: an input shown to a run, and its picture; look_options.py: what users ask for; show.py: `seen.show()`;
- tasks/: one file per task, registered in task_picture.py under the name that the task declares as `picture`;
  generic.py draws tasks that declare none; token_panels.py: what pictures of encoders share;
- kinds/: other kinds for `--kind`, listed in registry.py, drawn by attention.py, stream.py, model.py and explain.py;
- observation.py: what was seen, with labels and capabilities; inputs.py, labels.py; panels.py: parts of many pictures.
"""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
