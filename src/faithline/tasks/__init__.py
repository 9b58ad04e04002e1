"""One dataset a file, loaded by path (see docs/add-a-task.md)."""
