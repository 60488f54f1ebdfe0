"""The servers that tests and benchmarks start, and every release that cdcflow supports.

`postgres`, `mysql` and `kafka` are the demo's starters (`cdcflow.demo.servers`) with operations that only tests
need; `debian` unpacks what is not installed. `objects` and `registry` are an object store and a schema registry,
`proxy` and `disks` what fails on purpose. `releases` lists every release, and `run` tests each: `make test-servers`.
"""
