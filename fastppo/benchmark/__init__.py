"""Measures the speed of fastppo on this machine against its limit: `python main.py bench`.

    cli.bench -> session -> measure_one (a fresh process per measurement) -> figures -> table
                                |- limit: the environment alone, FLOPs, GEMM peak
                                |- trace: a timeline of all processes
    peers: other systems, in their own Python

May import: ppo and what that may import.
"""
