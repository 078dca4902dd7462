# syntax=docker/dockerfile:1
# Two images from one file:
#   docker build --target remediator -t gpu-remediator/remediator:0.1.0 .
#   docker build --target node-agent -t gpu-remediator/node-agent:0.1.0 .
# Every Python package is pinned by hash (requirements/*.txt); pip and the build tools stay in
# the stages that are thrown away.
ARG PYTHON_IMAGE=python:3.13-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src

FROM build AS wheel
COPY requirements/build.txt requirements/
RUN python -m venv /opt/build \
 && /opt/build/bin/pip install --require-hashes --only-binary :all: -r requirements/build.txt
COPY pyproject.toml README.md ./
COPY remediator/ remediator/
COPY node-agent/ node-agent/
RUN /opt/build/bin/python -m hatchling build -t wheel -d /dist

# An environment without pip: /opt/venv is all that the final image takes.
FROM build AS remediator-environment
COPY requirements/controller.txt requirements/
RUN python -m venv --without-pip /opt/venv \
 && pip --python /opt/venv/bin/python install \
      --require-hashes --only-binary :all: -r requirements/controller.txt
COPY --from=wheel /dist/ /dist/
RUN pip --python /opt/venv/bin/python install --no-index --no-deps /dist/*.whl

FROM build AS node-agent-environment
COPY requirements/agent.txt requirements/
RUN python -m venv --without-pip /opt/venv \
 && pip --python /opt/venv/bin/python install \
      --require-hashes --only-binary :all: -r requirements/agent.txt
COPY --from=wheel /dist/ /dist/
RUN pip --python /opt/venv/bin/python install --no-index --no-deps /dist/*.whl

FROM ${PYTHON_IMAGE} AS base
# The root file system is read-only in the cluster: nothing to compile at run time.
ENV PATH=/opt/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /

# The agent reads the kernel log, which a container may do as root only; deploy/agent drops all
# of root's other capabilities.
FROM base AS node-agent
COPY --from=node-agent-environment /opt/venv /opt/venv
ENTRYPOINT ["node-agent"]
CMD ["run"]

# Last, so that it is what a build without --target gives.
FROM base AS remediator
COPY --from=remediator-environment /opt/venv /opt/venv
USER 65532:65532
ENTRYPOINT ["remediator"]
CMD ["run"]
