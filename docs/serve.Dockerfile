# An image that serves the runs in /runs. From the root of the repository:
#   docker build -f docs/serve.Dockerfile -t weft-serve .
#   docker run -p 8000:8000 -v "$PWD/runs:/runs:ro" -v "$PWD/keys.txt:/keys.txt:ro" weft-serve book=/runs/book
FROM python:3.12-slim
# The native decoding step is compiled at its first use, and kept in the cache of the user.
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /weft
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir --index-url https://download.pytorch.org/whl/cpu torch==2.13.0 \
    && pip install --no-cache-dir -c constraints.txt '.[serve]'
RUN useradd --create-home --uid 10001 weft
USER weft
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s CMD \
    python -c "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/ready', timeout=2)"
ENTRYPOINT ["weft", "serve", "--host", "0.0.0.0", "--port", "8000", "--api-key-file", "/keys.txt"]
