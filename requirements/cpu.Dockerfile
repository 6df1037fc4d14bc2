# ocr_phases on a CPU: docker build -f requirements/cpu.Dockerfile -t ocr_phases .
FROM python:3.11-slim-bookworm
WORKDIR /opt/ocr_phases
COPY . .
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu -c requirements/constraints.txt .
RUN useradd --create-home reader
USER reader
WORKDIR /home/reader
ENTRYPOINT ["ocr-phases"]
