"""A separate driver that commits versions through Delta's log store, as fast as possible: `commit_driver.py '{…}'`.

A second driver commits the same versions. Prints `{"won": version}` for each version whose write was reported as
successful.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from cdcflow.config import Objects
from cdcflow.spark import session
from cdcflow.spark.jars import log_store
from cdcflow.spark.runtime import stores


def main(text: str) -> None:
    told = json.loads(text)
    scratch = Path(told["scratch"])
    spark = session(cores=1, memory="1g", scratch=scratch, s3=True, settings=told["spark"])
    stores.reach(spark, Objects.model_validate(told["log"]).address(told["bucket"]))
    jvm: Any = spark._jvm
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    package: Any = jvm
    for part in str(spark.conf.get(log_store("s3a")[0], "")).split("."):
        package = getattr(package, part)
    store = package(conf)
    place = jvm.org.apache.hadoop.fs.Path(f"{told['warehouse']}/raced/_delta_log")
    place.getFileSystem(conf).mkdirs(place)

    def said(**what: object) -> None:
        sys.stdout.write(json.dumps(what) + "\n")
        sys.stdout.flush()

    said(ready=True)
    sys.stdin.readline()  # both begin at once
    for version in range(told["versions"]):
        path = jvm.org.apache.hadoop.fs.Path(place, f"{version:020d}.json")
        lines = jvm.java.util.ArrayList()
        lines.add(json.dumps({"by": told["who"], "version": version}))
        try:
            store.write(path, lines.iterator(), False, conf)
        except Exception as error:
            if "FileAlreadyExists" not in str(error):
                raise
        else:
            said(won=version)
    said(done=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
