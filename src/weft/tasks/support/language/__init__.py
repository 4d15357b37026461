"""Language: generation, prompt formats, chats and few-shot use, for tasks that read or write texts."""

from weft.foundation.packages import open_lazily

__getattr__ = open_lazily(__name__)
