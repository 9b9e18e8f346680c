# docker build -t fastppo .                            # with extras: --build-arg EXTRAS=atari,wandb
# mkdir -p runs
# docker run --rm -it -v "$PWD/runs:/fastppo/runs" fastppo --env_name=CartPole-v1 --seed=1
#
# For the CPU. It runs as the user 1000; for a folder of another user add --user "$(id -u)". The usual
# 64 MB of /dev/shm are enough: the arena is a memfd, which that limit does not concern, and fastppo
# has nothing else there.
FROM python:3.12-slim

RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 1000 --create-home fastppo

WORKDIR /fastppo

# What it needs, before the source: another source changes nothing here. First the build of torch
# without CUDA, which is 200 MB instead of about 3 GB.
COPY pyproject.toml constraints.txt ./
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu \
        "$(grep ^torch== constraints.txt)"
ARG EXTRAS=""
RUN python -c 'import sys, tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
extras = [project["optional-dependencies"][name] for name in sys.argv[1].split(",") if name]; \
print(*project["dependencies"], *sum(extras, []), sep="\n")' "$EXTRAS" > /tmp/requirements.txt \
    && pip install --no-cache-dir -r /tmp/requirements.txt -c constraints.txt

COPY . .
RUN pip install --no-cache-dir --no-deps -e . \
    && python -c "import fastppo._kernels" \
    && mkdir -p runs && chown fastppo runs

USER fastppo
ENTRYPOINT ["fastppo"]
