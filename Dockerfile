# docker build -t fastppo .
# docker run --rm -it -v "$PWD/runs:/fastppo/runs" fastppo --env_name=CartPole-v1 --seed=1
#
# For the CPU. The usual 64 MB of /dev/shm are enough: the arena is a memfd, which that limit does not
# concern, and fastppo has nothing else there.
FROM python:3.12-slim

RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /fastppo
COPY . .

# First the build of torch without CUDA, which is 200 MB instead of about 3 GB.
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu \
        "$(grep ^torch== constraints.txt)" \
    && pip install --no-cache-dir -e . -c constraints.txt \
    && python -c "import fastppo._kernels"

ENTRYPOINT ["fastppo"]
