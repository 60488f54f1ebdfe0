"""What Java prints when Spark starts, and what cdcflow does with it: recorded lines, no Java."""

from __future__ import annotations

import io

import pytest

from cdcflow.spark.runtime import resolver
from cdcflow.spark.runtime.java import StartLines, is_known

PAGE = b"""WARNING: Using incubator modules: jdk.incubator.vector
Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties
26/11/24 23:53:50 WARN Utils: Your hostname, vm, resolves to a loopback address: 127.0.0.1; using 192.0.2.2 instead
26/11/24 23:53:50 WARN Utils: Set SPARK_LOCAL_IP if you need to bind to another address
:: loading settings :: url = jar:file:/x/ivy-2.5.3.jar!/org/apache/ivy/core/settings/ivysettings.xml
Ivy Default Cache set to: /x/ivy/cache
The jars for the packages stored in: /x/ivy/jars
io.delta#delta-spark_4.1_2.13 added as a dependency
:: resolving dependencies :: org.apache.spark#spark-submit-parent-ba893e28;1.0
\tconfs: [default]
\tfound io.delta#delta-spark_4.1_2.13;4.4.0 in central
downloading https://mirror.example/io/delta/delta-spark_4.1_2.13/4.4.0/delta-spark_4.1_2.13-4.4.0.jar ...
\t[SUCCESSFUL ] io.delta#delta-spark_4.1_2.13;4.4.0!delta-spark_4.1_2.13.jar (247ms)
:: resolution report :: resolve 1934ms :: artifacts dl 921ms
\t:: modules in use:
\tio.delta#delta-spark_4.1_2.13;4.4.0 from central in [default]
\t---------------------------------------------------------------------
\t|                  |            modules            ||   artifacts   |
\t---------------------------------------------------------------------
:: retrieving :: org.apache.spark#spark-submit-parent-ba893e28
\t7 artifacts copied, 0 already retrieved (13024kB/17ms)
26/11/24 23:53:54 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform...
Setting default log level to "WARN".
To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(newLevel).
""".splitlines(keepends=True)

NEW = [
    b"26/11/24 23:53:54 WARN Utils: Service 'sparkDriver' could not bind on a random free port.\n",
    b"26/11/24 23:53:54 ERROR SparkContext: Error initializing SparkContext.\n",
    b"# A fatal error has been detected by the Java Runtime Environment:\n",
    b"WARNING: A restricted method in java.lang.System has been called\n",
]

REFUSED = """
:: problems summary ::
		:: io.delta#delta-spark_4.1_2.13;4.4.0: not found
		::::::::::::::::::::::::::::::::::::::::::::::
:::: ERRORS
	Server access error at url http://u:s3cret@127.0.0.1:9/delta.pom (java.net.ConnectException: Connection refused)

	Server access error at url http://u:s3cret@127.0.0.1:9/delta.jar (java.net.ConnectException: Connection refused)
Exception in thread "main" java.lang.RuntimeException: [unresolved dependency: io.delta#delta-spark_4.1_2.13;4.4.0]
	at org.apache.spark.util.MavenUtils$.resolveMavenCoordinates(MavenUtils.scala:539)
"""


def test_a_start_that_works_prints_only_what_is_new() -> None:
    """A newcomer's first merge must not begin with a page of noise."""
    assert [line for line in PAGE if not is_known(line)] == []
    out = io.BytesIO()
    StartLines(out).pass_on([*PAGE, *NEW])
    assert out.getvalue() == b"".join(NEW)


def test_a_start_that_fails_prints_all_that_was_held_back() -> None:
    """A line that appeared harmless may be the reason."""
    out = io.BytesIO()
    lines = StartLines(out)
    lines.pass_on(PAGE[:3])
    lines.tell_all()
    lines.pass_on(PAGE[3:5])
    assert out.getvalue() == b"".join(PAGE[:5])


def test_failed_fetch_is_reported_in_a_line_without_its_password() -> None:
    """Ivy prints a page, with the password of the mirror in each address of it."""
    assert resolver.reason(REFUSED) == (
        "io.delta:delta-spark_4.1_2.13:4.4.0 was not found;"
        " http://127.0.0.1:9 said ConnectException: Connection refused"
    )


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("", "it said nothing"),
        (
            "Exception: cannot read http://u:s3cret@host/x\n\tat java.lang.Thread\n",
            "Exception: cannot read http://host/x",
        ),
        ("\tHost repo.example.org not found. url=https://repo.example.org/x\n", "no address of repo.example.org"),
    ],
)
def test_failure_of_another_kind_is_reported_with_its_last_words(said: str, told: str) -> None:
    assert resolver.reason(said) == told
