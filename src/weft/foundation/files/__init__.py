"""Files and folders: atomic writing, private folders, JSON and tensors read within bounds."""
