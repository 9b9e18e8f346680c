"""The command: its line, the folder of its run, and one module per verb."""
