"""The names of the files in the folder of a run."""

MODEL_FILE, BEST_FILE = "model.safetensors", "best.safetensors"  # policies
CONFIG_FILE, SUMMARY_FILE = "config.json", "summary.json"
METRICS_FILE, EPISODES_FILE = "metrics.csv", "episodes.csv"
COMMAND_FILE, SYSTEM_FILE, OUTPUT_FILE = "command.txt", "system.json", "output.txt"
# Those of a run without an iteration.
START_FILES = {CONFIG_FILE, COMMAND_FILE, SYSTEM_FILE, SUMMARY_FILE, METRICS_FILE, EPISODES_FILE}
