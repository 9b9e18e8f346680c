"""How fast fastppo runs here, beside what this machine's cores allow: `python main.py bench`.

    command -> session -> one (a fresh process a measurement) -> table
                              |- limit: environment alone, FLOPs, GEMM peak
                              |- trace: who did what when
    peers: other systems, in their own Python
"""
