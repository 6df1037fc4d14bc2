# ocr_phases on an NVIDIA GPU: docker build -f requirements/cuda.Dockerfile -t ocr_phases:cuda .
# PyTorch's wheel brings the CUDA libraries with it; the driver comes from the host with --gpus.
FROM python:3.12-slim-bookworm
# torch.compile builds kernels with a C compiler.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/ocr_phases
COPY . .
RUN pip install --no-cache-dir -c requirements/constraints.txt .
RUN useradd --create-home reader
USER reader
WORKDIR /home/reader
ENTRYPOINT ["ocr-phases"]
