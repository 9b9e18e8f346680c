"""Where metrics go: CSV files, TensorBoard, trackio, wandb.

A chapter: imported with run_dir and logger.
"""
