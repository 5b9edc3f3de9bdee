# The course on a GPU box, without rights of an administrator; everything that it makes lies in one volume.
#
#   docker build -t chinese-gpt .
#   docker run --gpus all -v chinese-gpt:/data chinese-gpt                                    # the six notebooks
#   docker run --gpus all -v chinese-gpt:/data -v "$PWD/texts:/texts:ro" chinese-gpt \
#       python -m helpers.run --run mine --corpus /texts --preset gpu
#   docker run --gpus all -v chinese-gpt:/data -p 127.0.0.1:8888:8888 chinese-gpt \
#       python -m jupyterlab --ip=0.0.0.0 notebooks/01_corpus.ipynb
#   docker run --gpus all -v chinese-gpt:/data -p 127.0.0.1:5005:5005 -e CHINESE_GPT_API_KEY=… chinese-gpt \
#       python -m helpers.serve --run mine --host 0.0.0.0
#
# A mirror of the package index: --build-arg PIP_INDEX_URL=…; one of the Hugging Face Hub: -e HF_ENDPOINT=….
# Of CUDA, the driver comes from the machine and the libraries from PyTorch's own packages: the base has next to nothing.
ARG BASE=nvidia/cuda:13.0.2-base-ubuntu24.04
FROM ${BASE}

RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 python3-venv fonts-noto-cjk ca-certificates \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --create-home --uid 10001 reader \
 && mkdir /course /data && chown reader:reader /course /data

USER reader
WORKDIR /course
RUN python3 -m venv /course/.venv
ENV PATH=/course/.venv/bin:$PATH RUNS_DIR=/data/runs HF_HOME=/data/huggingface GOMP_SPINCOUNT=5000 LANG=C.UTF-8
# what changes seldom first: an edit of a notebook installs nothing again
COPY --chown=reader:reader pyproject.toml constraints.txt README.md LICENSE ./
ARG PIP_INDEX_URL
RUN mkdir helpers && touch helpers/__init__.py \
 && pip install --no-cache-dir -e ".[text]" -c constraints.txt \
 && python -m ipykernel install --sys-prefix --name python3
COPY --chown=reader:reader . .

VOLUME /data
EXPOSE 5005 8888
CMD ["python", "-m", "helpers.run", "--run", "sample"]
