# The merge job, and Spark's own master and worker: a Java runtime, pyspark, and the jars fetched while it is built.
#   docker build -f docker/merge.Dockerfile -t cdcflow-merge .
FROM python:3.12.15-slim-bookworm@sha256:34386ef0cb081344d7ec1c103ba398e6e9f64e9ab3a1509accc92a4e24a07258 AS java
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends openjdk-17-jre-headless \
 && rm -rf /var/lib/apt/lists/*

FROM java AS build
WORKDIR /build
COPY pyproject.toml setup.py constraints.txt README.md LICENSE ./
COPY src ./src
COPY docs/runbook/errors.md ./docs/runbook/errors.md
RUN python -m venv /opt/cdcflow \
 && PIP_CONSTRAINT=/build/constraints.txt PIP_BUILD_CONSTRAINT=/build/constraints.txt \
    /opt/cdcflow/bin/pip install --no-cache-dir '.[spark,local,catalogs,objects]' \
 && CDCFLOW_JARS=/opt/jars/delta /opt/cdcflow/bin/python -m cdcflow.spark.jars --kafka --iceberg --s3

FROM java AS merge
RUN useradd --system --uid 10001 --user-group --home-dir /nonexistent --shell /usr/sbin/nologin cdcflow \
 && install --directory --owner cdcflow --group cdcflow --mode 0700 /cache /history /warehouse \
 && install --directory --owner cdcflow --group cdcflow --mode 0750 /secrets
COPY --from=build /opt/cdcflow /opt/cdcflow
COPY --from=build /opt/jars /opt/jars
ENV PATH=/opt/cdcflow/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 \
    CDCFLOW_JARS=/opt/jars/delta PYSPARK_PYTHON=/opt/cdcflow/bin/python
USER 10001:10001
STOPSIGNAL SIGTERM
ENTRYPOINT ["cdcflow"]
CMD ["merge", "--config", "/etc/cdcflow/cdcflow.yaml"]
