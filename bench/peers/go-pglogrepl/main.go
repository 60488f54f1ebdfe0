// A compiled competitor on the streaming path: pglogrepl, each change decoded into a typed struct, nothing stored.
//
// usage: drain DSN SLOT PUBLICATION CHANGES
//
// The clock runs from before the connection until the last change is a struct. Prints one line of JSON.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

const (
	rowsKept  = 10_000
	epochUs   = 946_684_800_000_000 // 2000-01-01 in microseconds since 1970
	boolOID   = 16
	int8OID   = 20
	int2OID   = 21
	int4OID   = 23
	dateOID   = 1082
	stampOID  = 1114
	stampzOID = 1184
)

// Order is a change of the narrow table.
type Order struct {
	Op       byte
	Nulls    uint8
	Xid      uint32
	LSN      uint64
	ID       int64
	Customer int32
	Status   string
	Note     string
	Amount   []byte // the server's binary numeric: exact, left as it is
	Placed   time.Time
}

// Value is one column of any other table.
type Value struct {
	Null bool
	Int  int64
	Text string
	Time time.Time
}

// Row is a change of any other table.
type Row struct {
	Op     byte
	Xid    uint32
	LSN    uint64
	Values []Value
}

func (o *Order) read(columns []*pglogrepl.TupleDataColumn) {
	for i, c := range columns {
		if c.DataType != 'b' {
			o.Nulls |= 1 << i
			continue
		}
		switch i {
		case 0:
			o.ID = int64(binary.BigEndian.Uint64(c.Data))
		case 1:
			o.Customer = int32(binary.BigEndian.Uint32(c.Data))
		case 2:
			o.Status = string(c.Data)
		case 3:
			o.Note = string(c.Data)
		case 4:
			o.Amount = append([]byte(nil), c.Data...)
		case 5:
			o.Placed = time.UnixMicro(int64(binary.BigEndian.Uint64(c.Data)) + epochUs)
		}
	}
}

func (r *Row) read(relation *pglogrepl.RelationMessageV2, columns []*pglogrepl.TupleDataColumn) {
	r.Values = make([]Value, len(columns))
	for i, c := range columns {
		v := &r.Values[i]
		if c.DataType != 'b' {
			v.Null = true
			continue
		}
		switch relation.Columns[i].DataType {
		case int8OID:
			v.Int = int64(binary.BigEndian.Uint64(c.Data))
		case int4OID, dateOID:
			v.Int = int64(int32(binary.BigEndian.Uint32(c.Data)))
		case int2OID:
			v.Int = int64(int16(binary.BigEndian.Uint16(c.Data)))
		case boolOID:
			v.Int = int64(c.Data[0])
		case stampOID, stampzOID:
			v.Time = time.UnixMicro(int64(binary.BigEndian.Uint64(c.Data)) + epochUs)
		default:
			v.Text = string(c.Data)
		}
	}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
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
	dsn, slot, publication := os.Args[1], os.Args[2], os.Args[3]
	expected, err := strconv.Atoi(os.Args[4])
	must(err)
	ctx := context.Background()

	begun, cpuBegun := time.Now(), cpuSeconds()
	conn, err := pgconn.Connect(ctx, dsn)
	must(err)
	options := []string{"proto_version '2'", "publication_names '" + publication + "'", "binary 'true'",
		"messages 'true'", "streaming 'true'"}
	must(pglogrepl.StartReplication(ctx, conn, slot, 0, pglogrepl.StartReplicationOptions{PluginArgs: options}))

	orders, rows := make([]Order, 0, rowsKept), make([]Row, 0, rowsKept)
	relations := map[uint32]*pglogrepl.RelationMessageV2{}
	seen, checksum, streamed, xid := 0, int64(0), false, uint32(0)

	take := func(op byte, lsn pglogrepl.LSN, relation uint32, tuple *pglogrepl.TupleData) {
		seen++
		if relations[relation].RelationName == "narrow" {
			order := Order{Op: op, LSN: uint64(lsn), Xid: xid}
			if tuple != nil {
				order.read(tuple.Columns)
			}
			checksum += order.ID
			if len(orders) == cap(orders) {
				orders = orders[:0]
			}
			orders = append(orders, order)
			return
		}
		row := Row{Op: op, LSN: uint64(lsn), Xid: xid}
		if tuple != nil {
			row.read(relations[relation], tuple.Columns)
			checksum += row.Values[0].Int
		}
		if len(rows) == cap(rows) {
			rows = rows[:0]
		}
		rows = append(rows, row)
	}

	for seen < expected {
		message, err := conn.ReceiveMessage(ctx)
		must(err)
		data, isCopy := message.(*pgproto3.CopyData)
		if !isCopy {
			fmt.Fprintf(os.Stderr, "the server said %T\n", message)
			os.Exit(1)
		}
		switch data.Data[0] {
		case pglogrepl.PrimaryKeepaliveMessageByteID:
			keepalive, err := pglogrepl.ParsePrimaryKeepaliveMessage(data.Data[1:])
			must(err)
			if keepalive.ReplyRequested {
				must(pglogrepl.SendStandbyStatusUpdate(ctx, conn, pglogrepl.StandbyStatusUpdate{}))
			}
		case pglogrepl.XLogDataByteID:
			log, err := pglogrepl.ParseXLogData(data.Data[1:])
			must(err)
			logical, err := pglogrepl.ParseV2(log.WALData, streamed)
			must(err)
			switch m := logical.(type) {
			case *pglogrepl.BeginMessage:
				xid = m.Xid
			case *pglogrepl.RelationMessageV2:
				relations[m.RelationID] = m
			case *pglogrepl.StreamStartMessageV2:
				streamed, xid = true, m.Xid
			case *pglogrepl.StreamStopMessageV2:
				streamed = false
			case *pglogrepl.InsertMessageV2:
				take('I', log.WALStart, m.RelationID, m.Tuple)
			case *pglogrepl.UpdateMessageV2:
				take('U', log.WALStart, m.RelationID, m.NewTuple)
			case *pglogrepl.DeleteMessageV2:
				take('D', log.WALStart, m.RelationID, m.OldTuple)
			}
		}
	}
	must(json.NewEncoder(os.Stdout).Encode(map[string]any{
		"seconds": time.Since(begun).Seconds(), "rows": seen, "cpu_s": cpuSeconds() - cpuBegun,
		"rss_bytes": peakBytes(), "checksum": checksum,
	}))
}
