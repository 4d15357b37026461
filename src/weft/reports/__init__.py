"""Reports: what a training reached, as one page in its run folder, `report.html`.

- train.py: `weft.train`, training that ends with its report;
- report.py: the page; plan_panels.py, score_panels.py and data_panels.py: its parts; attention_example.py: held-out
  examples as `weft look` draws them; command.py: the command that trains the same again.

It stands above training, which knows no pictures, and inspection, which knows no training.
"""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
