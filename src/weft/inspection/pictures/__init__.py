"""Pictures: what `weft look` draws.

- look.py: an input shown to a run, and its picture; look_options.py: what users ask for; show.py: `seen.show()`;
- one file per task, registered in task_picture.py under the name that the task declares as `picture`; generic.py draws
  tasks that declare none; token_panels.py: what pictures of encoders share;
- picture_kinds.py: other kinds for `--kind`, drawn by attention_kinds.py, stream_kinds.py, model_kinds.py and
  explain_kind.py;
- observation.py: what was seen, with labels and capabilities; inputs.py, labels.py; panels.py: parts of many pictures.
"""
