# Not built in the tests, which have no Docker; its steps are those of any machine with Python 3.11 and a compiler.
FROM python:3.11-slim AS build
RUN apt-get update && apt-get install -y --no-install-recommends build-essential cmake git
WORKDIR /source
COPY . .
RUN python -m venv /opt/halo && /opt/halo/bin/pip install --no-cache-dir -c constraints.txt ".[postgres,documents]"

FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home halo && mkdir /data && chown halo /data
COPY --from=build /opt/halo /opt/halo
USER halo
ENV HALO_WEAVE_DATA=/data HALO_WEAVE_MODELS=/data/models PATH=/opt/halo/bin:$PATH
VOLUME /data
EXPOSE 4256
HEALTHCHECK --start-period=20s CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:4256/healthz', timeout=3)"]
ENTRYPOINT ["halo-weave"]
CMD ["serve", "--host", "0.0.0.0"]
