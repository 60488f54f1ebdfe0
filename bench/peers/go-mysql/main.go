// A compiled competitor on the binary log: go-mysql, each row decoded into Go values, nothing stored.
//
// usage: drain FLAVOR PORT FILE POSITION SCHEMA.TABLE ROWS
//
// The clock runs from before the connection until the last row is decoded. Prints one line of JSON.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/go-mysql-org/go-mysql/replication"
)

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func number(text string) int {
	value, err := strconv.Atoi(text)
	must(err)
	return value
}

func cpuSeconds() float64 {
	var used syscall.Rusage
	must(syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return float64(used.Utime.Sec+used.Stime.Sec) + float64(used.Utime.Usec+used.Stime.Usec)/1e6
}

// peakBytes is VmHWM: the most memory that was resident at once.
func peakBytes() int64 {
	file, err := os.Open("/proc/self/status")
	must(err)
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if rest, found := strings.CutPrefix(lines.Text(), "VmHWM:"); found {
			kilobytes, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			must(err)
			return kilobytes << 10
		}
	}
	return 0
}

func main() {
	flavor, port, table, expected := os.Args[1], number(os.Args[2]), os.Args[5], number(os.Args[6])
	place := mysql.Position{Name: os.Args[3], Pos: uint32(number(os.Args[4]))}
	slog.SetDefault(slog.New(slog.NewTextHandler(io.Discard, nil)))

	begun, cpuBegun := time.Now(), cpuSeconds()
	syncer := replication.NewBinlogSyncer(replication.BinlogSyncerConfig{
		ServerID: 5404, Flavor: flavor, Host: "127.0.0.1", Port: uint16(port), User: "root",
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	stream, err := syncer.StartSync(place)
	must(err)
	seen, checksum := 0, int64(0)
	for seen < expected {
		event, err := stream.GetEvent(context.Background())
		must(err)
		rows, isRows := event.Event.(*replication.RowsEvent)
		if !isRows || string(rows.Table.Schema)+"."+string(rows.Table.Table) != table {
			continue
		}
		for _, row := range rows.Rows {
			checksum += row[0].(int64)
		}
		seen += len(rows.Rows)
	}
	must(json.NewEncoder(os.Stdout).Encode(map[string]any{
		"seconds": time.Since(begun).Seconds(), "rows": seen, "cpu_s": cpuSeconds() - cpuBegun,
		"rss_bytes": peakBytes(), "checksum": checksum,
	}))
}
