# The service from a wheel (`make dist`); the chart beside this file runs it.
#   docker build -f deploy/service.Dockerfile -t parcae:0.1.0 .
FROM python:3.12-slim
RUN --mount=type=bind,source=dist,target=/dist \
    pip install --no-cache-dir /dist/parcae_scheduler-*.whl
# Nobody: the service needs no home, and writes only below NUMBA_CACHE_DIR.
USER 65534:65534
ENV NUMBA_CACHE_DIR=/tmp/parcae
ENTRYPOINT ["parcae"]
