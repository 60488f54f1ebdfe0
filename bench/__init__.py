"""The benchmarks: `make bench`, or `python -m bench NAME …`.

Every bench runs the physical limit, cdcflow and the peers in the same invocation, in rotated order, verifies what
arrived, and keeps one line for each comparison in `results/latest.json`. How each figure is measured, and the results,
are in `bench/results/README.md`; `docs/performance.md` is the short version.

    harness    processes, clocks, rounds, the cost of each
    server     a private PostgreSQL, backlogs in slots that every party reads again
    parties    cdcflow, the limits and the peers, each as a separate process
    children/  what runs in those processes
    peers/     the peers that are not Python, built on first use
    contents   what the log holds, compared with the source
    results    the lines, their table and their file
    areas    which few figures docs/performance.md shows
    plots, document  pictures and the tables of the pages, from the lines
"""
