"""The command: `python main.py --env_name=LunarLander-v3 --seed=1`; `--help` lists the rest."""

from fastppo.cli.main import main

if __name__ == "__main__":
    main()
