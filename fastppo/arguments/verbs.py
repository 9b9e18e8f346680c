"""The verbs of the command, and the function of each."""

VERBS = {
    "train": "trains; the verb where none is named",
    "bench": "measures how fast training is on this machine",
    "export": "writes a trained policy as ONNX or TorchScript",
    "replay": "runs an episode again in which an environment failed",
    "eval": "plays episodes with a trained policy, and prints their returns",
    "play": "shows a trained policy in a window, or writes a video",
    "plot": "draws the learning curves of runs",
    "compare": "compares two groups of runs over their seeds",
    "reproduce": "trains a run again, and says which bits agree",
    "envs": "lists the environments that can be trained on here",
    "doctor": "describes the installation and the machine, and tests them",
}
