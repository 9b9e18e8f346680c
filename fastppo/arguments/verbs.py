"""The verbs of the command, and the function of each."""

VERBS = {
    "train": "trains; the verb where none is named",
    "eval": "plays a trained policy, and prints the returns",
    "play": "shows a trained policy in a window or a video",
    "plot": "draws the learning curves of runs",
    "compare": "compares two groups of runs over their seeds",
    "envs": "lists the environments that can be trained on here",
    "doctor": "describes and tests the installation and the machine",
    "bench": "measures how fast training is on this machine",
    "export": "writes a trained policy as ONNX or TorchScript",
    "replay": "runs an episode again in which an environment failed",
    "reproduce": "trains a run again, and says which bits agree",
}
