"""Pictures of tasks: how an input is shown to a run of each task, and the picture that shows it best."""
