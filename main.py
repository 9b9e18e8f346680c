"""The command: `python main.py --env_name=LunarLander-v3 --seed=1`; `--help` lists every setting."""

from fastppo.cli import main

if __name__ == "__main__":
    main()
