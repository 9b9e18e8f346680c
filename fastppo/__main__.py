"""The command without a checkout: `python -m fastppo --env_name=LunarLander-v3 --seed=1`."""

from fastppo.cli.main import main

if __name__ == "__main__":
    main()
